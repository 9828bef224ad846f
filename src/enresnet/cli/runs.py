"""``enresnet runs``."""

from __future__ import annotations

from pathlib import Path

import tyro

from enresnet.cli.output import check_outputs, say, write_json
from enresnet.common.tables import print_table
from enresnet.training import RunSummary, list_runs


def command(folder: tyro.conf.Positional[Path] = Path("runs"), *, json: Path | None = None) -> None:
    """List the runs in a folder: their state, their accuracy, and how to resume them.

    Args:
        folder: Where to look, subfolders included.
        json: Also write the list to this file.
    """
    check_outputs(json)
    found = list_runs(folder)
    write_json(json, [run.to_json() for run in found])
    if not found:
        say(f"no runs in {folder}")
        return
    print_table([_row(run) for run in found])
    stopped = [run.resume for run in found if run.state == "stopped"]
    if stopped:
        say(f"to resume a stopped run: {stopped[0]}")


def _row(run: RunSummary) -> dict[str, str]:
    if run.state == "unreadable":
        empty = dict.fromkeys(("kept", "validation, %", "test, %"), "")
        return {"run": str(run.path), "state": run.error, **empty}
    done: str = run.state
    if done not in ("integrated", "finished, weights only"):  # of those none were counted
        done += f", {run.epochs_done} of {run.epochs} epochs"
    validation = {"clean": run.validation_natural, "attacked": run.validation_robust}
    return {
        "run": str(run.path),
        "state": f"{done}\n{run.error}" if run.error else done,
        "kept": f"epoch {run.kept_epoch}" if run.kept_epoch else "",
        "validation, %": _percents(validation),
        "test, %": _percents({**run.accuracy}),
    }


def _percents(values: dict[str, float | None]) -> str:
    known = {name: value for name, value in values.items() if value is not None}
    return "\n".join(f"{name} {100 * value:.1f}" for name, value in known.items())
