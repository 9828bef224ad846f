"""Rivals that run in turn, and what is said of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Work = Callable[[], object]


class MissingError(Exception):
    """A rival, or the data, is not there."""


def seconds_of(work: Work) -> float:
    """Return the time that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(*rivals: Work, repeats: int, warm_up: int = 1) -> list[tuple[float, ...]]:
    """Run the rivals one after the other, ``repeats`` times; return the seconds of each turn."""
    turns = [tuple(seconds_of(work) for work in rivals) for _ in range(repeats + warm_up)]
    return turns[warm_up:]


def told(ratios: Sequence[float], what: str, **more: Any) -> dict[str, Any]:
    """Return what is written of a benchmark: the median of the ratios, their spread, their number.

    The spread is from the lowest to the highest.
    """
    return {
        "median": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "repeats": len(ratios),
        "what": what,
        **more,
    }


def median_of(turns: Sequence[tuple[float, ...]], rival: int) -> float:
    """Return one rival's median time."""
    return statistics.median(turn[rival] for turn in turns)
