"""From the scores of many images to accuracies, each with its interval."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from enresnet.data import Images
from enresnet.evaluation.accuracy import Accuracy, Interval
from enresnet.evaluation.scoring import Scored
from enresnet.evaluation.statistics import (
    ALONE,
    SharedNoise,
    accuracy_interval,
    calibration_error,
)

SUBMISSIONS = (1, 2, 5, 10, 20, 50, 100)


def summarise(
    scored: Scored,
    data: Images,
    *,
    seconds: float,
    independent: bool = False,
    deterministic: bool = False,
    attack: str | None = None,
    settings: dict[str, Any] | None = None,
    claimed: Tensor | None = None,
    gradients: int = 0,
    evaluations: int = 0,
    norms: Tensor | None = None,
    digest: str | None = None,
    used: str | None = None,
) -> Accuracy:
    """Return the accuracy that the scores of the images of ``data`` amount to.

    ``independent`` says that every image is known to have noise of its own; ``digest`` is that of
    the dataset that the images are from, and ``used`` that of the images themselves.
    """
    scores, draws = scored.scores, scored.right.shape[1]
    averaged = scored.averaged[:, -1].float()
    submissions = [k for k in SUBMISSIONS if k <= draws]
    single = _without(scored.right)

    def interval(values: Tensor, without: Tensor, several: int = 1) -> Interval:
        # Of a mean over all choices of k among the draws, the variance is at most k times that of
        # the mean of single draws (Hoeffding, 1948), if k draws vary no more than one does.
        known = None if independent or draws == 1 else without * math.sqrt(several)
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
        shared_variance=(ALONE if independent or draws == 1 else SharedNoise.of(single)).variance,
        attack=attack,
        settings=settings,
        claimed=None if claimed is None else float(claimed.float().mean()),
        gradients=gradients / len(scored),
        evaluations=evaluations / len(scored),
        data=digest,
        used=used,
        scored=scored,
        norms=norms,
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
