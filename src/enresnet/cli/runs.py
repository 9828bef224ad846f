"""``enresnet runs``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import tyro
from safetensors import SafetensorError

from enresnet.cli.output import check_outputs, say, write_json
from enresnet.common.tables import print_table
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
        return _describe(folder)
    except Exception as error:  # whatever is wrong with one run, the others are listed
        found = str(error) or type(error).__name__
        return {"run": str(folder), "state": "unreadable", "error": found}


def _describe(folder: Path) -> dict[str, Any]:
    run = Run.open(folder)
    metrics, state = run.metrics(), run.state
    kept = run.kept_epoch() or {}
    tested, damage = _tested(run)
    return {
        "run": str(folder),
        "state": state,
        "model": run.config.model,
        "data": run.config.data,
        "objective": run.config.recipe.objective,
        "epochs_done": len(metrics),
        "epochs": run.config.recipe.epochs,
        "kept_epoch": None if not kept else int(kept["epoch"]),
        "kept_why": kept.get("kept"),
        **{name: kept.get(name) for name in ("validation_natural", "validation_robust")},
        "test": tested,
        **({"error": damage} if damage else {}),
        "resume": _how_to_resume(run) if state == "stopped" else None,
    }


def _tested(run: Run) -> tuple[dict[str, float], str]:
    """Return the accuracies of the best network, or what is wrong with the file they are in."""
    try:
        evaluation = run.evaluation("best")
    except (ValueError, OSError) as error:
        return {}, str(error)
    if not evaluation:
        return {}, ""
    if run.results.outdated("best"):
        return {}, "evaluated with other weights than it holds now: evaluate it again"
    entries = {"clean": evaluation["natural"], **evaluation["robust"]}
    return {name: value["accuracy"] for name, value in entries.items() if value}, ""


def _how_to_resume(run: Run) -> str:
    if run.config.parts:
        weights = run.config.weights
        own = f" --weights {' '.join(map(str, weights))}" if len(set(weights)) > 1 else ""
        return f"enresnet integrate {shlex.join(run.config.parts)} --out {run.folder}{own}"
    return f"enresnet resume {run.folder}{_options(run)}"


def _options(run: Run) -> str:
    """Return what its processes were started with, as the newest readable checkpoint says."""
    for path in reversed(checkpoints(run.last)):
        try:
            return str(facts_of(path).get("options", ""))
        except (SafetensorError, ValueError, LookupError, AttributeError, OSError):
            continue  # resuming looks at the one before too
    return ""


def _row(run: dict[str, Any]) -> dict[str, str]:
    if run["state"] == "unreadable":
        empty = dict.fromkeys(("kept", "validation, %", "test, %"), "")
        return {"run": run["run"], "state": run["error"], **empty}
    names = {"clean": "validation_natural", "attacked": "validation_robust"}
    done = run["state"]
    if done not in ("integrated", "finished, weights only"):  # of those none were counted
        done += f", {run['epochs_done']} of {run['epochs']} epochs"
    return {
        "run": run["run"],
        "state": f"{done}\n{run['error']}" if "error" in run else done,
        "kept": f"epoch {run['kept_epoch']}" if run["kept_epoch"] else "",
        "validation, %": _percents({name: run[key] for name, key in names.items()}),
        "test, %": _percents(run["test"]),
    }


def _percents(values: dict[str, float | None]) -> str:
    known = {name: value for name, value in values.items() if value is not None}
    return "\n".join(f"{name} {100 * value:.1f}" for name, value in known.items())
