"""An accuracy with its interval, and everything that is known beside it.

``accuracy`` is that of a single prediction, in the mean over images and draws; this is what the
word means everywhere. ``averaged`` is that of the mean prediction over so many draws, the
Feynman-Kac estimate. ``always`` is the share of images right in every draw, and ``broken_in[k]``
what an attacker gains who may submit the same image k times and needs to be lucky once. Each has an
interval that holds for other images and other draws, as many of them.

Stored results are read without torch: the command line shows them at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from enresnet.evaluation.scoring import Scored
    from enresnet.evaluation.statistics import SharedNoise

NATURAL = "natural"  # what accuracy on clean images is called, where attacks have their names
Interval = tuple[float, float]


@dataclass(frozen=True)
class Accuracy:
    """The accuracy on some images, with its 95 % interval and what stands beside it.

    Every share is between 0 and 1. Every interval is of 95 % and holds for other images and other
    draws, as many of them.

    Attributes:
        accuracy: That of a single prediction, in the mean over images and draws.
        interval: That of ``accuracy``: low and high.
        averaged: The accuracy of the mean prediction over all draws, the Feynman-Kac estimate.
        averaged_interval: That of ``averaged``.
        always: The share of images that every draw gets right.
        always_interval: That of ``always``.
        broken_in: By the number of times that an attacker may submit the same image: the share of
            images that are wrong at least once.
        broken_in_intervals: Those of ``broken_in``, by the same numbers.
        per_class: ``accuracy`` by the name of the class; classes without an image are left out.
        calibration_error: The expected calibration error of the mean prediction.
        images: How many images there are.
        draws: How many predictions each of them got.
        seconds: What attack and predictions took together.
        seconds_a_prediction: What one prediction of one image took.
        deterministic: Whether the model was found to answer always the same.
        bad: Predictions that were not numbers; they count as wrong.
        shared_variance: The variance of ``accuracy`` by noise that images may share; 0 where each
            image has noise of its own.
        attack: The attack with all its options, as ``repr`` shows it; None for clean images.
        settings: The attack's options as plain JSON; None for clean images.
        claimed: The accuracy that AutoAttack reports itself; None for other attacks.
        gradients: Gradients that the attack took, in the mean over images.
        evaluations: Forward passes that the attack took, alike; those of the gradients included.
        data: Digest of all images of the dataset, those beyond ``limit`` included; None where it is
            not known.
        used: Digest of the images that were measured; None where it is not known.
        scored: Which draws were right, image by image; None where it was read from a file.
        norms: The size of each image's perturbation, under an attack that minimises it; None for
            other attacks, and where it was read from a file.

    Example::

        clean = enresnet.evaluate(model, (images, labels)).natural
        low, high = clean.interval
        print(f"{clean.accuracy:.1%} ({low:.1%} to {high:.1%})")
    """

    accuracy: float
    interval: Interval
    averaged: float
    averaged_interval: Interval
    always: float
    always_interval: Interval
    broken_in: dict[int, float]
    broken_in_intervals: dict[int, Interval]
    per_class: dict[str, float]
    calibration_error: float
    images: int
    draws: int
    seconds: float
    seconds_a_prediction: float
    deterministic: bool = False
    bad: int = 0
    shared_variance: float = 0.0
    attack: str | None = None
    settings: dict[str, Any] | None = None
    claimed: float | None = None
    gradients: float = 0.0
    evaluations: float = 0.0
    data: str | None = field(default=None, repr=False, compare=False)
    used: str | None = field(default=None, repr=False, compare=False)
    scored: Scored | None = field(default=None, repr=False, compare=False)
    norms: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def scores(self) -> Tensor:
        """The share of draws in which each image is right; empty if read from a file."""
        import torch

        return torch.empty(0) if self.scored is None else self.scored.scores

    @property
    def shared(self) -> SharedNoise:
        """How much the accuracy varies with noise that images may share."""
        from enresnet.evaluation.statistics import SharedNoise

        return SharedNoise(self.shared_variance, self.draws - 1)

    def convergence(self) -> list[dict[str, float]]:
        """Return both accuracies as they would be found with fewer draws.

        Returns:
            A row for each number of draws, with ``draws``, ``accuracy`` and ``averaged``.

        Raises:
            ValueError: The accuracy was read from a file, which keeps no single draws.
        """
        if self.scored is None:
            raise ValueError("convergence needs single draws; evaluate again: files keep none")
        right, averaged = self.scored.right.float(), self.scored.averaged.float()
        return [
            {
                "draws": draws,
                "accuracy": float(right[:, :draws].mean()),
                "averaged": float(averaged[:, draws - 1].mean()),
            }
            for draws in range(1, right.shape[1] + 1)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the images' digests and what is of single images, as plain JSON."""
        left_out = ("data", "used", "scored", "norms")
        values = {name: value for name, value in vars(self).items() if name not in left_out}
        return {
            **values,
            "interval": list(self.interval),
            "averaged_interval": list(self.averaged_interval),
            "always_interval": list(self.always_interval),
            "broken_in": {str(k): value for k, value in self.broken_in.items()},
            "broken_in_intervals": {
                str(k): list(value) for k, value in self.broken_in_intervals.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Accuracy:
        """Return what :meth:`to_json` stored."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        intervals = {name: tuple(value) for name, value in known.items() if "interval" in name}
        return cls(
            **known
            | {name: value for name, value in intervals.items() if name != "broken_in_intervals"}
            | {
                "broken_in": {int(k): value for k, value in values["broken_in"].items()},
                "broken_in_intervals": {
                    int(k): tuple(value) for k, value in values["broken_in_intervals"].items()
                },
            }
        )
