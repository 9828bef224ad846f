"""What captions say of the runs behind a table: their images, their precisions, what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from enresnet.paper.claims import Side
from enresnet.paper.published import Network, PublishedTable
from enresnet.report.contents import Row
from enresnet.training import Run
from enresnet.training.run_groups import precision_words

MOST_NAMED = 3  # runs in a sentence


def images_words(rows: Sequence[Row]) -> str:
    """Return a sentence on how many test images the figures of a table are of; "" without any."""
    counts: dict[str, set[int]] = {}
    for cell in (cell for row in rows for cell in row.cells):
        if cell.measured is not None:
            counts.setdefault(cell.metric, set()).add(cell.measured.images)
    words = [f"{metric} {' or '.join(map(str, sorted(own)))}" for metric, own in counts.items()]
    return f"Test images measured: {', '.join(words)}." if words else ""


def precision_notes(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each row whose seeds were trained in different precisions."""
    found = []
    for row in rows:
        folders = {f: None for cell in row.cells if cell.measured for f in cell.measured.runs}
        if words := precision_words([Run.open(folder) for folder in folders]):
            found.append(f"{row.title}: {words}")
    return found


def networks_in(table: PublishedTable) -> list[Network]:
    """Return the networks of a table, and those that attacks of its rows see."""
    return [n for row in table.rows for n in networks_of(Side(row.network, row.source))]


def networks_of(side: Side) -> tuple[Network, ...]:
    """Return the network of a side, and the one that its attacks see."""
    return (side.network,) if side.source is None else (side.network, side.source)


def trained_otherwise_words(recipe: str, way: str, runs: Sequence[Run]) -> str:
    """Return a sentence on runs that do not count."""
    one = len(runs) == 1
    folders = ", ".join(str(run.folder) for run in runs[:MOST_NAMED])
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return (
        f"{len(runs)} run{'' if one else 's'} of {'a network' if one else 'networks'} shown as not "
        f"run {'does' if one else 'do'} not count, trained in another way than recipe {recipe}: "
        f"{way} ({folders}{more})."
    )
