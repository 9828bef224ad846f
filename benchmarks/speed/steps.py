"""Training steps: against a plain loop, against the convolutions alone, with noise and without."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.data import Augmentation, DataSet, Images
from enresnet.models import create_model, is_noisy
from enresnet.models.frozen.fold import Convolution
from enresnet.models.frozen.ordered_convolution import OrderedConvolution, computes_in
from enresnet.training import Engine, Recipe, Trainer
from speed.compiled_loop import CompiledLoop
from speed.plain_loop import PlainEnsemble, PlainLoop
from speed.shares import shares_of
from speed.turns import MissingError, Work, in_turn, median_of, seconds_of, told


@dataclass(frozen=True)
class Setting:
    """How large the benchmarks are."""

    batch: int = 128
    repeats: int = 7
    images: int = 1000  # of the attacks
    compiler: str = "inductor"  # of torch.compile


TINY = Setting(batch=4, repeats=1, images=4, compiler="eager")


def problem(batch: int) -> tuple[Tensor, Tensor]:
    """Return random images of CIFAR's size, and labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 3, 32, 32, generator=generator)
    return images, torch.randint(10, (batch,), generator=generator)


def trainer_of(model: str, batch: int, *, noise: float = 0.1, **changes: Any) -> Trainer:
    """Return our trainer with Algorithm 1's settings, as ``enresnet train`` would set it up."""
    images, labels = problem(2)
    few = Images((255 * images).to(torch.uint8), labels, tuple("0123456789"))
    data = DataSet("random", few, few, few, Augmentation())
    recipe = Recipe(batch_size=batch, noise=noise, **changes)
    network = create_model(model, noise=noise if is_noisy(model) else None)
    engine = Engine(accelerator="cpu", precision="auto")
    trainer = Trainer(network, data, recipe, engine=engine)
    trainer.model.train()
    return trainer


def step_of(trainer: Trainer, images: Tensor, labels: Tensor) -> None:
    """Take one step of our trainer."""
    images = images.contiguous(memory_format=torch.channels_last)
    trainer._update(images, labels, len(images), 0.1)


def train_step_en1(setting: Setting) -> dict[str, Any]:
    """PGD-10 training step of En_1ResNet20."""
    return _train_step(1, setting, setting.repeats)


def train_step_en5(setting: Setting) -> dict[str, Any]:
    """PGD-10 training step of En_5ResNet20."""
    return _train_step(5, setting, max(1, setting.repeats // 2))


def _train_step(members: int, setting: Setting, repeats: int) -> dict[str, Any]:
    images, labels = problem(setting.batch)
    name = f"en{members}_resnet20"
    plain, plain_evaluating = PlainLoop(members), PlainLoop(members, attack_mode="eval")
    ours = trainer_of(name, setting.batch)
    ours_training = trainer_of(name, setting.batch, attack_mode="train")
    turns = in_turn(
        lambda: plain.step(images, labels),
        lambda: step_of(ours, images, labels),
        lambda: plain_evaluating.step(images, labels),
        lambda: step_of(ours_training, images, labels),
        repeats=repeats,
    )
    return told(
        [theirs / mine for theirs, mine, *_ in turns],
        f"PGD-10 training step, En_{members}ResNet20, batch {setting.batch}: plain loop (float32, "
        "attacking in BatchNorm's training mode, as the authors' scripts do) over ours "
        f"({ours.engine.precision}, attacking in evaluation mode), random images",
        both_attacking_in_evaluation_mode=statistics.median(
            theirs / mine for _, mine, theirs, _ in turns
        ),
        both_attacking_in_training_mode=statistics.median(
            theirs / mine for theirs, _, _, mine in turns
        ),
        plain_images_per_second=setting.batch / median_of(turns, 0),
        our_images_per_second=setting.batch / median_of(turns, 1),
        at_least=2.5,
    )


def compiled_step_en1(setting: Setting) -> dict[str, Any]:
    """PGD-10 training step of En_1ResNet20, against a compiled loop."""
    return _compiled_step(
        "En_1ResNet20",
        PlainEnsemble(1),
        trainer_of("en1_resnet20", setting.batch),
        setting,
        at_least=3.5,
        goal=4.5,
    )


def compiled_step_timm(setting: Setting) -> dict[str, Any]:
    """PGD-10 training step of timm's resnet18 with noise, against a compiled loop."""
    try:
        theirs = create_model("en1_timm:resnet18", noise=0.1)
    except ImportError as error:
        raise MissingError("timm is not installed") from error
    return _compiled_step(
        "feynman_kac(timm resnet18, members=1)",
        theirs,
        trainer_of("en1_timm:resnet18", setting.batch),
        setting,
        at_least=1.0,
        goal=2.0,
    )


def _compiled_step(
    what: str,
    network: nn.Module,
    ours: Trainer,
    setting: Setting,
    *,
    at_least: float,
    goal: float,
) -> dict[str, Any]:
    images, labels = problem(setting.batch)
    theirs = CompiledLoop(network, compiler=setting.compiler)
    turns = in_turn(
        lambda: theirs.step(images, labels),
        lambda: step_of(ours, images, labels),
        repeats=setting.repeats,
        warm_up=2,
    )
    ratios = [other / mine for other, mine in turns]
    shares = {}
    if statistics.median(ratios) < goal:
        shares = {"our_time_goes_to": shares_of(lambda: step_of(ours, images, labels))}
    return told(
        ratios,
        f"PGD-10 training step, {what}, batch {setting.batch}: a loop with torch.compile, bfloat16 "
        f"autocast, channels last and frozen parameters over ours ({ours.engine.precision}), both "
        "attacking in evaluation mode, random images",
        their_images_per_second=setting.batch / median_of(turns, 0),
        our_images_per_second=setting.batch / median_of(turns, 1),
        at_least=at_least,
        goal=goal,
        **shares,
    )


def fraction_of_convolution_limit(setting: Setting) -> dict[str, Any]:
    """The time of the convolutions alone, at their best, over that of our whole step."""
    images, labels = problem(setting.batch)
    ours = trainer_of("en1_resnet20", setting.batch)
    step_of(ours, images, labels)
    fractions, limits, speeds = [], [], []
    ways: dict[str, Counter[str]] = {"forward": Counter(), "input": Counter(), "weights": Counter()}
    cases = list(_convolutions(setting.batch))
    for _ in range(setting.repeats):
        limit = 0.0
        for case in cases:
            best = case.best()
            for name, (way, _) in best.items():
                ways[name][way] += case.count
            forward, back, weights = (best[name][1] for name in ("forward", "input", "weights"))
            attack, update = forward + back, forward + (back if case.inner else 0) + weights
            limit += case.count * (10 * attack + update)
        mine = seconds_of(lambda: step_of(ours, images, labels))
        fractions.append(limit / mine)
        limits.append(setting.batch / limit)
        speeds.append(setting.batch / mine)
    return told(
        fractions,
        f"PGD-10 training step, En_1ResNet20, batch {setting.batch}: its convolutions alone, each "
        "in its best precision, layout and order of weights, over the whole step",
        limit_images_per_second=statistics.median(limits),
        our_images_per_second=statistics.median(speeds),
        best_ways={name: dict(found) for name, found in ways.items()},
        at_least=0.55,
    )


@dataclass(frozen=True)
class _Case:
    """A shape of convolution of the network, and how often it occurs."""

    shape: tuple[int, int, int]
    conv: nn.Conv2d
    count: int
    inner: bool  # not the first: the update wants the gradient of its input too
    batch: int

    def best(self) -> dict[str, tuple[str, float]]:
        """Return the fastest way and its seconds for the pass forward and both gradients."""
        found: dict[str, dict[str, float]] = {"forward": {}, "input": {}, "weights": {}}
        for dtype in (torch.float32, torch.bfloat16):
            for layout in (torch.contiguous_format, torch.channels_last):
                for name, work in self._works(dtype, layout).items():
                    way = f"{dtype} {layout}".replace("torch.", "")
                    found[name][way] = min(seconds_of(work) for _ in "12")
            ordered = self._ordered(dtype) if computes_in(dtype) else {}
            for name, work in ordered.items():
                way = f"{dtype} ordered beforehand".replace("torch.", "")
                work()  # the order
                found[name][way] = min(seconds_of(work) for _ in "12")
        return {name: min(times.items(), key=lambda pair: pair[1]) for name, times in found.items()}

    def _works(self, dtype: torch.dtype, layout: torch.memory_format) -> dict[str, Work]:
        """Return torch's own operations."""
        x = torch.rand(self.batch, *self.shape).to(dtype).contiguous(memory_format=layout)
        weight = self.conv.weight.detach().to(dtype).contiguous(memory_format=layout)
        stride, padding = list(self.conv.stride), list(self.conv.padding)
        g = torch.rand_like(torch.conv2d(x, weight, None, stride, padding))

        def back(mask: list[bool]) -> object:
            return torch.ops.aten.convolution_backward(
                g, x, weight, None, stride, padding, [1, 1], False, [0, 0], 1, mask
            )

        return {
            "forward": lambda: torch.conv2d(x, weight, None, stride, padding),
            "input": lambda: back([True, False, False]),
            "weights": lambda: back([False, True, False]),
        }

    def _ordered(self, dtype: torch.dtype) -> dict[str, Work]:
        """Return what our engine does in attacks: weights in the library's own order."""
        weight = self.conv.weight.detach().to(dtype).contiguous(memory_format=torch.channels_last)
        stride, padding = tuple(self.conv.stride), tuple(self.conv.padding)
        layer = OrderedConvolution(Convolution(weight, None, stride, padding))
        x = torch.rand(self.batch, *self.shape).to(dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        g = torch.rand_like(layer(x))
        return {"forward": lambda: layer(x), "input": lambda: layer.back(g, x)}


def _convolutions(batch: int) -> Iterator[_Case]:
    """Yield the convolutions of a ResNet20 by shape."""
    found: dict[tuple[Any, ...], list[tuple[tuple[int, int, int], nn.Conv2d]]] = {}
    model = create_model("resnet20")

    def note(conv: nn.Conv2d, inputs: tuple[Tensor], _: Tensor) -> None:
        shape = tuple(inputs[0].shape[1:])
        found.setdefault((shape, *conv.weight.shape, conv.stride), []).append((shape, conv))

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(note)
    with torch.no_grad():
        model(torch.rand(1, 3, 32, 32))
    for same in found.values():
        shape, conv = same[0]
        yield _Case(shape, conv, len(same), conv.in_channels > 3, batch)


def noisy_over_noiseless(setting: Setting) -> dict[str, Any]:
    """What the noise costs."""
    images, labels = problem(setting.batch)
    noisy = trainer_of("en1_resnet20", setting.batch)
    quiet = trainer_of("en1_resnet20", setting.batch, noise=0.0)
    turns = in_turn(
        lambda: step_of(noisy, images, labels),
        lambda: step_of(quiet, images, labels),
        repeats=6 * setting.repeats,  # the difference is small, turns are noisy
    )
    return told(
        [with_noise / without for with_noise, without in turns],
        f"PGD-10 training step, En_1ResNet20, batch {setting.batch}: with noise over without, ours",
        at_most=1.10,
    )
