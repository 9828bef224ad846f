r"""Several trainings of each of two methods, compared: an interval over seeds and over images.

The score of training s on image i is taken as

.. math:: y_{s,i} = \mu + a_s + b_i + c_{s,i}

with a seed's luck a, an image's ease b and what is left, c. All trainings see the same images, so
seeds and images are crossed: this is the design of studies in which several readers read the same
cases (Obuchowski and Rockette, 1995). The mean over S seeds and N images then varies by

.. math:: \frac1S \Bigl(\sigma_a^2 + \frac{\sigma_c^2}{N}\Bigr) + \frac{\sigma_b^2}{N}

The first part is what the accuracies of single trainings differ by, with S - 1 degrees of freedom.
The second is the covariance of two trainings over the images, divided by N. Where both methods were
trained with the same seeds, y is the difference of the pair. Otherwise each method has a first part
of its own, and the second is that of what differs between the methods.

.. math:: h^2 = t_{S-1}^2 \hat V_{\text{seeds}} + t_{N-1}^2 \hat V_{\text{images}}

Each part has its own quantile of Student's t. That is a little wider than one quantile for the
sum, and holds from two seeds up, where the estimated degrees of freedom of a sum (Welch, 1947) do
not, least of all where one method has two runs and the other many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

import torch
from scipy.special import stdtrit
from torch import Tensor

from enresnet.evaluation.statistics import CONFIDENCE, Comparison, accuracy_interval


@dataclass(frozen=True)
class GroupComparison(Comparison):
    """Whether one method is more accurate than another, over seeds and images.

    Attributes:
        difference: The accuracy of the first less that of the second.
        interval: Its 95 % interval, over seeds and images: low and high.
        p_value: That of no difference, two-sided.
        test: The name of the test.
        images: How many images were compared.
        first: The mean accuracy of the runs of the first method.
        second: That of the second.
        runs: How many runs each method has.
        paired: Whether runs with the same seed make a pair.
        by_seed: The difference of each pair, by its seed; empty without pairs.

    Example::

        import torch
        from enresnet.evaluation import compare_groups

        one, two = ({seed: torch.rand(50).round() for seed in "012"} for _ in range(2))
        print(compare_groups(one, two, paired=True).by_seed)
    """

    first: float = 0.0
    second: float = 0.0
    runs: tuple[int, int] = (1, 1)
    paired: bool = False
    by_seed: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """A part of the variance of a difference, and how well it is known."""

    variance: float
    freedom: float

    def half_width(self, confidence: float) -> float:
        if self.variance == 0:
            return 0.0
        return float(stdtrit(self.freedom, (1 + confidence) / 2)) * math.sqrt(self.variance)


def compare_groups(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], *, paired: bool
) -> GroupComparison:
    """Return whether one method is more accurate than another, from several runs of each.

    Args:
        first: The scores of each run of the first method, by its seed; two runs at least, for one
            says nothing of how much trainings differ. All are on the same images.
        second: Those of the second method.
        paired: Whether both have the same seeds, and a seed makes a pair.

    Shape:
        - every tensor of first and second: images

    Returns:
        The difference with its interval over seeds and images, the p-value and the verdict.

    Raises:
        ValueError: A method has fewer than two runs, there are fewer than two images, runs are not
            on as many images, or pairs have no common seeds.

    Example::

        import torch
        from enresnet.evaluation import compare_groups

        one, two = ({seed: torch.rand(50).round() for seed in "012"} for _ in range(2))
        print(compare_groups(one, two, paired=False).verdict)
    """
    counts = {len(scores) for scores in (*first.values(), *second.values())}
    if min(len(first), len(second)) < 2 or len(counts) != 1 or min(counts) < 2:
        raise ValueError(
            f"groups must have two runs each, on the same two images or more; found {len(first)} "
            f"and {len(second)} runs on {', '.join(map(str, sorted(counts)))} images"
        )
    one, two = (torch.stack([s.double() for s in side.values()]) for side in (first, second))
    by_seed: dict[str, float] = {}
    if paired:
        if first.keys() != second.keys():
            raise ValueError(
                f"paired groups must have the same seeds, found {', '.join(first)} and "
                f"{', '.join(second)}"
            )
        differences = one - torch.stack([second[seed].double() for seed in first])
        by_seed = dict(zip(first, differences.mean(dim=1).tolist(), strict=True))
        parts = [_seeds(differences), _images(_covariance(differences), one.shape[1])]
    else:
        across = _centred(one).mean(dim=0) @ _centred(two).mean(dim=0) / (one.shape[1] - 1)
        common = _covariance(one) + _covariance(two) - 2 * float(across)
        parts = [_seeds(one), _seeds(two), _images(common, one.shape[1])]
    accuracies = float(one.mean()), float(two.mean())
    mean = accuracies[0] - accuracies[1]
    half = _half_width(parts, one.shape[1], CONFIDENCE)
    return GroupComparison(
        difference=mean,
        interval=(max(-1.0, mean - half), min(1.0, mean + half)),
        p_value=_p_value(mean, parts, one.shape[1]),
        test="Student's t over seeds and images",
        images=one.shape[1],
        first=accuracies[0],
        second=accuracies[1],
        runs=(len(first), len(second)),
        paired=paired,
        by_seed=by_seed,
    )


def group_accuracy(scores: Mapping[str, Tensor]) -> tuple[float, float, float]:
    """Return the mean accuracy of several runs of a method, with its 95 % interval.

    Args:
        scores: The scores of each run, by its seed. Of one run the interval is over images alone.

    Shape:
        - every tensor of scores: images

    Returns:
        The mean, and the low and high of its interval over seeds and images.

    Raises:
        ValueError: There is no run, there are fewer than two images, or runs are not on as many
            images.

    Example::

        import torch
        from enresnet.evaluation import group_accuracy

        mean, low, high = group_accuracy({seed: torch.rand(50).round() for seed in "012"})
    """
    if len(scores) == 1:
        (alone,) = scores.values()
        return float(alone.double().mean()), *accuracy_interval(alone)
    # The difference from a method that gets nothing right.
    nothing = {seed: torch.zeros_like(one) for seed, one in scores.items()}
    found = compare_groups(scores, nothing, paired=True)
    return found.difference, max(0.0, found.interval[0]), found.interval[1]


def _centred(scores: Tensor) -> Tensor:
    return scores - scores.mean(dim=1, keepdim=True)


def _seeds(scores: Tensor) -> _Part:
    """Return what the mean varies by with the seeds, from scores that are seeds x images."""
    runs = len(scores)
    return _Part(float(scores.mean(dim=1).var(correction=1)) / runs, runs - 1)


def _covariance(scores: Tensor) -> float:
    """Return the covariance over the images of two runs, in the mean over all pairs of runs."""
    runs, images = scores.shape
    centred = _centred(scores)
    whole = float(centred.sum(dim=0).square().sum())
    own = float(centred.square().sum())
    return (whole - own) / (runs * (runs - 1) * (images - 1))


def _images(covariance: float, images: int) -> _Part:
    return _Part(max(0.0, covariance) / images, images - 1)


def _half_width(parts: list[_Part], images: int, confidence: float) -> float:
    """Return half the interval's width, at least that of Wilson's interval without a difference."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    whole = math.hypot(*(part.half_width(confidence) for part in parts))
    return max(whole, z * z / (images + z * z))


def _p_value(mean: float, parts: list[_Part], images: int) -> float:
    """Return the p-value: the level at which the interval would just reach 0."""
    low, high = 1e-12, 1.0
    if mean == 0 or _half_width(parts, images, 1 - low) <= abs(mean):
        return 1.0 if mean == 0 else low
    while high - low > 1e-6 * high:
        middle = math.sqrt(low * high)
        reaches = _half_width(parts, images, 1 - middle) > abs(mean)
        low, high = (middle, high) if reaches else (low, middle)
    return high
