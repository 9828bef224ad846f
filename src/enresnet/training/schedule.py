"""The learning rate over a training, from the share of it that is done."""

from __future__ import annotations

import math
from collections.abc import Sequence

SCHEDULES = ("step", "one_cycle")


def step_rate(done: float, *, base: float, milestones: Sequence[float]) -> float:
    """Return ``base`` divided by 10 for every milestone passed (Sec. 4.1).

    The paper's 80, 120 and 160 of 200 epochs are the milestones 0.4, 0.6 and 0.8.
    """
    # A hair of tolerance: 0.6 of 35 epochs is a little more than 21 in floating point.
    passed = sum(done >= milestone - 1e-9 for milestone in milestones)
    return base / math.pow(10, passed)


def one_cycle_rate(done: float, *, peak: float, warm_up: float) -> float:
    """Return a rate that rises in a line to ``peak`` at ``warm_up``, and falls in a line to 0."""
    if done < warm_up:
        return peak * done / warm_up
    return peak * (1 - done) / (1 - warm_up)
