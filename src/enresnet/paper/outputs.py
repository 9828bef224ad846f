"""What a reproduction found, as rows of words and as plain JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from enresnet.common.files import atomic_write
from enresnet.common.tables import Row, as_latex, as_markdown
from enresnet.evaluation import holm
from enresnet.report.contents import Cell, Contents, Table, Verdict

CLAIMS_CAPTION = (
    "Effects are in points, with 95 % intervals over pairs of seeds and images; over images alone "
    "with fewer than two pairs. A claim holds if the whole interval is where the claim says, fails "
    "if it is elsewhere, and is undecided otherwise, and wherever there are fewer than two pairs: "
    "such an effect is that of these weights only. The p-value is that of an effect at the edge of "
    "what is claimed. Each claim is a test of its own, so one verdict in twenty errs by chance; "
    "Holm's p-value (1979) allows for all claims of the table, of which it may be wrong in one at "
    "the 5 % level."
)


def table_rows(table: Table) -> list[Row]:
    """Return a row of words for every cell, the paper's figure beside ours."""
    notes = notes_of(table)
    return [
        {
            "network": row.title,
            "accuracy": "natural" if cell.metric == "natural" else f"under {cell.metric}",
            **_cell(cell, notes, comparable=table.comparable),
        }
        for row in table.rows
        for cell in row.cells
    ]


def _cell(cell: Cell, notes: Sequence[str], *, comparable: bool) -> Row:
    mark = f" [{notes.index(cell.note) + 1}]" if cell.note else ""
    paper = "" if cell.paper is None else f"{cell.paper:.2f}{mark}"
    found = cell.measured
    if found is None:
        return {"paper": paper, "ours": "not run", "difference": "", "seeds": "", "images": ""}
    difference = comparable and cell.paper is not None
    return {
        "paper": paper,
        "ours": f"{found.mean:.2f} ({found.low:.2f}-{found.high:.2f})",
        "difference": f"{found.mean - (cell.paper or 0):+.2f}" if difference else "",
        "seeds": " ".join(map(str, found.seeds)),
        "images": str(found.images),
    }


def notes_of(table: Table) -> list[str]:
    """Return the notes of a table's cells, each once."""
    cells = (cell for row in table.rows for cell in row.cells)
    return list(dict.fromkeys(cell.note for cell in cells if cell.note))


def table_caption(table: Table) -> str:
    """Return a table's caption, with the notes of its cells."""
    notes = [f"[{number}] {note}" for number, note in enumerate(notes_of(table), start=1)]
    return " ".join([f"{table.title}, {table.data}. {table.caption}", *notes])


def claim_rows(verdicts: Sequence[Verdict]) -> list[Row]:
    """Return a row of words for every claim."""
    tested = [v.p_value for v in verdicts if v.p_value is not None]
    adjusted = iter(holm(tested))
    return [
        {
            "claim": verdict.statement,
            "where": verdict.where,
            "paper": "" if verdict.paper_effect is None else f"{verdict.paper_effect:+.2f}",
            "ours": _effect(verdict),
            "p": "" if verdict.p_value is None else f"{verdict.p_value:.2g}",
            "p (Holm)": "" if verdict.p_value is None else f"{next(adjusted):.2g}",
            "seeds": " ".join(map(str, verdict.seeds)),
            "verdict": verdict.decision,
            "note": verdict.note,
        }
        for verdict in verdicts
    ]


def _effect(verdict: Verdict) -> str:
    if verdict.effect is None:
        return ""
    return f"{verdict.effect:+.2f} ({verdict.low:+.2f}, {verdict.high:+.2f})"


def claim_counts(verdicts: Sequence[Verdict]) -> str:
    """Return how many claims hold, fail, are undecided and were not run."""
    counts = Counter(verdict.decision for verdict in verdicts)
    return ", ".join(f"{count} {decision}" for decision, count in sorted(counts.items()))


def shown(contents: Contents, caption: str) -> dict[str, tuple[list[Row], str]]:
    """Return the rows and the caption of every table and of the claims, by key."""
    found = {t.key: (table_rows(t), table_caption(t)) for t in contents.tables}
    if contents.verdicts:
        counts = claim_counts(contents.verdicts)
        found["claims"] = (
            claim_rows(contents.verdicts),
            f"The claims of the paper: {counts}. {CLAIMS_CAPTION} {caption}",
        )
    return found


def to_json(contents: Contents) -> dict[str, Any]:
    """Return all as plain JSON: tables, claims and figures by key, run folders included."""
    return {
        "tables": {table.key: _plain(asdict(table)) for table in contents.tables},
        "claims": {verdict.key: _plain(asdict(verdict)) for verdict in contents.verdicts},
        "figures": {drawing.key: _plain(asdict(drawing)) for drawing in contents.drawings},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def write(contents: Contents, folder: Path, caption: str) -> list[Path]:
    """Write KEY.json, KEY.md and KEY.tex of every table and of the claims; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = to_json(contents)
    plain["tables"]["claims"] = plain["claims"]
    written = []
    for key, (rows, words) in shown(contents, caption).items():
        texts = {
            ".json": json.dumps(plain["tables"][key], indent=2) + "\n",
            ".md": as_markdown(rows, caption=words),
            ".tex": as_latex(rows, caption=words),
        }
        for ending, text in texts.items():
            path = folder / f"{key}{ending}"
            with atomic_write(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
            written.append(path)
    return written
