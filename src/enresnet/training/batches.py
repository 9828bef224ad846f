"""Which images a step takes, and which of them a process takes: each once an epoch."""

from __future__ import annotations

from enresnet.training.engine import Engine


def step_rows(count: int, size: int, processes: int = 1) -> list[slice]:
    """Return the steps of an epoch of ``count`` images, ``size`` a step; the last may be smaller.

    A rest of fewer images than processes joins the step before, so that none stands idle.
    """
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] < processes:
        starts.pop()
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], count], strict=True)]


def share_of(count: int, engine: Engine) -> slice:
    """Return the part of a step's ``count`` images that this process takes."""
    bounds = [count * number // engine.processes for number in range(engine.processes + 1)]
    return slice(bounds[engine.rank], bounds[engine.rank + 1])
