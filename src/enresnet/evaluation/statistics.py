r"""Intervals and tests for accuracies of models that may answer differently each time.

An image's score is the share of draws in which it is classified rightly. The accuracy is the mean
score, and its interval Wilson's (1927) for as many images scored once. Scores between 0 and 1 vary
less than right or wrong does, so with them the interval errs on the safe side; an effective number
of images computed from their spread would not cover when a few images decide.

.. math:: \frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

That holds where every image has noise of its own. Where images may share a draw, as under dropout
with one mask a batch, whole draws are better or worse than others. What a figure varies between
draws, by the jackknife that leaves out one after the other, widens the interval, with Student's
t for so many draws: two draws tell little.

.. math:: h^2 = h_{\mathrm{Wilson}}^2
          + t_{D-1}^2 \frac{D-1}{D} \sum_d (\hat p_{-d} - \bar p_{-})^2

Two models that are compared have such draws each, and the difference varies with both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from scipy.special import bdtr, stdtr, stdtrit
from torch import Tensor

CONFIDENCE = 0.95
FLIPS = 10_000
BINS = 15  # of the calibration error


def accuracy_interval(
    scores: Tensor, confidence: float = CONFIDENCE, *, without: Tensor | None = None
) -> tuple[float, float]:
    """Return the interval of an accuracy, the mean of the scores of single images.

    Args:
        scores: The share of draws in which each image is right, between 0 and 1.
        confidence: How often such an interval covers; 0.95 by default.
        without: For each draw, the accuracy that all others give: it lets noise that images share
            widen the interval. By default each image has noise of its own.

    Shape:
        - scores: images
        - without: draws

    Returns:
        Low and high, both between 0 and 1.

    Raises:
        ValueError: There is no score.

    Example::

        from enresnet.evaluation import accuracy_interval, score

        low, high = accuracy_interval(score(model, images, labels, draws=5))
    """
    count = len(scores)
    if count == 0:
        raise ValueError("scores must hold at least one image, found none")
    p = min(max(float(scores.double().mean()), 0.0), 1.0)
    n = float(count)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    if without is not None and len(without) > 1:
        half = math.hypot(half, _jackknife_error(without, confidence))
    return max(0.0, centre - half), min(1.0, centre + half)


def _jackknife_error(without: Tensor, confidence: float) -> float:
    """Return the half-width that the draws alone give a figure."""
    return SharedNoise.of(without).half_width(confidence)


@dataclass(frozen=True)
class SharedNoise:
    """How much a figure varies with noise that images share, as under one mask a batch.

    Attributes:
        variance: The variance of the figure by that noise; 0 by default, for images with noise of
            their own.
        freedom: Degrees of freedom of the estimate: draws less one.

    Example::

        found = enresnet.evaluate(model, (images, labels), draws=3)
        print(found.natural.shared.half_width(0.95))  # 0.0: our networks keep images apart
    """

    variance: float = 0.0
    freedom: int = 0

    @classmethod
    def of(cls, without: Tensor) -> SharedNoise:
        """Return it by the jackknife, from the figures that all draws but one give."""
        draws = len(without)
        variance = (draws - 1) ** 2 / draws * float(without.double().var(correction=1))
        return cls(variance, draws - 1)

    def and_of(self, other: SharedNoise) -> SharedNoise:
        """Return that of the difference of two figures, with draws of their own."""
        known = [noise.freedom for noise in (self, other) if noise.variance > 0]
        return SharedNoise(self.variance + other.variance, min(known, default=0))

    def half_width(self, confidence: float) -> float:
        """Return what it alone adds to either side of an interval."""
        if self.variance == 0:
            return 0.0
        return float(stdtrit(self.freedom, (1 + confidence) / 2)) * math.sqrt(self.variance)


ALONE = SharedNoise()


def paired_difference(
    scores: Tensor,
    others: Tensor,
    confidence: float = CONFIDENCE,
    *,
    shared: SharedNoise = ALONE,
) -> tuple[float, float, float]:
    """Return the mean of ``scores`` less that of ``others`` on the same images, and its interval.

    Student's t over the differences of single images: what both models find easy or hard cancels.
    Never narrower than Wilson's interval is for as many images without a single difference; and
    where the test by sign flips does not tell the difference from 0, it reaches 0.

    Args:
        scores: The share of draws in which each image is right, between 0 and 1.
        others: That of the other model, on the same images in the same order.
        confidence: How often such an interval covers; 0.95 by default.
        shared: The noise that images have in common; by default each has its own.

    Shape:
        - scores, others: images

    Returns:
        The difference, and the low and high of its interval.

    Raises:
        ValueError: There are fewer than two images, or not as many of one as of the other.

    Example::

        from enresnet.evaluation import paired_difference, score

        one, two = (score(model, images, labels, draws=n) for n in (2, 5))
        difference, low, high = paired_difference(one, two)
    """
    if scores.shape != others.shape or len(scores) < 2:
        raise ValueError(
            f"scores must be of the same images, two at least; found {len(scores)} and "
            f"{len(others)}"
        )
    differences = _differences(scores, others)
    mean, half = float(differences.mean()), _half_width(differences, confidence, shared)
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    if not low <= 0 <= high and _sign_flips(differences) >= 1 - confidence:
        low, high = min(low, 0.0), max(high, 0.0)
    return mean, low, high


def _half_width(differences: Tensor, confidence: float, shared: SharedNoise) -> float:
    count = len(differences)
    quantile = float(stdtrit(count - 1, (1 + confidence) / 2))
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    by_images = max(
        quantile * math.sqrt(float(differences.var(correction=1)) / count),
        z * z / (count + z * z),
    )
    return math.hypot(by_images, shared.half_width(confidence))


@dataclass(frozen=True)
class Comparison:
    """Whether one model is more accurate than another on the same images.

    Attributes:
        difference: The accuracy of the first less that of the second.
        interval: Its 95 % interval, paired: low and high.
        p_value: That of no difference, two-sided.
        test: The name of the test.
        images: How many images were compared.

    Example::

        import torch
        from enresnet.evaluation import compare_scores

        found = compare_scores(torch.tensor([1.0, 1, 1, 0]), torch.tensor([1.0, 0, 0, 0]))
        print(found.difference, found.verdict)  # 0.5 undecided
    """

    difference: float
    interval: tuple[float, float]
    p_value: float
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


def compare_scores(scores: Tensor, others: Tensor, *, shared: SharedNoise = ALONE) -> Comparison:
    """Return whether one model is more accurate than another, from scores on the same images.

    Were the models alike, each image's difference could as well have the other sign: the p-value
    is the share of all such flips whose mean is as far from 0. For right-or-wrong scores that is
    McNemar's (1947) exact test. The interval is of the same mind: the p-value is below 5 % where
    the interval leaves 0 out, and nowhere else.

    Args:
        scores: The share of draws in which each image is right, between 0 and 1.
        others: That of the other model, on the same images in the same order.
        shared: The noise that images have in common, which flips of single images know nothing of;
            by default each has its own.

    Shape:
        - scores, others: images

    Returns:
        The difference with its interval, the p-value and the verdict.

    Raises:
        ValueError: There are fewer than two images, or not as many of one as of the other.

    Example::

        from enresnet.evaluation import compare_scores, score

        one, two = (score(model, images, labels, draws=n) for n in (2, 5))
        print(compare_scores(one, two).p_value)
    """
    mean, low, high = paired_difference(scores, others, shared=shared)
    differences = _differences(scores, others)
    p_value = max(_sign_flips(differences), _interval_p_value(differences, shared))
    binary = bool(((scores == 0) | (scores == 1)).all() and ((others == 0) | (others == 1)).all())
    test = "McNemar, exact" if binary else f"sign flips, {FLIPS:,}"
    return Comparison(mean, (low, high), p_value, test, len(scores))


def _differences(scores: Tensor, others: Tensor) -> Tensor:
    """Return differences without the rounding errors of float32, so that equal ones are equal."""
    return (scores.double() - others.double()).round(decimals=6)


def _sign_flips(differences: Tensor) -> float:
    """Return the two-sided p-value of differences whose signs are due to chance.

    Differences of one size need only the number of their signs, which is binomial: exactly where
    there is a single size, otherwise by random flips, always the same ones.
    """
    sizes, numbers = differences.abs().unique(return_counts=True)
    sizes, numbers = sizes[sizes > 0], numbers[sizes > 0]
    if len(sizes) == 0:
        return 1.0
    if len(sizes) == 1:
        fewer = min(int((differences > 0).sum()), int((differences < 0).sum()))
        return min(1.0, 2 * float(bdtr(fewer, int(numbers), 0.5)))
    generator, total = np.random.default_rng(0), np.zeros(FLIPS)
    for size, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        total += size * (2.0 * generator.binomial(number, 0.5, FLIPS) - number)
    reached = int((np.abs(total) >= abs(float(differences.sum())) - 1e-9).sum())
    return (reached + 1) / (FLIPS + 1)


def _interval_p_value(differences: Tensor, shared: SharedNoise) -> float:
    """Return the level at which the interval of :func:`paired_difference` would just reach 0."""
    if shared.variance > 0:
        size = abs(float(differences.mean()))
        low, high = 1e-9, 1.0
        while high - low > 1e-4 * high:
            middle = math.sqrt(low * high)
            wide = _half_width(differences, 1 - middle, shared) > size
            low, high = (middle, high) if wide else (low, middle)
        return high
    count, mean = len(differences), abs(float(differences.mean()))
    error = math.sqrt(float(differences.var(correction=1)) / count)
    by_spread = 2 * float(stdtr(count - 1, -mean / error)) if error > 0 else float(mean == 0)
    if mean == 1:
        return by_spread
    by_count = 2 * NormalDist().cdf(-math.sqrt(count * mean / (1 - mean)))
    return max(by_spread, by_count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that allow for how many tests there are (Holm, 1979).

    If those below 5 % are called significant, the chance that any of them is so by luck alone is at
    most 5 %, however the tests depend on each other.

    Args:
        p_values: Those of the single tests.

    Returns:
        The adjusted ones, in the same order.

    Example::

        from enresnet.evaluation import holm

        print(holm([0.01, 0.04, 0.03]))  # about 0.03, 0.06, 0.06
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """Return how far confidence is from accuracy, over bins of confidence (Naeini et al., 2015)."""
    place = (confidence.double() * bins).long().clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64)
    gap.index_add_(0, place, confidence.double() - right.double())
    return float(gap.abs().sum() / len(confidence))
