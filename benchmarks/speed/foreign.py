"""Attacks on networks that are not ours, against the libraries that their owners would take.

The networks are trained by ``fast`` and lie in ``assets``; that of timm is too large for that, and
is trained where it is missing, once, in a quarter of an hour. Time is compared on few batches;
``agreement.py`` compares strength, on 1,000 images.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.attacks import APGD, IFGSM, Attack, Square
from enresnet.cli import main as enresnet_command
from enresnet.models import load_model
from speed import attacks as known
from speed.attacks import EPSILON, STEP
from speed.shares import shares_of
from speed.steps import Setting
from speed.turns import MissingError, seconds_of, told

ASSETS = Path(__file__).parent.parent / "assets"
TRAINED = Path(__file__).parent.parent.parent / "build" / "bench"
BATCH = 128
FLOAT32_AT_LEAST = 0.97  # without bfloat16 we want to be about as fast, at the least
_SHIFTED = "--low-resolution 0 --label-smoothing 0 --shift none"
_NORMALISED = f"{_SHIFTED} --learning-rate 0.05 --mean 0.49 0.48 0.45 --std 0.25 0.24 0.26"
TRAIN = {
    "plain_cnn": f"--model speed.networks:plain_cnn --epochs 8 {_NORMALISED}",
    "resnet_without_batchnorm": "--model speed.networks:ResNetWithoutBatchNorm --epochs 8 "
    f"{_NORMALISED}",
    "timm_resnet18": f"--model timm:resnet18 --epochs 6 --epsilon-growth 0 {_SHIFTED}",
}
Rival = Callable[[nn.Module, int], Callable[[Tensor, Tensor], Tensor]]


def network(name: str, *, train: bool = True) -> nn.Module:
    """Return a network that was trained before, or train it."""
    path = ASSETS / f"{name}.safetensors"
    if not path.is_file():
        run = TRAINED / name
        path = run / "best.safetensors"
        if not path.is_file() and not train:
            raise MissingError(f"{name} is not in {ASSETS.name}, and is trained only for real")
        if not path.is_file():
            command = f"train {TRAIN[name]} --data cifar10 --recipe fast --out {run}"
            print(f"enresnet {command}", flush=True)
            if enresnet_command(command.split()):
                raise MissingError(f"{name} is not in {ASSETS.name}, and its training failed")
    return load_model(path, trust_code=True)  # our own, or timm's


def _torchattacks(model: nn.Module, steps: int) -> Callable[[Tensor, Tensor], Tensor]:
    try:
        import torchattacks
    except ImportError as error:
        raise MissingError("torchattacks is not installed") from error
    attack: Any = torchattacks.PGD(model, eps=EPSILON, alpha=STEP, steps=steps, random_start=False)
    return lambda images, labels: attack(images, labels)


def _foolbox(model: nn.Module, steps: int) -> Callable[[Tensor, Tensor], Tensor]:
    try:
        import foolbox
    except ImportError as error:
        raise MissingError("foolbox is not installed") from error
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=steps, random_start=False)
    return lambda images, labels: attack.run(wrapped, images, labels, epsilon=EPSILON)


def _autoattack(kind: str) -> Rival:
    def rival(model: nn.Module, steps: int) -> Callable[[Tensor, Tensor], Tensor]:
        try:
            from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
            from pyautoattack.square import SquareAttack
        except ImportError as error:
            raise MissingError("pyautoattack is not installed") from error
        shared: dict[str, Any] = {
            "norm": "Linf",
            "eps": EPSILON,
            "seed": 0,
            "verbose": False,
            "device": "cpu",
            "n_restarts": 1,
        }
        attack: Any
        if kind == "square":
            attack = SquareAttack(model, n_queries=steps, p_init=0.8, **shared)
        elif kind == "apgd_t":
            attack = APGDAttack_targeted(model, n_iter=steps, n_target_classes=9, **shared)
        else:
            attack = APGDAttack(model, n_iter=steps, loss="ce", **shared)
        return lambda images, labels: attack.perturb(images, labels)

    return rival


@dataclass(frozen=True)
class Pair:
    """A rival and the attack of ours that does the same."""

    words: str
    rival: Rival
    ours: Callable[..., Attack]
    steps: int
    at_least: float  # how many times as fast we want to be
    batches: int = 4  # that are timed; fewer where they take long
    stops: bool = True  # whether it has an early stop, and a precision
    only_right: bool = False  # whether the rival leaves out what is wrong from the start


_IFGSM = partial(IFGSM, epsilon=EPSILON, step_size=STEP, eot=1)
_APGD = partial(APGD, epsilon=EPSILON, eot=1)
PAIRS = {
    "ifgsm20_vs_torchattacks": Pair(
        "torchattacks' PGD from the image itself", _torchattacks, _IFGSM, 20, 2.0
    ),
    "ifgsm20_vs_foolbox": Pair(
        "foolbox's LinfPGD from the image itself", _foolbox, _IFGSM, 20, 2.0
    ),
    "apgd100_vs_autoattack": Pair(
        "AutoAttack's own APGD-CE", _autoattack("apgd"), _APGD, 100, 1.5, only_right=True
    ),
    "apgd100_t_vs_autoattack": Pair(
        "AutoAttack's own targeted APGD",
        _autoattack("apgd_t"),
        partial(_APGD, loss="targeted_dlr"),
        100,
        1.5,
        batches=2,
        only_right=True,
    ),
    "square_vs_autoattack": Pair(
        "AutoAttack's own Square",
        _autoattack("square"),
        partial(Square, epsilon=EPSILON, eot=1),
        1000,
        1.5,
        batches=2,
        stops=False,
        only_right=True,
    ),
}


def against(name: str, pair: str, setting: Setting) -> dict[str, Any]:
    """Attack batch by batch in turn: theirs; ours with early stop and without, also in float32.

    Images that are wrong from the start are left out where the rival leaves them out.
    """
    chosen = PAIRS[pair]
    real = setting.images > 10
    steps = chosen.steps if real else 3
    model = network(name, train=real).eval()
    theirs = chosen.rival(model, steps)
    images, labels = known.test_images(chosen.batches * BATCH if real else setting.images)
    ways: list[dict[str, Any]] = [{}]
    if chosen.stops:
        ways = [
            {"early_stop": True},
            {},
            {"early_stop": True, "precision": "32"},
            {"precision": "32"},
        ]
    attacks = [chosen.ours(steps=steps, **options) for options in ways]
    ratios: list[list[float]] = [[] for _ in attacks]
    right = torch.zeros(1 + len(attacks))
    for start in range(0, len(images), BATCH):
        batch, target = images[start : start + BATCH], labels[start : start + BATCH]
        if chosen.only_right:  # so that both sides attack the same images
            with torch.no_grad():
                held = model(batch).argmax(dim=1) == target
            if held.any():  # of the few of a tiny run, perhaps none is
                batch, target = batch[held], target[held]
        results: list[Tensor] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = seconds_of(lambda b=batch, t=target, r=results: r.append(theirs(b, t)))
        for number, attack in enumerate(attacks):
            mine = seconds_of(
                lambda a=attack, b=batch, t=target, r=results: r.append(a(model, b, t, seed=0))
            )
            ratios[number].append(other / mine)
        with torch.no_grad():
            for index, attacked in enumerate(results):
                right[index] += (model(attacked.clamp(0, 1)).argmax(dim=1) == target).sum()
    accuracies = (100 * right / len(images)).tolist()
    medians = [statistics.median(each) for each in ratios]
    more: dict[str, Any] = {"float32_holds": medians[0] >= FLOAT32_AT_LEAST}
    if len(attacks) > 1:
        more = {
            "without_early_stop": medians[1],
            "in_float32": medians[2],
            "in_float32_without_early_stop": medians[3],
            "our_robust_accuracy_without_early_stop": accuracies[2],
            "our_robust_accuracy_in_float32": accuracies[3],
            "our_robust_accuracy_in_float32_without_early_stop": accuracies[4],
            "float32_holds": medians[2] >= FLOAT32_AT_LEAST,
        }
    if medians[0] < chosen.at_least:
        batch, target = images[:BATCH], labels[:BATCH]
        more["our_time_goes_to"] = shares_of(lambda: attacks[0](model, batch, target, seed=0))
    return told(
        ratios[0],
        f"{pair.partition('_vs_')[0]} on {name}, {len(images)} CIFAR-10 test images in batches of "
        f"{BATCH}: {chosen.words} over ours",
        their_robust_accuracy=accuracies[0],
        our_robust_accuracy=accuracies[1],
        at_least=chosen.at_least,
        **more,
    )


def table(figures: dict[str, dict[str, dict[str, Any]]]) -> list[dict[str, str]]:
    """Return what was measured of each network, pair by pair, a row each."""
    rows = []
    for name, pairs in figures.items():
        for pair, found in pairs.items():
            attack, _, rival = pair.partition("_vs_")
            low, high = found["spread"]
            rows.append(
                {
                    "network": name,
                    "attack / rival": f"{attack} / {rival}",
                    "ours": f"{found['median']:.2f} ({low:.2f}-{high:.2f})",
                    "goal": f"{found['at_least']:g}",
                    "without early stop": _told(found, "without_early_stop", 2),
                    "in float32": _told(found, "in_float32", 2),
                    "in float32 without early stop": _told(
                        found, "in_float32_without_early_stop", 2
                    ),
                    "their accuracy": _told(found, "their_robust_accuracy", 1),
                    "our accuracy": _told(found, "our_robust_accuracy", 1),
                    "ours without early stop": _told(
                        found, "our_robust_accuracy_without_early_stop", 1
                    ),
                }
            )
    return rows


def _told(found: dict[str, Any], name: str, digits: int) -> str:
    """Return a figure, or nothing for an attack that has no such way."""
    return f"{found[name]:.{digits}f}" if name in found else ""


FOREIGN = {
    f"foreign.{name}.{pair}": partial(against, name, pair) for name in TRAIN for pair in PAIRS
}
