"""``enresnet runs``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tyro

from enresnet.cli.output import check_outputs, print_table, say, write_json
from enresnet.training import Run
from enresnet.training.checkpoint import checkpoints, facts_of


def command(folder: tyro.conf.Positional[Path] = Path("runs"), *, json: Path | None = None) -> None:
    """List the runs in a folder: their state, their accuracy, and how to go on with them.

    Args:
        folder: Where to look, however deep.
        json: Also write the list to this file.
    """
    check_outputs(json)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; name the one that holds your runs")
    found = [describe(path.parent) for path in sorted(folder.rglob("config.yaml"))]
    write_json(json, found)
    if not found:
        say(f"no runs in {folder}")
        return
    print_table([_row(run) for run in found])
    stopped = [run["resume"] for run in found if run["state"] == "stopped"]
    if stopped:
        say(f"to go on with a stopped one: {stopped[0]}")


def describe(folder: Path) -> dict[str, Any]:
    """Return what there is to say of a run, as plain JSON."""
    try:
        run = Run.open(folder)
        metrics = run.metrics()
        evaluation = run.evaluation("best")
        finished, running = run.finished, run.running
    except (ValueError, TypeError, AttributeError, OSError, KeyError) as error:
        return {"run": str(folder), "state": "unreadable", "error": str(error)}
    state = "finished" if finished else "running" if running else "stopped"
    kept = run.kept_epoch() or {}
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
        "kept_epoch": None if not kept else int(kept["epoch"]),
        "kept_why": kept.get("kept"),
        **{name: kept.get(name) for name in ("validation_natural", "validation_robust")},
        "test": tested,
        "resume": f"enresnet resume {folder}{_options(run)}" if state == "stopped" else None,
    }


def _options(run: Run) -> str:
    """Return what its processes were started with."""
    stored = checkpoints(run.last)
    return "" if not stored else str(facts_of(stored[-1]).get("options", ""))


def _row(run: dict[str, Any]) -> dict[str, str]:
    if run["state"] == "unreadable":
        empty = dict.fromkeys(("kept", "validation, %", "test, %"), "")
        return {"run": run["run"], "state": run["error"], **empty}
    names = {"clean": "validation_natural", "attacked": "validation_robust"}
    return {
        "run": run["run"],
        "state": f"{run['state']}, {run['epochs_done']} of {run['epochs']} epochs",
        "kept": f"epoch {run['kept_epoch']}" if run["kept_epoch"] else "",
        "validation, %": _percents({name: run[key] for name, key in names.items()}),
        "test, %": _percents(run["test"]),
    }


def _percents(values: dict[str, float | None]) -> str:
    known = {name: value for name, value in values.items() if value is not None}
    return "\n".join(f"{name} {100 * value:.1f}" for name, value in known.items())
