r"""Intervals and tests for accuracies of models that may answer differently each time.

An image's score is the share of draws in which it is classified rightly. The accuracy is the mean
score, and its interval Wilson's (1927) for as many images scored once. Scores between 0 and 1 vary
less than right or wrong does, so with them the interval errs on the safe side; an effective number
of images computed from their spread would not cover when a few images decide.

.. math:: \frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

That holds where every image has noise of its own. Where images share a draw, as under dropout with
one mask a batch, whole draws are better or worse than others: what the draws' means vary beyond
what independent noise explains widens the interval.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import torch
from scipy.special import stdtrit
from scipy.stats import binom
from torch import Tensor

CONFIDENCE = 0.95
RESAMPLES = 10_000
BINS = 15  # of the calibration error


def accuracy_interval(
    scores: Tensor, confidence: float = CONFIDENCE, *, right: Tensor | None = None
) -> tuple[float, float]:
    """Return the interval of the mean of ``scores``, one an image, each between 0 and 1.

    ``right``, images x draws, lets draws that images share widen it.
    """
    count = len(scores)
    if count == 0:
        raise ValueError("scores must hold at least one image, found none")
    p = min(max(float(scores.double().mean()), 0.0), 1.0)
    n = float(count)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    if right is not None and right.shape[1] > 1:
        half = math.hypot(half, _shared_error(right, confidence))
    return max(0.0, centre - half), min(1.0, centre + half)


def _shared_error(right: Tensor, confidence: float) -> float:
    """Return the half-width that draws shared by images add: 0 for independent noise."""
    values = right.double()
    images, draws = values.shape
    between = float(values.mean(dim=0).var(correction=1))
    # of the mean of a draw, if each image had noise of its own
    alone = float(values.var(dim=1, correction=1).mean()) / images
    # The variance of few draws is itself unsure; up to this ratio it is no sign of sharing.
    unsure = 1 + 3 * math.sqrt(2 / (draws - 1))
    if between <= unsure * alone:
        return 0.0
    return float(stdtrit(draws - 1, (1 + confidence) / 2)) * math.sqrt((between - alone) / draws)


def paired_difference(
    scores: Tensor, others: Tensor, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the mean of ``scores`` less that of ``others`` on the same images, and its interval.

    Student's t over the differences of single images: what both models find easy or hard cancels.
    Never narrower than Wilson's interval is for as many images without a single difference.
    """
    if scores.shape != others.shape or len(scores) < 2:
        raise ValueError(
            f"scores must be of the same images, two at least; found {len(scores)} and "
            f"{len(others)}"
        )
    differences = scores.double() - others.double()
    count, mean = len(differences), float(differences.mean())
    quantile = float(stdtrit(count - 1, (1 + confidence) / 2))
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = max(
        quantile * math.sqrt(float(differences.var(correction=1)) / count),
        z * z / (count + z * z),
    )
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class Comparison:
    """Whether one model is more accurate than another on the same images."""

    difference: float
    interval: tuple[float, float]  # 95 %, paired
    p_value: float  # of no difference, two-sided
    test: str
    images: int

    @property
    def verdict(self) -> str:
        """``"better"``, ``"worse"`` or ``"undecided"``, at the 5 % level."""
        if self.p_value >= 1 - CONFIDENCE:
            return "undecided"
        return "better" if self.difference > 0 else "worse"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**asdict(self), "interval": list(self.interval), "verdict": self.verdict}


def compare(scores: Tensor, others: Tensor, *, seed: int = 0) -> Comparison:
    """Compare the scores of two models on the same images.

    Right-or-wrong scores are tested by McNemar's (1947) exact test, shares of draws by a paired
    bootstrap over images.
    """
    mean, low, high = paired_difference(scores, others)
    differences = scores.double() - others.double()
    if bool(((scores == 0) | (scores == 1)).all() and ((others == 0) | (others == 1)).all()):
        p_value, test = _mcnemar(int((differences > 0).sum()), int((differences < 0).sum()))
    else:
        p_value, test = _bootstrap(differences, seed), f"paired bootstrap, {RESAMPLES:,} resamples"
    return Comparison(mean, (low, high), p_value, test, len(scores))


def _mcnemar(wins: int, losses: int) -> tuple[float, str]:
    decided = wins + losses
    p = 1.0 if decided == 0 else min(1.0, 2 * float(binom.cdf(min(wins, losses), decided, 0.5)))
    return p, "McNemar, exact"


def _bootstrap(differences: Tensor, seed: int) -> float:
    """Return the two-sided p-value of a mean of 0: of the centred differences, resampled."""
    generator = torch.Generator().manual_seed(seed)
    count, mean = len(differences), float(differences.mean())
    centred = differences - mean
    reached, done = 0, 0
    while done < RESAMPLES:
        size = min(max(1, 4_000_000 // count), RESAMPLES - done)
        rows = torch.randint(count, (size, count), generator=generator)
        reached += int((centred[rows].mean(dim=1).abs() >= abs(mean)).sum())
        done += size
    return (reached + 1) / (RESAMPLES + 1)


def calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """Return how far confidence is from accuracy, over bins of confidence (Naeini et al., 2015)."""
    place = (confidence.double() * bins).long().clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64)
    gap.index_add_(0, place, confidence.double() - right.double())
    return float(gap.abs().sum() / len(confidence))
