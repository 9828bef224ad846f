"""Our attacks beside their counterparts in other libraries, on the same robustly trained networks.

``python benchmarks/agreement.py`` prints, for a network without noise, how many pixels others set
differently where an attack has no chance in it; over the first 1,000 test images of CIFAR-10,
robust accuracy under each attack as every library has it; for C&W, how many images are fooled
within which size; and for a network with noise ``strongest`` beside AutoAttack-rand, with a paired
interval. A row whose rivals are not all installed is left out, and the exit code says so. With
``--kept FILE`` every row is kept as it comes, and what stands there is not computed again.
``--plain FILE`` takes another network without noise, such as those of ``benchmarks/assets``, which
are not built by this package; its code is imported, so name only files that you trust.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from enresnet.attacks import (
    APGD,
    FGSM,
    IFGSM,
    PGD,
    AutoAttack,
    CarliniWagner,
    Square,
    Strongest,
)
from enresnet.common.randomness import named_generator
from enresnet.data import load_data
from enresnet.evaluation import evaluate, score
from enresnet.evaluation.model_identity import digest_of
from enresnet.evaluation.statistics import paired_difference
from enresnet.models import load_model, seed_noise
from kept import Kept
from speed.attacks import art_carlini

EPSILON, STEP = 8 / 255, 2 / 255
RESULTS = Path(__file__).parent.parent / "results" / "cifar10"
Attack = Callable[[Tensor, Tensor], Tensor]


def torchattacks_version(model: nn.Module, name: str) -> Attack:
    """Return FGSM, IFGSM-20 or PGD-20 of torchattacks."""
    import torchattacks

    options = {"eps": EPSILON, "alpha": STEP, "steps": 20, "random_start": name == "pgd20"}
    found: Attack = (
        torchattacks.FGSM(model, eps=EPSILON)
        if name == "fgsm"
        else torchattacks.PGD(model, **options)
    )
    return found


def foolbox_version(model: nn.Module, name: str) -> Attack:
    """Return FGSM, IFGSM-20 or PGD-20 of foolbox."""
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
    attack = (
        foolbox.attacks.LinfFastGradientAttack(random_start=False)
        if name == "fgsm"
        else foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=20, random_start=name == "pgd20")
    )
    return lambda images, labels: attack.run(wrapped, images, labels, epsilon=EPSILON)


def autoattack_version(model: nn.Module, name: str) -> Attack:
    """Return APGD or Square of AutoAttack, with one start."""
    from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
    from pyautoattack.square import SquareAttack

    options: dict[str, Any] = {
        "n_restarts": 1,
        "norm": "Linf",
        "eps": EPSILON,
        "seed": 0,
        "device": "cpu",
    }
    if name == "apgd100_t":
        attack = APGDAttack_targeted(model, n_iter=100, **options)
        attack.n_target_classes = 9
    elif name == "square1000":
        attack = SquareAttack(model, n_queries=1000, verbose=False, **options)
    else:
        loss = "dlr" if name == "apgd100_dlr" else "ce"
        attack = APGDAttack(model, n_iter=100, loss=loss, **options)
    found: Attack = attack.perturb
    return found


OURS: dict[str, Callable[..., Any]] = {
    "fgsm": partial(FGSM, epsilon=EPSILON, eot=1),
    "ifgsm20": partial(IFGSM, epsilon=EPSILON, step_size=STEP, eot=1),
    "pgd20": partial(PGD, epsilon=EPSILON, step_size=STEP, eot=1),
    "apgd100": partial(APGD, epsilon=EPSILON, eot=1),
    "apgd100_dlr": partial(APGD, epsilon=EPSILON, eot=1, loss="dlr"),
    "apgd100_t": partial(APGD, epsilon=EPSILON, eot=1, loss="targeted_dlr"),
    "square1000": partial(Square, epsilon=EPSILON, steps=1000, eot=1),
}
EARLY = ("ifgsm20", "pgd20", "apgd100", "apgd100_dlr", "apgd100_t")  # have an early stop
NEEDS = {
    **dict.fromkeys(("images", "fgsm", "ifgsm20", "pgd20"), ("torchattacks", "foolbox")),
    **dict.fromkeys(
        ("apgd100", "apgd100_dlr", "apgd100_t", "square1000", "strongest"), ("pyautoattack",)
    ),
    "cw": ("art",),
}
THEIRS = {
    "fgsm": {"torchattacks": torchattacks_version, "foolbox": foolbox_version},
    "ifgsm20": {"torchattacks": torchattacks_version, "foolbox": foolbox_version},
    "pgd20": {"torchattacks": torchattacks_version, "foolbox": foolbox_version},
    "apgd100": {"AutoAttack": autoattack_version},
    "apgd100_dlr": {"AutoAttack": autoattack_version},
    "apgd100_t": {"AutoAttack": autoattack_version},
    "square1000": {"AutoAttack": autoattack_version},
}


def attacked(attack: Attack, images: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Return the images of an attack, made batch by batch, and the CPU seconds it took."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [
            attack(images[i : i + 128], labels[i : i + 128]) for i in range(0, len(images), 128)
        ]
    return torch.cat(parts).clamp(0, 1).detach(), time.process_time() - start


def deterministic(model: nn.Module, images: Tensor, labels: Tensor, name: str) -> Any:
    """Return the robust accuracy of a network without noise under one attack, by library."""
    chance = {} if name in ("fgsm", "ifgsm20") else {"generator": named_generator(0, name)}
    own = OURS[name](**chance)
    versions: dict[str, Attack] = {"ours": lambda x, y: own(model, x, y)}
    if name in EARLY:
        chance = {key: named_generator(0, name) for key in chance}  # the same starts
        early = OURS[name](**chance, early_stop=True)
        versions["ours with early stop"] = lambda x, y: early(model, x, y)
    versions |= {library: version(model, name) for library, version in THEIRS[name].items()}
    row = {}
    for library, attack in versions.items():
        found, seconds = attacked(attack, images, labels)
        accuracy = 100 * float(score(model, found, labels).mean())
        row[library] = {"accuracy": accuracy, "seconds": round(seconds, 1)}
    return row


def same_images(model: nn.Module, images: Tensor, labels: Tensor) -> Any:
    """Return how many pixels differ from our own in float64, in percent, by attack and library.

    These attacks have no chance in them: whoever computes exactly enough makes the same images.
    """
    rows: dict[str, Any] = {}
    for name in ("fgsm", "ifgsm20"):
        row, truth = {}, None
        for dtype in (torch.float64, torch.float32):
            copied, pixels = copy.deepcopy(model).to(dtype), images.to(dtype)
            own = OURS[name](precision="32")
            versions: dict[str, Attack] = {"ours": lambda x, y, a=own, m=copied: a(m, x, y)}
            if dtype == torch.float32:
                fast = OURS[name]()
                versions["ours in bfloat16"] = lambda x, y, a=fast, m=copied: a(m, x, y)
            versions |= {other: version(copied, name) for other, version in THEIRS[name].items()}
            for library, attack in versions.items():
                found = attacked(attack, pixels, labels)[0].double()
                truth = found if truth is None else truth
                differ = (found - truth).abs() > 1e-6
                row[f"{library}, {str(dtype).removeprefix('torch.')}"] = 100 * float(
                    differ.double().mean()
                )
        rows[name] = row
    return rows


def carlini_wagner(model: nn.Module, images: Tensor, labels: Tensor) -> Any:
    """Return the share of images fooled within several sizes, ours and ART's."""
    theirs = art_carlini(model, tuple(images.shape[1:]))
    found = {
        "ours": CarliniWagner(eot=1)(model, images, labels),
        "ART": torch.from_numpy(theirs.generate(images.numpy(), labels.numpy())),
    }
    rows = {}
    for library, result in found.items():
        size = (result - images).abs().flatten(1).amax(dim=1) * 255
        fooled = score(model, result, labels) < 0.5
        rows[library] = {
            str(bound): 100 * float((fooled & (size <= bound + 1e-3)).float().mean())
            for bound in (0, 1, 2, 3, 4, 8)
        }
    return rows


def randomised(model: nn.Module, images: Tensor, labels: Tensor, journal: Path | None) -> Any:
    """Return strongest beside AutoAttack-rand, both scored over fresh draws."""
    strongest = Strongest(epsilon=EPSILON, eot=5, generator=named_generator(0, "strongest"))
    rand = AutoAttack(epsilon=EPSILON, version="rand", generator=named_generator(0, "autoattack"))
    result = evaluate(
        model, (images, labels), [rand, strongest], draws=20, batch_size=50, seed=0, journal=journal
    )
    ours, theirs = result.robust["strongest"], result.robust["autoattack_rand"]
    difference = paired_difference(ours.scores, theirs.scores)
    return {**result.to_json(), "difference": [100 * value for value in difference]}


def told(name: str, row: Any) -> str:
    """Return a result in words."""
    if name == "strongest":
        ours, theirs = row["robust"]["strongest"], row["robust"]["autoattack_rand"]
        mean, low, high = row["difference"]
        return (
            f"strongest: {100 * ours['accuracy']:.2f} % with {ours['gradients']:.0f} gradients an "
            f"image ({ours['seconds']:.0f} s), AutoAttack-rand {100 * theirs['accuracy']:.2f} % "
            f"over fresh draws, {100 * theirs['claimed']:.2f} % as it claims "
            f"({theirs['seconds']:.0f} s)\n"
            f"strongest - AutoAttack-rand: {mean:+.2f} points ({low:+.2f} to {high:+.2f})"
        )
    if name == "images":
        lines = []
        for attack, shares in row.items():
            lines.append(f"images of {attack}, in % of pixels unlike ours in float64:")
            for kind in ("float64", "float32"):
                found = {
                    key.removesuffix(f", {kind}"): share
                    for key, share in shares.items()
                    if key.endswith(kind)
                }
                words = ", ".join(f"{library} {share:.3f}" for library, share in found.items())
                lines.append(f"    {kind}: {words}")
        return "\n".join(lines)
    if name == "cw":
        sizes = ", ".join(next(iter(row.values())))
        lines = [f"cw: fooled within {sizes} grey levels, in %"]
        for library, shares in row.items():
            words = ", ".join(f"{share:.1f}" for share in shares.values())
            lines.append(f"    {library}: {words}")
        return "\n".join(lines)
    return f"{name}: " + ", ".join(
        f"{library} {each['accuracy']:.2f} % ({each['seconds']:.0f} s)"
        for library, each in row.items()
    )


def main(
    plain: Path = RESULTS / "resnet20" / "best.safetensors",
    noisy: Path = RESULTS / "en1_resnet20" / "best.safetensors",
    images: int = 1000,
    noisy_images: int = 500,
    cw_images: int = 64,
    only: tuple[str, ...] = ("images", *OURS, "cw", "strongest"),
    kept: Path | None = None,
    journal: Path | None = None,
) -> int:
    """Print all comparisons; exit code 1 if one of ours is weaker than allowed, or has no rival.

    ``journal`` is a folder from which the comparison with AutoAttack goes on within its row.
    """
    pixels, labels = load_data("cifar10").test.batch(slice(images))
    network = load_model(plain, trust_code=True).eval()
    settings: dict[str, Any] = {
        "plain": digest_of(network, tuple(pixels.shape[1:])),
        "noisy": digest_of(load_model(noisy)),
        "images": images,
        "noisy_images": noisy_images,
        "cw_images": cw_images,
    }
    known, alone = Kept(kept, settings), []
    for name in only:
        missing = [other for other in NEEDS[name] if importlib.util.find_spec(other) is None]
        if name not in known.found and missing:
            print(f"{name}: needs {', '.join(missing)}; docs/agreement.md says how to install")
            alone.append(name)
        elif name not in known.found:
            if name == "strongest":
                model = load_model(noisy)
                seed_noise(model, named_generator(0, "noise"))
                few = (pixels[:noisy_images], labels[:noisy_images])
                row = randomised(model, *few, journal)
            elif name == "images":
                row = same_images(network, pixels[:100], labels[:100])
            elif name == "cw":
                row = carlini_wagner(network, pixels[:cw_images], labels[:cw_images])
            else:
                row = deterministic(network, pixels, labels, name)
            known.put(name, row)
        if name in known.found:
            print(told(name, known.found[name]), flush=True)
    compared = [name for name in only if name in known.found]
    weak = [name for name in compared if not holds(name, known.found[name])]
    for words, names in (("weaker than allowed:", weak), ("not compared:", alone)):
        if names:
            print(words, *names)
    if not weak and not alone:
        print("all are as strong as they should be")
    return 1 if weak or alone else 0


def holds(name: str, row: Any) -> bool:
    """Return whether an attack of ours is as strong as its rivals, within what is allowed."""
    if name == "strongest":
        mean, low, high = row["difference"]
        return bool(mean <= 0.5 or low <= 0 <= high)
    if name == "images":
        exact = [
            share
            for shares in row.values()
            for library, share in shares.items()
            if library.endswith("float64")
        ]
        return max(exact) < 0.001
    if name == "cw":
        return all(row["ours"][size] >= share for size, share in row["ART"].items())
    ours = [each["accuracy"] for library, each in row.items() if library.startswith("ours")]
    theirs = [each["accuracy"] for library, each in row.items() if not library.startswith("ours")]
    return max(ours) <= min(theirs) + 0.3 + 1e-6  # accuracies are float32 shares


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
