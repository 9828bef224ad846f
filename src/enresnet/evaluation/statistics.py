r"""Intervals for accuracies of models that may answer differently each time.

An image's score is the share of draws in which it is classified rightly. The accuracy is the mean
score; its variance over the images, which holds the spread of the draws too, gives an effective
number of images, and that goes into Wilson's interval (1927).

.. math:: n_{\mathrm{eff}} = \frac{p (1 - p)}{\mathrm{Var}(\bar s)}, \qquad
          \frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}
"""

from __future__ import annotations

import math
from statistics import NormalDist

from torch import Tensor

CONFIDENCE = 0.95


def accuracy_interval(scores: Tensor, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the mean of ``scores``, one an image, each between 0 and 1."""
    count = len(scores)
    if count == 0:
        raise ValueError("scores must hold at least one image, found none")
    p = min(max(float(scores.double().mean()), 0.0), 1.0)
    variance = float(scores.double().var(correction=0)) / count
    n = p * (1 - p) / variance if variance > 0 else float(count)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_difference(
    scores: Tensor, others: Tensor, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the mean of ``scores`` less that of ``others`` on the same images, and its interval.

    Normal approximation over the differences of single images: what both models find easy or hard
    cancels.
    """
    if scores.shape != others.shape:
        raise ValueError(
            f"scores must be of the same images, found {len(scores)} and {len(others)}"
        )
    differences = scores.double() - others.double()
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = z * math.sqrt(float(differences.var(correction=0)) / max(1, len(differences) - 1))
    mean = float(differences.mean())
    return mean, mean - half, mean + half
