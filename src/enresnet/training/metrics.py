"""metrics.csv of a run: one row an epoch, and which epoch's network was kept."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from enresnet.common.files import atomic_write
from enresnet.training.events import Epoch, selecting

COLLAPSED = "collapsed: "  # opens the note of an epoch in which a one-step training did

_WORDS = ("weights", "note", "kept")  # columns of text; all others are numbers
_NEEDED = {"validation_natural", "validation_robust"}


def write_metrics(path: Path, epochs: Sequence[Epoch]) -> None:
    """Write all rows anew: the file is readable at any moment."""
    with atomic_write(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, [spec.name for spec in fields(Epoch)])
        writer.writeheader()
        writer.writerows(asdict(epoch) for epoch in epochs)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows, one an epoch; none where there is no file yet."""
    if not path.is_file():
        return []
    try:
        with path.open(newline="") as file:
            rows = [
                {
                    key: value if key in _WORDS else float(value) if value else None
                    for key, value in row.items()
                }
                for row in csv.DictReader(file)
            ]
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error}); put a copy in its place") from error
    for row in rows:
        if not row.get("epoch") or not row.keys() >= _NEEDED:
            raise ValueError(f"{path} is damaged: it lacks columns; put a copy in its place")
    return rows


def collapse_in(rows: Sequence[dict[str, Any]]) -> str:
    """Return in which epoch a training collapsed, and how it went on; "" if it did not."""
    for row in rows:
        _, found, words = (row.get("note") or "").partition(COLLAPSED)
        if found:
            return f"in epoch {row['epoch']:.0f} it {found.rstrip(': ')}: {words}"
    return ""


def kept_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the epoch whose network is the best; None if no epoch was validated.

    Runs of earlier versions do not mark it: there it is the highest validation accuracy.
    """
    if any("kept" in row for row in rows):
        return next((row for row in rows if row["kept"]), None)
    scores = [selecting(row["validation_natural"], row["validation_robust"]) for row in rows]
    validated = [(score, row) for score, row in zip(scores, rows, strict=True) if score is not None]
    if not validated:
        return None
    score, highest = max(validated, key=lambda found: found[0])
    return {**highest, "kept": f"highest validation accuracy, {100 * score:.1f} %"}
