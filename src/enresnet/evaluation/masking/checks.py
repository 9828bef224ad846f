"""The checks for a hidden gradient: one function a question, its answer a `MaskingCheck`.

Each is measured on the same images, and warns only where the paired difference is beyond chance.
Where the images are so few that even the worst outcome would not have warned, it is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from enresnet.attacks import IFGSM, RandomNoise, Square
from enresnet.attacks.gradient import expected_gradient
from enresnet.attacks.losses import cross_entropy
from enresnet.evaluation.accuracy import Accuracy
from enresnet.evaluation.masking.measurements import Measurements
from enresnet.evaluation.masking.significance import (
    TOLERANCE,
    beyond_chance,
    nothing_to_lose,
    undecidable,
    worst_is_chance,
)
from enresnet.models.frozen import frozen
from enresnet.models.interface import Model

EFFORT = 0.02  # what more effort may still gain
NOTHING_LEFT = 0.05  # accuracy that an unbounded attacker may leave
RISES = 0.8  # share of images whose loss must rise along the gradient, more than at random
FLAT = 0.02  # share of images that may have no gradient
STARTS = (4, 8)

Verdict = Literal["pass", "warn", "undecided", "skipped"]


@dataclass(frozen=True)
class MaskingCheck:
    """One question about a model's gradient, its answer, and what a warning would mean.

    Attributes:
        name: What ought to be so, as in "many steps beat one".
        figure: What was measured, in words.
        verdict: ``"pass"``, ``"warn"``, ``"undecided"`` or ``"skipped"``. It is undecided where
            even the worst outcome would not have been a warning, as on a few images.
        meaning: What a warning would mean, and what to do.
        reason: Why it is undecided; empty for other verdicts.

    Example::

        from enresnet.evaluation import MaskingCheck

        check = MaskingCheck("many steps beat one", "IFGSM-20 leaves 9 %, FGSM 4 %", "warn", "...")
        print(check.warning)
    """

    name: str
    figure: str
    verdict: Verdict
    meaning: str
    reason: str = ""

    @property
    def told(self) -> str:
        """What was measured, and why that decides nothing where it does not."""
        return f"{self.figure}; {self.reason}" if self.reason else self.figure

    @property
    def warning(self) -> str:
        """The question, what was measured, and what it means, in a line."""
        return f"warning: {self.name}? {self.figure}. {self.meaning}"

    @classmethod
    def of(
        cls, name: str, figure: str, good: bool, meaning: str, *, undecided: str = ""
    ) -> MaskingCheck:
        """Return a check with its verdict; ``undecided`` says why it could not have warned."""
        if good and undecided:
            return cls(name, figure, "undecided", meaning, undecided)
        return cls(name, figure, "pass" if good else "warn", meaning)


def many_steps(measured: Measurements, one: Accuracy, many: Accuracy) -> MaskingCheck:
    """Check that many small steps do at least as much as one large."""
    return _no_better(
        "many steps beat one",
        measured.natural,
        many,
        one,
        "IFGSM-20",
        "FGSM",
        "One step finds what many do not: the loss is so rugged, or the noise so large, that "
        "following the gradient leads astray. Attack with more EOT draws and with other losses.",
    )


def no_gradient(measured: Measurements, queries: int) -> MaskingCheck:
    """Say that there is nothing to follow, and what is found without."""
    left = 100 * _searched_blindly(measured, queries).accuracy
    return MaskingCheck.of(
        "there is a gradient",
        f"none; Square with {queries} queries leaves {left:.1f} %",
        False,
        "The model's output does not depend on its images, as far as torch can tell: an operation "
        "without a gradient, no_grad, detach or numpy stands between. Nothing can be said of its "
        "robustness before a copy in torch operations is attacked.",
    )


def _searched_blindly(measured: Measurements, queries: int) -> Accuracy:
    return measured.under(
        Square(
            epsilon=measured.epsilon,
            steps=queries,
            eot=measured.eot,
            generator=measured.generator("square"),
        )
    )


def black_box(measured: Measurements, many: Accuracy, queries: int) -> list[MaskingCheck]:
    """Check that search without gradients finds no more than gradients did."""
    square = _searched_blindly(measured, queries)
    noise = measured.under(
        RandomNoise(
            epsilon=measured.epsilon,
            restarts=20,
            eot=measured.eot,
            generator=measured.generator("noise"),
        )
    )
    blind = _no_better(
        "seeing the model beats not seeing it",
        measured.natural,
        many,
        square,
        "IFGSM-20",
        f"Square with {queries} queries",
        "A search without gradients does better than one with them: they are hidden or wrong. Look "
        "for operations without a gradient (rounding, argmax, clipping), or attack a copy in which "
        "they are replaced.",
    )
    left = (many.scores > 0.5) & (measured.restarted(STARTS[1]).scores > 0.5)
    worse = torch.minimum(square.scores, noise.scores)
    broken = int((left & (worse < 0.5)).sum())

    def allowed(count: int) -> int:
        """Images on the edge fall either way: of those, chance alone breaks some."""
        return max(2, math.ceil(0.05 * count))

    search = MaskingCheck.of(
        "random search finds nothing more",
        f"of {int(left.sum())} images left by IFGSM-20 and PGD it breaks {broken}",
        broken <= allowed(int(left.sum())),
        "Random points near an image break what gradients left standing: the gradient does not "
        "point to where the model fails.",
        undecided=undecidable(
            measured.natural.scores > 0.5,
            left,
            "IFGSM-20 with PGD",
            lambda scores, _: int(scores.sum()) > allowed(int(scores.sum())),
        ),
    )
    return [blind, search]


def blind(measured: Measurements, name: str, source: Model, many: Accuracy) -> MaskingCheck:
    """Check that images made against another model do less than those made against this one."""
    attack = IFGSM(epsilon=measured.epsilon, steps=20, eot=measured.eot)
    return _no_better(
        f"seeing the model beats images made against {name}",
        measured.natural,
        many,
        measured.under(attack, source),
        "IFGSM-20",
        "transfer",
        "Images made against another model do better than those made against this one: its "
        "gradients are hidden, not its errors.",
    )


def unbounded(measured: Measurements, curve: Mapping[float, Accuracy]) -> MaskingCheck:
    """Check that nothing is left to an attacker who may change every pixel at will."""
    largest = max(curve)
    left, clean = curve[largest].accuracy, measured.natural.accuracy
    return MaskingCheck.of(
        "accuracy goes to 0 as epsilon grows",
        f"{100 * left:.1f} % left at epsilon = {largest:g}",
        left <= NOTHING_LEFT,
        "An attacker who may change every pixel at will must win. The attack is broken by the "
        "model: its gradient is 0, or not finite, or noise.",
        undecided=nothing_to_lose(clean, NOTHING_LEFT),
    )


def more_of_the_rest(measured: Measurements, eot: int) -> list[MaskingCheck]:
    """Check that more random starts, and more draws of the noise, stop helping."""
    # The first few starts help against any model: each finds images that are on the edge.
    few, many_starts = STARTS
    found = [
        effort(
            "more restarts stop helping",
            f"{many_starts} random starts rather than {few}",
            measured.natural,
            measured.restarted(few),
            measured.restarted(many_starts),
        )
    ]
    if eot > 1:
        many = IFGSM(epsilon=measured.epsilon, steps=20, eot=4 * eot)
        found.append(
            effort(
                "more EOT draws stop helping",
                f"{4 * eot} draws a gradient rather than {eot}",
                measured.natural,
                measured.iterative(20),
                measured.under(many),
            )
        )
    return found


def effort(name: str, what: str, clean: Accuracy, less: Accuracy, more: Accuracy) -> MaskingCheck:
    """Check that more effort no longer gains what would change a figure."""
    return MaskingCheck.of(
        name,
        f"{what}: {100 * less.accuracy:.1f} to {100 * more.accuracy:.1f} %",
        not beyond_chance(less, more, EFFORT),
        "The attack had not come to its end: quote the figure of the stronger one, and go on until "
        "more no longer helps.",
        undecided=worst_is_chance(clean, less, "the attack with less effort", EFFORT),
    )


def slope(measured: Measurements) -> list[MaskingCheck]:
    """Check that the loss rises along its own gradient, from the clean image to half the radius.

    It must rise more than along random signs: where a network has no margin, it rises along most.
    """
    rises, flat, count = 0, 0, len(measured.data)
    generator = measured.generator("random signs")
    draws = 4 * measured.eot if measured.eot > 1 else 1
    for images, labels in measured.data.batches(measured.options.batch_size):
        with frozen(measured.model) as call:

            def loss(x: Tensor, labels: Tensor = labels) -> Tensor:
                return cross_entropy(call(x.clone()), labels.to(x.device))

            gradient = expected_gradient(loss, images, draws).nan_to_num()
            random = torch.randint(2, images.shape, generator=generator).to(images).mul(2).sub(1)
            uphill, anywhere = (
                (images + measured.epsilon / 2 * signs).clamp(0, 1)
                for signs in (gradient.sign(), random)
            )
            with torch.no_grad():
                here, there, elsewhere = (
                    torch.stack([loss(x) for _ in range(draws)]).mean(dim=0)
                    for x in (images, uphill, anywhere)
                )
        still = gradient.flatten(1).abs().amax(dim=1) == 0
        flat += int(still.sum())
        rises += int(((there > here) & (there > elsewhere))[~still].sum())
    return [
        MaskingCheck.of(
            "there is a gradient",
            f"{100 * flat / count:.1f} % of images have none",
            flat <= FLAT * count,
            "The loss does not change with the image, as far as backpropagation can tell: an "
            "operation without a gradient, or a softmax so sure that its loss is 0 in floating "
            "point.",
        ),
        MaskingCheck.of(
            "loss rises along the gradient",
            f"for {100 * rises / count:.1f} % of images, more than along random signs",
            rises >= RISES * count,
            "The gradient does not tell where the loss rises: it is noise, or that of something "
            "else than the model computes, or logits are so large that the loss is 0 in floating "
            "point on either side.",
        ),
    ]


def natural_training(measured: Measurements, trained: Model) -> MaskingCheck:
    """Check that the same network, trained without attacks, falls (Sec. 4.4)."""
    attack = IFGSM(epsilon=measured.epsilon, steps=20, eot=measured.eot)
    result = measured.measured(trained, trained, attack)
    left, own = result.robust[attack.name].accuracy, measured.iterative(20).accuracy
    # About 0 at the paper's radius; where images are easier, far below what training keeps.
    allowed = max(NOTHING_LEFT, own / 2)
    return MaskingCheck.of(
        "without adversarial training it falls",
        f"{100 * result.natural.accuracy:.1f} % clean, {100 * left:.1f} % under IFGSM-20",
        left <= allowed,
        "Noise and averaging alone seem to defend: the attack does not see through them.",
        undecided=nothing_to_lose(result.natural.accuracy, allowed),
    )


def _no_better(
    name: str,
    clean: Accuracy,
    strong: Accuracy,
    weak: Accuracy,
    strong_name: str,
    weak_name: str,
    meaning: str,
) -> MaskingCheck:
    """Check that the attack that should be the stronger one is."""
    return MaskingCheck.of(
        name,
        f"{strong_name} leaves {100 * strong.accuracy:.1f} %, {weak_name} "
        f"{100 * weak.accuracy:.1f} %",
        not beyond_chance(strong, weak, TOLERANCE),
        meaning,
        undecided=worst_is_chance(clean, strong, strong_name, TOLERANCE),
    )


SKIPPED_BLIND = MaskingCheck(
    "seeing the model beats images made against another", "no other model given", "skipped", ""
)
SKIPPED_NATURALLY_TRAINED = MaskingCheck(
    "without adversarial training it falls", "no such network given", "skipped", ""
)
