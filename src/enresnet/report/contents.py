"""What a report is made of: measured figures beside published ones, and claims with their verdicts.

Accuracies are in percent, differences in points. A figure that is missing was not run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Decision = Literal["holds", "fails", "undecided", "not comparable", "not run"]


@dataclass(frozen=True)
class Measured:
    """An accuracy that was measured: the mean over its seeds, with a 95 % interval.

    Attributes:
        mean: The mean over the seeds, in percent.
        low: The lower end of the interval.
        high: The upper end of the interval.
        seeds: The seeds of the trainings.
        images: How many images were measured.
        runs: The run folders behind the figure, one for each seed.
    """

    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]
    images: int
    runs: tuple[Path, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("runs must not be empty: a figure needs the run that it comes from")


@dataclass(frozen=True)
class Cell:
    """One accuracy of a table: as published, and as measured.

    Attributes:
        metric: What was measured: "natural", or the attack's name.
        paper: The published figure, in percent; None if the paper has none.
        measured: Ours; None if it was not run.
        note: What a reader must know of this cell, such as a contradiction in the paper.
    """

    metric: str
    paper: float | None = None
    measured: Measured | None = None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One network of a table.

    Attributes:
        title: Its name as the paper prints it.
        model: Its name in the registry, such as "en2_resnet20".
        cells: Its accuracies, in the order of the table's metrics.
    """

    title: str
    model: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table of the paper, with what was measured beside it.

    Attributes:
        key: Its name on the command line, such as "table2".
        title: What it shows, in a line.
        data: The data set.
        rows: Its networks.
        caption: How the figures came about: recipe, attacks, what is smaller than in the paper.
        comparable: Whether ours may be set against the paper's; otherwise no difference is shown.
    """

    key: str
    title: str
    data: str
    rows: tuple[Row, ...]
    caption: str = ""
    comparable: bool = True


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper, and what the runs say of it.

    Attributes:
        key: The claim's name, such as "noise-helps-natural".
        statement: The claim, in a sentence.
        where: Where the paper makes it, such as "Table 2".
        decision: Whether it holds, fails, is undecided, cannot be decided although runs are there
            ("not comparable"; the note says why), or was not run.
        paper_effect: The paper's own effect, in points; None if it gives none.
        effect: The measured effect, in points.
        low: The lower end of its 95 % interval.
        high: The upper end of its 95 % interval.
        p_value: Of the comparison.
        seeds: The seeds that decided.
        runs: The run folders behind it.
        note: What a reader must know, such as that the paper contradicts itself here.
    """

    key: str
    statement: str
    where: str
    decision: Decision
    paper_effect: float | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    seeds: tuple[int, ...] = ()
    runs: tuple[Path, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure of the paper, drawn from our own runs.

    Attributes:
        key: Its name on the command line, such as "fig5".
        title: What it shows, in a line.
        caption: How it came about.
        picture: The PNG file.
        runs: The run folders behind it; none for Figure 4, which needs no network.
    """

    key: str
    title: str
    caption: str
    picture: Path
    runs: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Contents:
    """All that a report shows of the paper; the run folders bring the rest.

    Attributes:
        tables: The tables, in the paper's order.
        verdicts: The claims, in the paper's order.
        drawings: The figures that are drawn already, in the paper's order.
        remarks: What a reader must know of all of it, a sentence each, such as which of two runs
            of one network and seed counts.
    """

    tables: tuple[Table, ...] = field(default=())
    verdicts: tuple[Verdict, ...] = field(default=())
    drawings: tuple[Drawing, ...] = field(default=())
    remarks: tuple[str, ...] = field(default=())
