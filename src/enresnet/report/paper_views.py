"""The paper's tables and claims, as the page prints them: every figure with what it rests on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from enresnet.report.contents import Cell, Contents, Decision, Measured, Row, Table, Verdict

DECISIONS: dict[Decision, tuple[str, str]] = {
    "holds": ("✓", "holds"),
    "fails": ("✗", "fails"),
    "undecided": ("?", "undecided"),
    "not comparable": ("≠", "not comparable"),
    "not run": ("–", "not run"),
}
NUMBERED = re.compile(r"table(\d+)")
WIDE = 200.0  # of the picture of an effect


@dataclass(frozen=True)
class Metric:
    """A group of columns: paper, ours and difference, or ours alone if the paper has no figure."""

    name: str
    published: bool
    start: int  # its first column

    @property
    def columns(self) -> int:
        """How many columns it has."""
        return 3 if self.published else 1


@dataclass(frozen=True)
class TableView:
    """One table, a row for each network and a group of columns for each metric."""

    number: int
    label: str  # "Table 2", or the title of what has no number
    title: str
    table: Table
    metrics: tuple[Metric, ...]
    columns: int
    rows: tuple[dict[str, Any], ...]
    notes: tuple[tuple[str, str], ...]
    open: bool  # whether there is something to show
    measured: int  # of the accuracies that the paper has
    published: int


@dataclass(frozen=True)
class ClaimView:
    """One claim; ``picture`` has the places of its interval on the scale that all claims share."""

    number: int
    verdict: Verdict
    mark: str
    word: str
    order: int  # of its verdict: those that hold first
    runs: tuple[tuple[str, str], ...]
    picture: dict[str, float] | None
    note_mark: str = ""  # the letter of a note that several claims share


@dataclass(frozen=True)
class PaperView:
    """All that the page shows of the paper."""

    tables: tuple[TableView, ...] = ()
    claims: tuple[ClaimView, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()  # those that several claims share

    @classmethod
    def of(cls, contents: Contents, anchors: Mapping[Path, str]) -> PaperView:
        """Return the views; ``anchors`` has the place on the page of each run, by its folder."""
        scale = _effect_scale([v for v in contents.verdicts if v.decision != "not run"])
        told = Counter(v.note for v in contents.verdicts if v.decision != "not run")
        shared = [note for note, times in told.items() if note and times > 1]
        marks = {note: _letter(place) for place, note in enumerate(shared)}
        claims = tuple(
            ClaimView(
                number=number,
                verdict=verdict,
                mark=DECISIONS[verdict.decision][0],
                word=DECISIONS[verdict.decision][1],
                order=list(DECISIONS).index(verdict.decision),
                runs=_linked(verdict.runs, anchors),
                picture=_picture(verdict, scale),
                note_mark=marks.get(verdict.note, ""),
            )
            for number, verdict in enumerate(contents.verdicts, start=1)
        )
        counts = {
            word: sum(claim.word == word for claim in claims) for _, word in DECISIONS.values()
        }
        tables = (_table(n, table, anchors) for n, table in enumerate(contents.tables, start=1))
        notes = tuple((mark, note) for note, mark in marks.items())
        return cls(tuple(tables), claims, counts, notes)

    @property
    def tested(self) -> list[ClaimView]:
        """The claims that were run."""
        return [claim for claim in self.claims if claim.verdict.decision != "not run"]

    @property
    def untested(self) -> list[ClaimView]:
        """Those that were not."""
        return [claim for claim in self.claims if claim.verdict.decision == "not run"]

    @property
    def measured(self) -> int:
        """How many of the paper's accuracies were measured."""
        return sum(table.measured for table in self.tables)

    @property
    def published(self) -> int:
        """How many accuracies the paper's tables have."""
        return sum(table.published for table in self.tables)


def _table(number: int, table: Table, anchors: Mapping[Path, str]) -> TableView:
    metrics: list[Metric] = []
    columns = 1  # that of the networks
    for name in dict.fromkeys(cell.metric for row in table.rows for cell in row.cells):
        own = [cell for row in table.rows for cell in row.cells if cell.metric == name]
        metrics.append(Metric(name, any(cell.paper is not None for cell in own), columns))
        columns += metrics[-1].columns
    marks: dict[str, str] = {}  # of notes, by their text
    rows = []
    for row in table.rows:
        by_metric = {cell.metric: cell for cell in row.cells}
        seeds = _seeds(row)
        for cell in row.cells:
            if cell.note and cell.note not in marks:
                marks[cell.note] = _letter(len(marks))
        found = [by_metric.get(metric.name) for metric in metrics]
        cells = [
            None if one is None else _cell(one, table, marks.get(one.note, ""), seeds, anchors)
            for one in found
        ]
        shown = ", ".join(map(str, seeds))
        rows.append({"title": row.title, "model": row.model, "cells": cells, "seeds": shown})
    found_number = NUMBERED.fullmatch(table.key)
    numbered = f"Table {found_number[1]}" if found_number else ""
    all_cells = [cell for row in table.rows for cell in row.cells]
    published = [cell for cell in all_cells if cell.paper is not None]
    return TableView(
        number=number,
        label=numbered or table.title,
        title=f"{numbered}: {table.title}" if numbered else table.title,
        table=table,
        metrics=tuple(metrics),
        columns=columns + 1,
        rows=tuple(rows),
        notes=tuple((letter, text) for text, letter in marks.items()),
        open=any(cell.measured is not None for cell in all_cells),
        measured=sum(cell.measured is not None for cell in published),
        published=len(published),
    )


def _cell(
    cell: Cell, table: Table, mark: str, seeds: Sequence[int], anchors: Mapping[Path, str]
) -> dict[str, Any]:
    """Return one accuracy; its seeds are named where they are not all of its row."""
    ours = cell.measured
    difference = None
    if table.comparable and ours is not None and cell.paper is not None:
        difference = ours.mean - cell.paper
    return {
        "paper": cell.paper,
        "ours": ours,
        "difference": difference,
        "mark": mark,
        "seeds": "" if ours is None or set(ours.seeds) == set(seeds) else _seed_words(ours.seeds),
        "runs": () if ours is None else _linked(ours.runs, anchors),
        "hint": "" if ours is None else _hint(ours),
    }


def _hint(ours: Measured) -> str:
    return f"{_seed_words(ours.seeds)}: {', '.join(map(str, ours.runs))}"


def _seed_words(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def _seeds(row: Row) -> list[int]:
    """Return the seeds of all cells of a row."""
    return sorted({seed for cell in row.cells if cell.measured for seed in cell.measured.seeds})


def _linked(runs: Sequence[Path], anchors: Mapping[Path, str]) -> tuple[tuple[str, str], ...]:
    """Return each run's folder, and its place on the page, "" if it is not there."""
    return tuple((str(run), anchors.get(Path(run).resolve(), "")) for run in runs)


def _letter(number: int) -> str:
    more, last = divmod(number, len(ascii_lowercase))
    return (_letter(more - 1) if more else "") + ascii_lowercase[last]


def _effect_scale(verdicts: Sequence[Verdict]) -> tuple[float, float] | None:
    """Return the ends of the scale of all effects, 0 among them; None if there is no effect."""
    values = [
        value
        for v in verdicts
        for value in (v.paper_effect, v.effect, v.low, v.high)
        if value is not None
    ]
    if not values:
        return None
    low, high = min(0.0, *values), max(0.0, *values)
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def _picture(verdict: Verdict, scale: tuple[float, float] | None) -> dict[str, float] | None:
    names = ("paper_effect", "effect", "low", "high")
    known = {name: value for name in names if (value := getattr(verdict, name)) is not None}
    if scale is None or not known:
        return None
    low, high = scale
    return {
        name: round(WIDE * (value - low) / (high - low), 1)
        for name, value in {"zero": 0.0, **known}.items()
    }
