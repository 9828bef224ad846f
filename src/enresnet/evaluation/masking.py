"""Signs that a defence hides its gradient rather than being robust (Sec. 4.4).

After Athalye, Carlini and Wagner (2018) and Carlini et al. (2019): where gradients tell the truth,
many steps beat one, seeing the model beats not seeing it, no model survives an unbounded attacker,
more effort stops paying, and random search finds nothing that gradients missed. Each is measured
on the same images, and a check warns only where the paired difference is beyond chance.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from enresnet import checks
from enresnet.attacks import FGSM, IFGSM, PGD, Attack, RandomNoise, Square
from enresnet.attacks.gradient import Model, expected_gradient, frozen
from enresnet.attacks.ifgsm import check_epsilon
from enresnet.attacks.losses import cross_entropy
from enresnet.data import Images
from enresnet.evaluation.accuracy import Accuracy, Evaluation
from enresnet.evaluation.measure import as_images, transfer
from enresnet.evaluation.statistics import paired_difference
from enresnet.progress import progress_bar
from enresnet.randomness import named_generator

TOLERANCE = 0.01  # a difference below a point is none
EFFORT = 0.02  # what more effort may still gain
NOTHING_LEFT = 0.05  # accuracy that an unbounded attacker may leave
RISES = 0.8  # share of images whose loss must rise along the gradient
FLAT = 0.02  # share of images that may have no gradient
STEPS = (1, 2, 5, 10, 20, 50, 100)
STARTS = (4, 8)


@dataclass(frozen=True)
class Check:
    """One question, its answer, and what a warning would mean."""

    name: str
    figure: str
    verdict: str  # pass, warn, or skipped
    meaning: str

    @classmethod
    def of(cls, name: str, figure: str, good: bool, meaning: str) -> Check:
        """Return a check with its verdict."""
        return cls(name, figure, "pass" if good else "warn", meaning)


@dataclass(frozen=True)
class Point:
    """An accuracy on a curve."""

    at: float
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and two curves."""

    checks: tuple[Check, ...]
    against_epsilon: tuple[Point, ...]
    against_steps: tuple[Point, ...]
    images: int
    epsilon: float
    eot: int
    draws: int
    seed: int
    data: str  # its fingerprint

    @property
    def warnings(self) -> list[Check]:
        """The checks that warn."""
        return [check for check in self.checks if check.verdict == "warn"]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


def diagnose(
    model: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    *,
    epsilon: float | None = None,
    eot: int = 1,
    draws: int = 10,
    limit: int | None = None,
    batch_size: int = 128,
    queries: int = 300,
    oracles: Mapping[str, Model] | None = None,
    natural: Model | None = None,
    seed: int = 0,
    journal: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Diagnosis:
    """Return what speaks for and against the gradients of ``model``.

    ``oracles`` are other models whose adversarial images are tried on it; ``natural`` is the same
    network trained without attacks, which no honest attack leaves standing. ``queries`` are the
    steps of the black-box search. ``journal``, a folder, keeps results as they come, and the same
    call goes on from there.
    """
    radius = check_epsilon(epsilon, "linf")
    checks.integer("eot", eot, low=1)
    if limit is not None:
        checks.integer("limit", limit, low=2)
    data = as_images(dataset).first(limit)
    book = None if journal is None else Path(journal)
    patient = _Patient(model, data, radius, eot, draws, batch_size, seed, book)
    oracles = oracles or {}
    stages = 5 + len(STEPS) + len(_radii(radius)) + len(oracles) + (natural is not None)
    with progress_bar("diagnosing", stages, show=progress) as advance:
        patient.advance = advance
        one, many = patient.under(FGSM(epsilon=radius, eot=eot)), patient.iterative(20)
        steps = {number: one if number == 1 else patient.iterative(number) for number in STEPS}
        curve = {size: patient.iterative(20, size) for size in _radii(radius)}
        found = [
            _many_steps(one, many),
            *_black_box(patient, many, queries),
            *(_blind(patient, name, oracle, many) for name, oracle in oracles.items()),
            *([] if oracles else [_SKIPPED_BLIND]),
            _unbounded(curve),
            _effort("more steps stop helping", "100 steps rather than 20", many, steps[100]),
            *_more_of_the_rest(patient, eot),
            *_slope(patient),
            _SKIPPED_NATURAL if natural is None else _natural(patient, natural),
        ]
    return Diagnosis(
        checks=tuple(found),
        against_epsilon=tuple(_point(size, value) for size, value in curve.items()),
        against_steps=tuple(_point(number, value) for number, value in steps.items()),
        images=len(patient.data),
        epsilon=radius,
        eot=eot,
        draws=draws,
        seed=seed,
        data=patient.data.fingerprint(),
    )


class _Patient:
    """The model, the images, and what was measured already."""

    def __init__(
        self,
        model: Model,
        data: Images,
        epsilon: float,
        eot: int,
        draws: int,
        batch_size: int,
        seed: int,
        journal: Path | None,
    ) -> None:
        self.model, self.data, self.epsilon, self.eot = model, data, epsilon, eot
        self._journal = journal
        self.options: dict[str, Any] = {
            "draws": draws,
            "batch_size": batch_size,
            "seed": seed,
            "progress": False,
        }
        self.seed = seed
        self.advance: Any = lambda _: None
        self._known: dict[str, Accuracy] = {}

    def under(self, attack: Attack, oracle: Model | None = None) -> Accuracy:
        """Return the accuracy under an attack, measured once."""
        key = f"{attack!r} of {id(oracle)}"
        if key not in self._known:
            result = self.measured(self.model if oracle is None else oracle, self.model, attack)
            self._known[key] = result.robust[attack.name]
        return self._known[key]

    def measured(self, oracle: Model, target: Model, attack: Attack) -> Evaluation:
        """Return what an attack on one model does to another."""
        own = None
        if self._journal is not None:
            # Each has a journal of its own, named after what decides its result but the models.
            place = (oracle is self.model, target is self.model, len(self._known))
            about = repr((attack.settings(), place, len(self.data), self.options))
            own = self._journal / hashlib.sha256(about.encode()).hexdigest()[:16]
        result = transfer(oracle, target, self.data, [attack], journal=own, **self.options)
        self.advance(1)
        return result

    def iterative(self, steps: int, size: float | None = None) -> Accuracy:
        """Return the accuracy under IFGSM; a few steps are long enough to cross the ball."""
        radius = self.epsilon if size is None else size
        return self.under(
            IFGSM(
                epsilon=radius, step_size=max(radius / 4, radius / steps), steps=steps, eot=self.eot
            )
        )

    def restarted(self, number: int) -> Accuracy:
        """Return the accuracy under PGD from so many random starts."""
        return self.under(
            PGD(
                epsilon=self.epsilon,
                restarts=number,
                eot=self.eot,
                generator=self.generator("restarts"),
            )
        )

    def generator(self, name: str) -> torch.Generator:
        """Return a stream for one purpose."""
        return named_generator(self.seed, name)


def _many_steps(one: Accuracy, many: Accuracy) -> Check:
    return _no_better(
        "many steps beat one",
        many,
        one,
        "IFGSM-20",
        "FGSM",
        "One step finds what many do not: the loss is so rugged, or the noise so large, that "
        "following the gradient leads astray. Attack with more EOT draws and with other losses.",
    )


def _black_box(patient: _Patient, many: Accuracy, queries: int) -> list[Check]:
    eot = patient.eot
    square = patient.under(
        Square(
            epsilon=patient.epsilon,
            steps=queries,
            eot=eot,
            generator=patient.generator("square"),
        )
    )
    noise = patient.under(
        RandomNoise(
            epsilon=patient.epsilon, restarts=20, eot=eot, generator=patient.generator("noise")
        )
    )
    blind = _no_better(
        "seeing the model beats not seeing it",
        many,
        square,
        "IFGSM-20",
        f"Square with {queries} queries",
        "A search without gradients does better than one with them: they are hidden or wrong. Look "
        "for operations without a gradient (rounding, argmax, clipping), or attack a copy in which "
        "they are replaced.",
    )
    left = (many.scores > 0.5) & (patient.restarted(STARTS[1]).scores > 0.5)
    worse = torch.minimum(square.scores, noise.scores)
    broken = int((left & (worse < 0.5)).sum())
    # Images on the edge fall either way: of those, chance alone breaks some.
    allowed = max(2, math.ceil(0.05 * int(left.sum())))
    search = Check.of(
        "random search finds nothing more",
        f"of {int(left.sum())} images left by IFGSM-20 and PGD it breaks {broken}",
        broken <= allowed,
        "Random points near an image break what gradients left standing: the gradient does not "
        "point to where the model fails.",
    )
    return [blind, search]


def _blind(patient: _Patient, name: str, oracle: Model, many: Accuracy) -> Check:
    attack = IFGSM(epsilon=patient.epsilon, steps=20, eot=patient.eot)
    return _no_better(
        f"seeing the model beats images made against {name}",
        many,
        patient.under(attack, oracle),
        "IFGSM-20",
        "transfer",
        "Images made against another model do better than those made against this one: its "
        "gradients are hidden, not its errors.",
    )


def _unbounded(curve: Mapping[float, Accuracy]) -> Check:
    largest = max(curve)
    left = curve[largest].accuracy
    return Check.of(
        "accuracy goes to 0 as epsilon grows",
        f"{100 * left:.1f} % left at epsilon = {largest:g}",
        left <= NOTHING_LEFT,
        "An attacker who may change every pixel at will must win. The attack is broken by the "
        "model: its gradient is 0, or not finite, or noise.",
    )


def _more_of_the_rest(patient: _Patient, eot: int) -> list[Check]:
    # The first few starts help against any model: each finds images that are on the edge.
    few, many_starts = STARTS
    found = [
        _effort(
            "more restarts stop helping",
            f"{many_starts} random starts rather than {few}",
            patient.restarted(few),
            patient.restarted(many_starts),
        )
    ]
    if eot > 1:
        many = IFGSM(epsilon=patient.epsilon, steps=20, eot=4 * eot)
        found.append(
            _effort(
                "more EOT draws stop helping",
                f"{4 * eot} draws a gradient rather than {eot}",
                patient.iterative(20),
                patient.under(many),
            )
        )
    return found


def _effort(name: str, what: str, less: Accuracy, more: Accuracy) -> Check:
    mean, low = _difference(less, more)
    return Check.of(
        name,
        f"{what}: {100 * less.accuracy:.1f} to {100 * more.accuracy:.1f} %",
        not (mean > EFFORT and low > 0),
        "The attack had not come to its end: quote the figure of the stronger one, and go on until "
        "more no longer helps.",
    )


def _slope(patient: _Patient) -> list[Check]:
    """Look at the loss along its own gradient, from the clean image to half the radius."""
    rises, flat, count = 0, 0, len(patient.data)
    draws = 4 * patient.eot if patient.eot > 1 else 1
    for images, labels in patient.data.batches(patient.options["batch_size"]):
        with frozen(patient.model):

            def loss(x: Tensor, labels: Tensor = labels) -> Tensor:
                return cross_entropy(patient.model(x.clone()), labels.to(x.device))

            gradient = expected_gradient(loss, images, draws).nan_to_num()
            moved = (images + patient.epsilon / 2 * gradient.sign()).clamp(0, 1)
            with torch.no_grad():
                here, there = (
                    torch.stack([loss(x) for _ in range(draws)]).mean(dim=0)
                    for x in (images, moved)
                )
        still = gradient.flatten(1).abs().amax(dim=1) == 0
        flat += int(still.sum())
        rises += int((there > here)[~still].sum())
    return [
        Check.of(
            "there is a gradient",
            f"{100 * flat / count:.1f} % of images have none",
            flat <= FLAT * count,
            "The loss does not change with the image, as far as backpropagation can tell: an "
            "operation without a gradient, or a softmax so sure that its loss is 0 in floating "
            "point.",
        ),
        Check.of(
            "loss rises along the gradient",
            f"for {100 * rises / count:.1f} % of images, half a radius along its sign",
            rises >= RISES * count,
            "The gradient does not tell where the loss rises: it is noise, or that of something "
            "else than the model computes.",
        ),
    ]


def _natural(patient: _Patient, natural: Model) -> Check:
    attack = IFGSM(epsilon=patient.epsilon, steps=20, eot=patient.eot)
    result = patient.measured(natural, natural, attack)
    left, own = result.robust[attack.name].accuracy, patient.iterative(20).accuracy
    return Check.of(
        "without adversarial training it falls",
        f"{100 * result.natural.accuracy:.1f} % clean, {100 * left:.1f} % under IFGSM-20",
        # About 0 at the paper's radius; where images are easier, far below what training keeps.
        left <= max(NOTHING_LEFT, own / 2),
        "Noise and averaging alone seem to defend: the attack does not see through them.",
    )


def _no_better(
    name: str, strong: Accuracy, weak: Accuracy, strong_name: str, weak_name: str, meaning: str
) -> Check:
    """Check that the attack that should be the stronger one is."""
    mean, low = _difference(strong, weak)
    return Check.of(
        name,
        f"{strong_name} leaves {100 * strong.accuracy:.1f} %, {weak_name} "
        f"{100 * weak.accuracy:.1f} %",
        not (mean > TOLERANCE and low > 0),
        meaning,
    )


def _difference(one: Accuracy, two: Accuracy) -> tuple[float, float]:
    """Return how much more accurate the first is, and at least is."""
    shared = one.shared.and_of(two.shared)
    mean, low, _ = paired_difference(one.scores, two.scores, shared=shared)
    return mean, low


_SKIPPED_BLIND = Check(
    "seeing the model beats images made against another", "no other model given", "skipped", ""
)
_SKIPPED_NATURAL = Check(
    "without adversarial training it falls", "no such network given", "skipped", ""
)


def _radii(epsilon: float) -> Sequence[float]:
    """Return radii from a quarter of epsilon on, doubling, up to all of the range."""
    sizes = [epsilon * 2.0**power for power in range(-2, 12)]
    return [size for size in sizes if size < 1] + [1.0]


def _point(at: float, value: Accuracy) -> Point:
    return Point(float(at), value.accuracy, *value.interval)
