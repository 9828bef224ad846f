"""``python -m torture.table FILE``: the figures of a campaign as a Markdown table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("tried", "answered", "held", "lost", "distinct_outcomes")


def table(values: dict[str, Any]) -> str:
    """Return the figures of a campaign, as its JSON file holds them, in Markdown."""
    lines = [
        "| | tried | answered | held | lost | distinct outcomes | hours of one process |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in ("inputs", "faults"):
        rows = values[kind]
        lines += [_row(name, row) for name, row in rows.items()]
        whole = {name: sum(row[name] for row in rows.values()) for name in (*COLUMNS, "seconds")}
        if rows:
            lines.append(_row(f"**all {kind}**", whole))
    state = "" if values["whole"] else ", not finished"
    lines += [
        "",
        f"Version {values['version']}, code {values['code']}, seed {values['seed']}{state}.",
    ]
    return "\n".join(lines)


def _row(name: str, row: dict[str, Any]) -> str:
    cells = [f"{row[column]:,}" for column in COLUMNS]
    return f"| {name} | {' | '.join(cells)} | {row['seconds'] / 3600:.2f} |"


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
