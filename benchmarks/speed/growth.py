"""How time and memory grow with the members, the batch and the depth: linearly at most."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from pathlib import Path
from typing import Any

from speed.steps import Setting, problem, step_of, trainer_of
from speed.turns import in_turn

MEMBERS, BATCHES, DEPTHS = (1, 2, 5, 10), (32, 64, 128, 256, 512, 1024), (20, 44, 110)
STEPS = 1  # of PGD: all passes grow alike


def growth(setting: Setting) -> dict[str, Any]:
    """Return time and memory of a training step against what it grows with."""
    tiny = setting.batch < 32
    members, batches = (MEMBERS[:2], (4, 8)) if tiny else (MEMBERS, BATCHES)
    depths = (8, 14) if tiny else DEPTHS
    base = min(32, setting.batch)
    tables = {
        "members": _grow({n: (f"en{n}_resnet20", setting.batch) for n in members}, setting),
        "batch": _grow({n: ("en1_resnet20", n) for n in batches}, setting),
        "depth": _grow({n: (f"en1_resnet{n}", base) for n in depths}, setting),
    }
    steps = [row for table in tables.values() for row in table[1:]]
    slopes = [row[name] for row in steps for name in ("steepness", "memory_steepness")]
    return {
        "median": statistics.median(slopes),
        "spread": [min(slopes), max(slopes)],
        "repeats": max(1, setting.repeats // 2),
        "what": "training step with PGD-1: growth from one row to the next, of time and of memory, "
        "over what linear growth would give; the steepest may be 1.15, since a turn is noisy",
        "tables": tables,
        "steepest": max(slopes),
        "steepest_holds": max(slopes) <= 1.15,
    }


def _grow(cases: dict[int, tuple[str, int]], setting: Setting) -> list[dict[str, float]]:
    works = []
    for model, batch in cases.values():
        trainer, (images, labels) = trainer_of(model, batch, steps=STEPS), problem(batch)
        works.append(lambda t=trainer, i=images, y=labels: step_of(t, i, y))
    turns = in_turn(*works, repeats=max(1, setting.repeats // 2))
    rows: list[dict[str, float]] = []
    for index, (size, (model, batch)) in enumerate(cases.items()):
        seconds = statistics.median(turn[index] for turn in turns)
        row = {"size": size, "seconds": seconds, "megabytes": _memory(model, batch)}
        if rows:
            before = rows[-1]
            times = [turn[index] / turn[index - 1] for turn in turns]
            row["steepness"] = statistics.median(times) * before["size"] / size
            row["memory_steepness"] = row["megabytes"] / before["megabytes"] * before["size"] / size
        rows.append(row)
    return rows


def _memory(model: str, batch: int) -> float:
    """Return by how many megabytes a step raises the peak of a fresh process."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # freed blocks go back at once
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_peak, (model, batch))
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]


def _peak(model: str, batch: int) -> float:
    trainer = trainer_of(model, batch, steps=STEPS)
    step_of(trainer, *problem(2))  # what torch loads once
    before = _highest()
    step_of(trainer, *problem(batch))
    return max(0.1, _highest() - before)


def _highest() -> float:
    """Return the most memory this process has held, in MB.

    Not by getrusage: there a process starts with what the one that started it held.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024
