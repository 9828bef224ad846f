"""``python -m torture.table FILE``: the figures of a campaign as a Markdown table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COLUMNS = ("tried", "answered", "held", "lost", "distinct_outcomes")
KILLS = ("-kill", "-moment", "-pair", "-devices")  # the faults that end a process by SIGKILL


def table(values: dict[str, Any]) -> str:
    """Return the figures of a campaign, as its JSON file holds them, in Markdown."""
    lines = [
        "| | tried | answered | held | lost | distinct outcomes | hours of one process |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in ("inputs", "faults"):
        rows = values[kind]
        lines += [_row(name, row) for name, row in rows.items()]
        if killed := [row for name, row in rows.items() if name.endswith(KILLS)]:
            lines.append(_sum("kills among them", killed))
        if rows:
            lines.append(_sum(f"**all {kind}**", rows.values()))
    state = "" if values["whole"] else ", not finished"
    lines += [
        "",
        f"Version {values['version']}, code {values['code']}, seed {values['seed']}{state}.",
    ]
    return "\n".join(lines)


def _sum(name: str, rows: Iterable[dict[str, Any]]) -> str:
    rows = list(rows)
    return _row(name, {key: sum(row[key] for row in rows) for key in (*COLUMNS, "seconds")})


def _row(name: str, row: dict[str, Any]) -> str:
    cells = [f"{row[column]:,}" for column in COLUMNS]
    return f"| {name} | {' | '.join(cells)} | {row['seconds'] / 3600:.2f} |"


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
