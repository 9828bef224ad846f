"""The learning rate over a training: divided by ten at fractions of the epochs (Sec. 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def step_rate(epoch: int, epochs: int, *, base: float, milestones: Sequence[float]) -> float:
    """Return ``base`` / 10 to the number of milestones, as fractions of ``epochs``, now passed.

    The paper's 80, 120 and 160 of 200 epochs are 0.4, 0.6 and 0.8.
    """
    # A hair of tolerance: 0.6 * 35 is a little more than 21.
    passed = sum(epoch >= milestone * epochs - 1e-9 for milestone in milestones)
    return base / math.pow(10, passed)
