"""What an evaluation finds: accuracies, each with what it means and with its interval.

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
    """How many images are classified rightly, and how sure that is."""

    accuracy: float
    interval: Interval  # 95 %, over images and draws
    averaged: float
    averaged_interval: Interval
    always: float
    always_interval: Interval
    broken_in: dict[int, float]  # submissions of the same image -> share of images lost
    broken_in_intervals: dict[int, Interval]
    per_class: dict[str, float]
    calibration_error: float
    images: int
    draws: int
    seconds: float  # attack and predictions
    seconds_a_prediction: float  # of one image, once
    deterministic: bool = False  # two predictions of the first images were the same
    bad: int = 0  # predictions that were not numbers; they count as wrong
    shared_variance: float = 0.0  # of the accuracy, by noise that images may share
    attack: str | None = None
    settings: dict[str, Any] | None = None  # of the attack, exactly
    claimed: float | None = None  # what another library's attack says of itself
    gradients: float = 0.0  # gradient evaluations that the attack took, an image
    evaluations: float = 0.0  # and evaluations of the model altogether
    scored: Scored | None = field(default=None, repr=False, compare=False)

    @property
    def scores(self) -> Tensor:
        """The share of draws in which each image is right."""
        import torch

        return torch.empty(0) if self.scored is None else self.scored.scores

    @property
    def shared(self) -> SharedNoise:
        """How much the accuracy varies with noise that images may share."""
        from enresnet.evaluation.statistics import SharedNoise

        return SharedNoise(self.shared_variance, self.draws - 1)

    def convergence(self) -> list[dict[str, float]]:
        """Return both accuracies as they would be found with fewer draws."""
        assert self.scored is not None
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
        """Return everything but the scores of single images, as plain JSON."""
        values = {name: value for name, value in vars(self).items() if name != "scored"}
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
        """Return what :meth:`to_json` stored; the scores of single images are not among it."""
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


@dataclass(frozen=True)
class Evaluation:
    """Accuracy on clean images, and under each attack by its name."""

    natural: Accuracy
    robust: dict[str, Accuracy]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        robust = {name: value.to_json() for name, value in self.robust.items()}
        return {NATURAL: self.natural.to_json(), "robust": robust}
