"""``enresnet runs``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tyro

from enresnet.cli.output import print_table, write_json
from enresnet.files import writable
from enresnet.training import Run


def command(folder: tyro.conf.Positional[Path] = Path("runs"), *, json: Path | None = None) -> None:
    """List the runs in a folder: their state, their accuracy, and how to go on with them.

    Args:
        folder: Where to look, however deep.
        json: Also write the list to this file.
    """
    if json is not None:
        writable(json)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; name the one that holds your runs")
    found = [describe(path.parent) for path in sorted(folder.rglob("config.yaml"))]
    write_json(json, found)
    if not found:
        print(f"no runs in {folder}")
        return
    print_table([_row(run) for run in found])
    stopped = [run["run"] for run in found if run["state"] == "stopped"]
    if stopped:
        print("to go on with a stopped one: enresnet resume", stopped[0])


def describe(folder: Path) -> dict[str, Any]:
    """Return what there is to say of a run, as plain JSON."""
    try:
        run = Run.open(folder)
        metrics = run.metrics()
        evaluation = run.evaluation("best")
        finished, running = run.finished, run.running
    except (ValueError, OSError, KeyError) as error:
        return {"run": str(folder), "state": "unreadable", "error": str(error)}
    state = "finished" if finished else "running" if running else "stopped"
    columns = ("validation_natural", "validation_robust")
    best = {
        column: max((row[column] for row in metrics if row[column] is not None), default=None)
        for column in columns
    }
    tested = {"clean": evaluation["natural"]["accuracy"]} if evaluation else {}
    if evaluation:
        tested |= {name: value["accuracy"] for name, value in evaluation["robust"].items()}
    return {
        "run": str(folder),
        "state": "integrated" if run.config.parts else state,
        "model": run.config.model,
        "data": run.config.data,
        "objective": run.config.recipe.objective,
        "epochs_done": len(metrics),
        "epochs": run.config.recipe.epochs,
        **best,
        "test": tested,
        "resume": f"enresnet resume {folder}" if state == "stopped" else None,
    }


def _row(run: dict[str, Any]) -> dict[str, str]:
    if run["state"] == "unreadable":
        return dict.fromkeys(_COLUMNS, "") | {"run": run["run"], "state": run["error"]}
    return {
        "run": run["run"],
        "state": run["state"],
        "model": run["model"],
        "data": Path(run["data"]).name,
        "objective": run["objective"],
        "epochs": f"{run['epochs_done']}/{run['epochs']}",
        "best validation, % (clean, attacked)": ", ".join(
            _percent(run[name]) for name in ("validation_natural", "validation_robust")
        ),
        "test, %": ", ".join(f"{name} {_percent(value)}" for name, value in run["test"].items()),
    }


_COLUMNS = (
    "run",
    "state",
    "model",
    "data",
    "objective",
    "epochs",
    "best validation, % (clean, attacked)",
    "test, %",
)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
