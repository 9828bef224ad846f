"""What the scores of many images amount to: accuracies, each with what it means.

``accuracy`` is that of a single prediction, in the mean over images and draws; this is what the
word means everywhere. ``averaged`` is that of the mean prediction over so many draws, the
Feynman-Kac estimate. ``always`` is the share of images right in every draw, and ``broken_in[k]``
what an attacker gains who may submit the same image k times and needs to be lucky once. Each has an
interval that holds for other images and other draws, as many of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from enresnet.data import Images
from enresnet.evaluation.scoring import Scored
from enresnet.evaluation.statistics import (
    ALONE,
    SharedNoise,
    accuracy_interval,
    calibration_error,
)

SUBMISSIONS = (1, 2, 5, 10, 20, 50, 100)
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
        return torch.empty(0) if self.scored is None else self.scored.scores

    @property
    def shared(self) -> SharedNoise:
        """How much the accuracy varies with noise that images may share."""
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
        return {"natural": self.natural.to_json(), "robust": robust}


def summarise(
    scored: Scored,
    data: Images,
    *,
    seconds: float,
    apart: bool = False,
    deterministic: bool = False,
    attack: str | None = None,
    settings: dict[str, Any] | None = None,
    claimed: Tensor | None = None,
    gradients: int = 0,
    evaluations: int = 0,
) -> Accuracy:
    """Return the accuracy that the scores of the images of ``data`` amount to.

    ``apart`` says that every image is known to have noise of its own.
    """
    scores, draws = scored.scores, scored.right.shape[1]
    averaged = scored.averaged[:, -1].float()
    submissions = [k for k in SUBMISSIONS if k <= draws]
    single = _without(scored.right)

    def interval(values: Tensor, without: Tensor, several: int = 1) -> Interval:
        # Of a mean over all choices of k among the draws, the variance is at most k times that of
        # the mean of single draws (Hoeffding, 1948), if k draws vary no more than one does.
        known = None if apart or draws == 1 else without * math.sqrt(several)
        return accuracy_interval(values, without=known)

    lost = {k: lost_in(scored.right.sum(dim=1), k, draws) for k in {*submissions, draws}}
    per_class = {
        name: float(scores[data.labels == number].mean())
        for number, name in enumerate(data.classes)
        if (data.labels == number).any()
    }
    return Accuracy(
        accuracy=float(scores.mean()),
        interval=interval(scores, single),
        averaged=float(averaged.mean()),
        averaged_interval=interval(averaged, scored.without.double().mean(dim=0)),
        always=float((1 - lost[draws]).mean()),
        always_interval=interval(1 - lost[draws], single, draws),
        broken_in={k: float(lost[k].mean()) for k in submissions},
        broken_in_intervals={k: interval(lost[k], single, k) for k in submissions},
        per_class=per_class,
        calibration_error=calibration_error(scored.confidence, scored.averaged[:, -1]),
        images=len(scored),
        draws=draws,
        seconds=seconds,
        seconds_a_prediction=scored.seconds / (len(scored) * draws),
        deterministic=deterministic,
        bad=scored.bad,
        shared_variance=(ALONE if apart or draws == 1 else SharedNoise.of(single)).variance,
        attack=attack,
        settings=settings,
        claimed=None if claimed is None else float(claimed.float().mean()),
        gradients=gradients / len(scored),
        evaluations=evaluations / len(scored),
        scored=scored,
    )


def broken_in(right: Tensor, submissions: int) -> float:
    """Return the share of images that are wrong at least once in so many draws."""
    return float(lost_in(right.sum(dim=1), submissions, right.shape[1]).mean())


def lost_in(counts: Tensor, submissions: int, draws: int) -> Tensor:
    """Return each image's chance to be wrong at least once, from its number of right draws.

    Without bias from any larger number of draws: of D draws with r right, k draws are all right
    with probability C(r, k) / C(D, k).
    """
    ways = math.comb(draws, submissions)
    chances = [1 - math.comb(count, submissions) / ways for count in range(draws + 1)]
    return torch.tensor(chances, dtype=torch.float64)[counts]


def _without(right: Tensor) -> Tensor:
    """Return the accuracy of all other draws, for each draw."""
    values = right.double()
    others = values.sum(dim=1, keepdim=True) - values
    return others.mean(dim=0) / max(1, right.shape[1] - 1)
