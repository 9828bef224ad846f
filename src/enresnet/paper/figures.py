"""Figures 4, 5 and 6 of the paper, drawn from the theory and from our own runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enresnet.common.files import atomic_write
from enresnet.common.plotting import as_png
from enresnet.common.reading import safetensors_digest
from enresnet.models import paper_name
from enresnet.paper import smoke
from enresnet.paper.figure4 import study_figure4
from enresnet.paper.figure6 import attack_images
from enresnet.paper.plan import CURVES, FIGURES, GRID
from enresnet.paper.published import Network
from enresnet.paper.run_index import RunIndex
from enresnet.report.contents import Drawing
from enresnet.report.paper_figures import accuracy_evolution
from enresnet.report.theory_figures import figure4_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(key: str, index: RunIndex, folder: Path) -> Drawing | None:
    """Draw a figure into a folder, unless what it shows is there; None if its runs are not there.

    Args:
        key: ``"fig4"``, ``"fig5"`` or ``"fig6"``.
        index: Where the runs are.
        folder: Where KEY.png and KEY.json are written.
    """
    makers: dict[str, Callable[[RunIndex], _Made | None]] = {
        "fig4": _figure4,
        "fig5": _figure5,
        "fig6": _figure6,
    }
    path, about = folder / f"{key}.png", folder / f"{key}.json"
    kept = kept_drawing(key, folder)
    if kept is not None and set(kept.runs) == _runs_of(key, index):
        return kept
    made = makers[key](index)
    if made is None:
        return None
    caption = f"{smoke.CAPTION} {made.caption}" if index.setup.smoke else made.caption
    drawing = Drawing(key, FIGURES[key], caption, path, made.runs)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(as_png(made.figure))
    values = {**asdict(drawing), "picture": path.name, "runs": [str(run) for run in made.runs]}
    values |= {"weights": _weights(made.runs), "numbers": made.numbers}
    with atomic_write(about) as temporary:
        temporary.write_text(json.dumps(values, indent=2) + "\n")
    return drawing


class _Made:
    """What was drawn, and the numbers behind it."""

    def __init__(
        self, figure: Figure, caption: str, runs: tuple[Path, ...], numbers: Mapping[str, Any]
    ) -> None:
        self.figure, self.caption, self.runs, self.numbers = figure, caption, runs, numbers


def kept_drawing(key: str, folder: Path) -> Drawing | None:
    """Return a figure that was drawn before; None if there is none, or its networks have changed.

    Args:
        key: ``"fig4"``, ``"fig5"`` or ``"fig6"``.
        folder: Where KEY.png and KEY.json are.
    """
    path = folder / f"{key}.png"
    try:
        values = json.loads(path.with_suffix(".json").read_text())
        runs = tuple(Path(run) for run in values["runs"])
        fresh = path.is_file() and values["weights"] == _weights(runs)
        drawing = Drawing(key, values["title"], values["caption"], path, runs)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return drawing if fresh else None


def _weights(runs: tuple[Path, ...]) -> list[str | None]:
    return [safetensors_digest(run / "best.safetensors") for run in runs]


def _runs_of(key: str, index: RunIndex) -> set[Path]:
    """Return the folders of the runs that a figure would show now."""
    models = {"fig4": (), "fig5": tuple(m for panel in CURVES for m in panel), "fig6": GRID}[key]
    found = (index.find(_network(model), index.setup.seeds[0]) for model in models)
    return {run.folder for run in found if run is not None}


def _network(model: str) -> Network:
    return Network(model, "robust", "cifar10")


def _figure4(index: RunIndex) -> _Made:
    result = study_figure4(**smoke.FIGURE4) if index.setup.smoke else study_figure4()
    caption = "Solved on the unit square with a random velocity; see enresnet pde figure4."
    return _Made(figure4_panels(result), caption, (), result.to_json())


def _figure5(index: RunIndex) -> _Made | None:
    seed, panels, runs = index.setup.seeds[0], [], []
    for models in CURVES:
        panel = {}
        for model in models:
            run = index.find(_network(model), seed)
            if run is not None:
                runs.append(run.folder)
                panel[paper_name(model)] = run.metrics()
        panels.append(panel)
    if not runs:
        return None
    missing = sum(map(len, CURVES)) - len(runs)
    caption = (
        f"Accuracy on the images that training attacks (dashed) and on attacked validation images "
        f"(solid, where the recipe validates), seed {seed}."
    )
    caption += f" {missing} of its networks were not run." if missing else ""
    numbers = {name: rows for panel in panels for name, rows in panel.items()}
    return _Made(accuracy_evolution(panels), caption, tuple(runs), numbers)


def _figure6(index: RunIndex) -> _Made | None:
    seed = index.setup.seeds[0]
    runs = [run for model in GRID if (run := index.find(_network(model), seed)) is not None]
    if len(runs) < len(GRID):
        return None
    attacks = [index.setup.attack("ifgsm20"), index.setup.attack("cw")]
    shown = dict(zip(map(paper_name, GRID), runs, strict=True))
    grid = attack_images(shown, attacks, epsilon=index.setup.epsilon, seed=seed)
    caption = f"{grid.caption} {index.setup.epsilon_words}"
    return _Made(grid.figure(), caption, tuple(run.folder for run in runs), grid.to_json())
