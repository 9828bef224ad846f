"""The runs that a report is about, and what lies beside them: blind attacks, Figure 4."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from enresnet.report.run_facts import RunFacts, read_json
from enresnet.training import Run

CONFIG = "config.yaml"
TRANSFER = "transfer*.json"
FIGURE4 = ("pde-figure4.png", "pde-figure4.json", "figure4.json")


@dataclass(frozen=True)
class FoundRuns:
    """What a report can be made of.

    Attributes:
        runs: The runs that can be read, in the order of the folders, each once.
        transfers: Files that ``enresnet transfer --json`` wrote beside them.
        figure4: Files that ``enresnet pde figure4`` wrote beside them.
        skipped: A sentence on each run that cannot be read.

    Example::

        from enresnet.report import find_runs

        recipe = enresnet.load_recipe("natural", epochs=1)
        enresnet.train(enresnet.RunConfig("resnet8", "digits", recipe, limit=99), "runs/small")
        print(find_runs(["runs"]).runs)
    """

    runs: tuple[Run, ...]
    transfers: tuple[Path, ...] = ()
    figure4: tuple[Path, ...] = ()
    skipped: tuple[str, ...] = ()


def find_runs(places: Sequence[str | os.PathLike[str]]) -> FoundRuns:
    """Return the runs in some folders, however deep, and what lies beside them.

    Args:
        places: Folders of runs, or folders that hold some. Of a run that is named itself, blind
            attacks in the folder around it count if it took part in them.

    Returns:
        The runs. One that cannot be read is left out, and a sentence says why.

    Raises:
        FileNotFoundError: A folder is not there, or there is no run in any of them.
        ValueError: None of the runs can be read.

    Example::

        from enresnet.report import find_runs

        recipe = enresnet.load_recipe("natural", epochs=1)
        enresnet.train(enresnet.RunConfig("resnet8", "digits", recipe, limit=99), "runs/natural")
        found = find_runs(["runs"])
        print(len(found.runs), found.skipped)
    """
    if not places:
        raise FileNotFoundError("name a run, or a folder that holds runs, such as results/")
    folders: dict[Path, Path] = {}
    roots: list[Path] = []
    for place in map(Path, places):
        if not place.is_dir():
            raise FileNotFoundError(
                f"there is no folder {place}; name a run, or one that holds some"
            )
        roots.append(place)
        for path in sorted(place.rglob(CONFIG)):
            folders.setdefault(path.parent.resolve(), path.parent)
    runs, skipped = [], []
    for folder in folders.values():
        try:
            run = Run.open(folder)
            RunFacts.read(run)
            runs.append(run)
        except Exception as error:  # whatever is wrong with one run, the others are shown
            skipped.append(f"{folder} is left out: {' '.join(str(error).split())}")
    if not folders:
        shown = ", ".join(map(str, roots))
        raise FileNotFoundError(f"there is no run in {shown}: no folder there has a {CONFIG}")
    if not runs:
        raise ValueError(f"no run can be read: {'; '.join(skipped)}")
    return FoundRuns(
        tuple(runs),
        _unique(path for root in roots for path in _transfers(root)),
        _unique(path for root in roots for name in FIGURE4 for path in sorted(root.rglob(name))),
        tuple(skipped),
    )


def _transfers(root: Path) -> Iterable[Path]:
    yield from sorted(root.rglob(TRANSFER))
    if (root / CONFIG).is_file():
        around = sorted(root.resolve().parent.glob(TRANSFER))
        yield from (path for path in around if _took_part(root.resolve().name, path))


def _took_part(run: str, path: Path) -> bool:
    """Return whether a run is among the models of a file of blind attacks."""
    try:
        sources = read_json(path)["sources"]
        return any(Path(source).name == run for source in sources.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _unique(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple({path.resolve(): path for path in paths}.values())
