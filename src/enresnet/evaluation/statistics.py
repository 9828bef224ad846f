r"""Intervals for accuracies of models that may answer differently each time.

An image's score is the share of draws in which it is classified rightly. The accuracy is the mean
score, and its interval Wilson's (1927) for as many images scored once. Scores between 0 and 1 vary
less than right or wrong does, so with them the interval errs on the safe side; an effective number
of images computed from their spread would not cover when a few images decide.

.. math:: \frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}
"""

from __future__ import annotations

import math
from statistics import NormalDist

from scipy.special import stdtrit
from torch import Tensor

CONFIDENCE = 0.95


def accuracy_interval(scores: Tensor, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the mean of ``scores``, one an image, each between 0 and 1."""
    count = len(scores)
    if count == 0:
        raise ValueError("scores must hold at least one image, found none")
    p = min(max(float(scores.double().mean()), 0.0), 1.0)
    n = float(count)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


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
