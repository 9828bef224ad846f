"""Whether what a check finds is beyond chance, and whether anything it could find would be.

Two attacks are compared by Student's t over the differences of single images and by sign flips, as
:func:`~enresnet.evaluation.statistics.paired_difference` does. The worst outcome is that one attack
leaves all images and the other none. Its p-value by sign flips is 2 / 2^n: it takes six images to
be below 5 %. A check on fewer could not have warned, and so says nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from enresnet.evaluation.accuracy import Accuracy
from enresnet.evaluation.statistics import ALONE, SharedNoise, paired_difference

TOLERANCE = 0.01  # a difference below a point is none


def beyond_chance(one: Accuracy, two: Accuracy, tolerance: float) -> bool:
    """Return whether the first is more accurate by more than a tolerance, and than by chance."""
    return _differs(one.scores, two.scores, one.shared.and_of(two.shared), tolerance)


def _differs(one: Tensor, two: Tensor, shared: SharedNoise, tolerance: float) -> bool:
    mean, low, _ = paired_difference(one, two, shared=shared)
    return mean > tolerance and low > 0


def worst_is_chance(clean: Accuracy, left: Accuracy, attack: str, tolerance: float) -> str:
    """Return why no other attack could have done significantly better; "" if one could have."""

    def warns(scores: Tensor, shared: SharedNoise) -> bool:
        return _differs(scores, torch.zeros_like(scores), shared, tolerance)

    return undecidable(clean.scores, left.scores, attack, warns, left.shared, tolerance)


def undecidable(
    clean: Tensor,
    left: Tensor,
    attack: str,
    warns: Callable[[Tensor, SharedNoise], bool],
    shared: SharedNoise = ALONE,
    tolerance: float = TOLERANCE,
) -> str:
    """Return why even the worst outcome would not have been a warning; "" if it would have been.

    Before anything is known, the worst is that an attack leaves all that is right when clean and
    another breaks it; once the attack is made, that the other breaks what it has left. ``warns``
    says whether breaking images of these scores is a warning. Where no more is left than the
    tolerance there is nothing to break.
    """
    if not warns(clean, ALONE):
        return (
            f"{len(clean)} images, {int((clean > 0).sum())} right when clean: too few for even the "
            "worst outcome to be significant"
        )
    if float(left.double().mean()) > tolerance and not warns(left, shared):
        return (
            f"{attack} leaves {int((left > 0).sum())} of {len(left)} images: too few for breaking "
            "them all to be significant"
        )
    return ""


def nothing_to_lose(clean: float, allowed: float) -> str:
    """Return why an accuracy could not have stayed above what is allowed; "" if it could have."""
    if clean > allowed:
        return ""
    return (
        f"{100 * clean:.1f} % right when clean: no more could be left, and {100 * allowed:.1f} % "
        "may be"
    )
