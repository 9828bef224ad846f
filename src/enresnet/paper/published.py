"""The paper as data: every number of its tables and of its text, with what it was measured on.

``published.yaml`` holds the numbers; this file gives them types and finds them again. Accuracies
are in percent, differences in points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from enresnet.common import checks
from enresnet.common.reading import parse_yaml
from enresnet.models import canonical_name, paper_name

Training = Literal["robust", "natural", "trades", "without_noise", "learned_weights", "integrated"]
"""Where a network comes from; ``published.yaml`` opens with what each means."""

Metric = Literal["natural", "fgsm", "ifgsm20", "cw", "strongest"]
"""The accuracy on clean images, or under the attack of this name."""

TRAININGS: tuple[Training, ...] = get_args(Training)
METRICS: tuple[Metric, ...] = get_args(Metric)


@dataclass(frozen=True)
class Network:
    """A network of the paper: its architecture, how it was trained, and on what.

    Attributes:
        model: Its name in the registry, such as ``"en2_resnet20"``.
        training: Where it comes from.
        data: ``"cifar10"`` or ``"cifar100"``.
    """

    model: str
    training: Training
    data: str

    @property
    def key(self) -> str:
        """Its name for files and on the command line, unique among networks of one data set but
        for those trained naturally, which have a recipe of their own.
        """
        usual = self.training in ("robust", "natural")
        return self.model if usual else f"{self.model}-{self.training}"

    @property
    def parts(self) -> tuple[Network, ...]:
        """The networks that it was integrated from; none if it was trained as a whole."""
        if self.training != "integrated":
            return ()
        return tuple(Network(part, "robust", self.data) for part in self.model.split("+"))


@dataclass(frozen=True)
class PublishedCell:
    """A published accuracy.

    Attributes:
        table: The key of its table.
        network: The network that classifies.
        source: The network that the attack sees, if it is a blind one.
        metric: What was measured.
        value: The accuracy, in percent.
        note: Where it does not fit what the paper says elsewhere.
    """

    table: str
    network: Network
    source: Network | None
    metric: Metric
    value: float
    note: str = ""


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table: one network, under all metrics.

    Attributes:
        title: As the paper prints it.
        network: The network that classifies.
        source: The network that attacks see, if they are blind.
        cells: Its accuracies, in the order of the table's metrics.
    """

    title: str
    network: Network
    source: Network | None
    cells: tuple[PublishedCell, ...]

    @property
    def key(self) -> str:
        """Its name on the command line."""
        return row_key(self.network, self.source)


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper, or numbers of its text that belong together.

    Attributes:
        key: Its name on the command line, such as ``"table2"``.
        title: What it shows, in a line.
        where: Where it stands in the paper.
        data: The data set.
        metrics: The columns.
        rows: The rows.
    """

    key: str
    title: str
    where: str
    data: str
    metrics: tuple[Metric, ...]
    rows: tuple[PublishedRow, ...]

    @property
    def white_box(self) -> bool:
        """Whether it has robust accuracies under attacks that see the network itself."""
        blind = any(row.source for row in self.rows)
        return not blind and any(metric != "natural" for metric in self.metrics)


@dataclass(frozen=True)
class Quote:
    """A number of the text that repeats a cell of a table.

    Attributes:
        where: The section.
        cell: The cell.
        value: The number as the text has it.
    """

    where: str
    cell: PublishedCell
    value: float


@dataclass(frozen=True)
class Gain:
    """A difference that the text states.

    Attributes:
        where: The section.
        first: The cell of the first network.
        second: That of the second.
        value: The first less the second as the text has it, in points.
        about: Whether the text only says "about".
    """

    where: str
    first: PublishedCell
    second: PublishedCell
    value: float
    about: bool


@dataclass(frozen=True)
class Contradiction:
    """Where the paper's numbers do not fit its sentences, or each other.

    Attributes:
        where: The section and the table.
        says: What the sentence says.
        finds: What the numbers say.
        cells: The cells that it is about.
    """

    where: str
    says: str
    finds: str
    cells: tuple[PublishedCell, ...]


@dataclass(frozen=True)
class Paper:
    """All numbers of the paper.

    Attributes:
        tables: The tables by key, in the paper's order, then the numbers that stand in the text.
        quotes: Numbers of the text that repeat a table.
        gains: Differences of the text.
        parameters: Sizes of the text, in millions of parameters, by model.
        contradictions: Where the paper contradicts itself.
        settings: How the paper trains and attacks.

    Example::

        from enresnet.paper import load_paper

        row = load_paper().tables["table2"].rows[3]
        print(row.title, [cell.value for cell in row.cells])  # En5ResNet20 [82.52, ...]
    """

    tables: Mapping[str, PublishedTable]
    quotes: tuple[Quote, ...]
    gains: tuple[Gain, ...]
    parameters: Mapping[str, float]
    contradictions: tuple[Contradiction, ...]
    settings: Mapping[str, Any]

    @property
    def epsilon(self) -> float:
        """How far the attacks of the paper may move a pixel."""
        return float(Fraction(self.settings["epsilon"]))

    def cells(self) -> Iterator[PublishedCell]:
        """Yield all published accuracies, table by table."""
        for table in self.tables.values():
            for row in table.rows:
                yield from row.cells

    def find(
        self, network: Network, metric: Metric, source: Network | None = None
    ) -> PublishedCell | None:
        """Return what the paper has of a network; None if it has nothing.

        Args:
            network: The network that classifies.
            metric: What was measured.
            source: The network that the attack sees, if it is a blind one.
        """
        wanted = (network, metric, source)
        return next((c for c in self.cells() if (c.network, c.metric, c.source) == wanted), None)


def row_key(network: Network, source: Network | None = None) -> str:
    """Return what a row is called on the command line and in names of files."""
    return network.key if source is None else f"{network.key}-from-{source.key}"


@cache
def load_paper() -> Paper:
    """Return all numbers of the paper.

    Returns:
        Tables 1 to 10, and the numbers of the text.

    Raises:
        ValueError: ``published.yaml`` is damaged.

    Example::

        from enresnet.paper import load_paper

        paper = load_paper()
        print(len(list(paper.cells())), "accuracies,", len(paper.contradictions), "contradictions")
    """
    text = (resources.files("enresnet.paper") / "published.yaml").read_text(encoding="utf-8")
    values = parse_yaml(text, name="published.yaml")
    notes: dict[tuple[str, str, str], str] = {}
    for found in values["contradictions"]:
        for cell in found["cells"]:
            place = (cell["table"], cell["model"], cell["metric"])
            notes[place] = f"{found['where']}: {found['says']} {found['finds']}"
    tables = {key: _table(key, table, notes) for key, table in values["tables"].items()}
    return Paper(
        tables,
        tuple(
            Quote(quote["where"], _cell(tables, quote, quote["metric"]), quote["value"])
            for quote in values["quotes"]
        ),
        tuple(
            Gain(
                gain["where"],
                _cell(tables, gain["first"], gain["metric"]),
                _cell(tables, gain["second"], gain["metric"]),
                gain["value"],
                gain.get("about", False),
            )
            for gain in values["gains"]
        ),
        {size["model"]: size["value"] for size in values["parameters"]},
        tuple(
            Contradiction(
                found["where"],
                found["says"],
                found["finds"],
                tuple(_cell(tables, cell, cell["metric"]) for cell in found["cells"]),
            )
            for found in values["contradictions"]
        ),
        values["settings"],
    )


def _table(
    key: str, values: Mapping[str, Any], notes: Mapping[tuple[str, str, str], str]
) -> PublishedTable:
    metrics = tuple(checks.choice("metric", metric, METRICS) for metric in values["metrics"])
    where = values.get("where", key.replace("table", "Table "))
    rows = tuple(_row(key, values, row, metrics, notes) for row in values["rows"])
    return PublishedTable(key, values["title"], where, values["data"], metrics, rows)


def _row(
    table: str,
    values: Mapping[str, Any],
    row: Mapping[str, Any],
    metrics: Sequence[Metric],
    notes: Mapping[tuple[str, str, str], str],
) -> PublishedRow:
    training = checks.choice("training", row.get("training", values.get("training")), TRAININGS)
    network = Network(canonical_name(row["model"]), training, values["data"])
    source = Network(row["source"], training, values["data"]) if "source" in row else None
    title = row.get("title", paper_name(network.model))
    if source is not None:
        title += f", attacks on {paper_name(source.model)}"
    cells = tuple(
        PublishedCell(
            table,
            network,
            source,
            metric,
            float(value),
            notes.get((table, row["model"], metric), ""),
        )
        for metric, value in zip(metrics, row["values"], strict=True)
    )
    return PublishedRow(title, network, source, cells)


def _cell(
    tables: Mapping[str, PublishedTable], place: Mapping[str, Any], metric: str
) -> PublishedCell:
    rows = [row for row in tables[place["table"]].rows if row.network.model == place["model"]]
    for cell in (cell for row in rows for cell in row.cells):
        if cell.metric == metric:
            return cell
    raise ValueError(
        f"published.yaml has no {metric} of {place['model']} in {place['table']}, which it names"
    )
