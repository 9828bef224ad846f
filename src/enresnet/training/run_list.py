"""The runs in a folder, and what there is to say of each: state, accuracy, how to resume it.

Read without torch, so that many runs are listed at once.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError

from enresnet.training.checkpoint import checkpoints, facts_of
from enresnet.training.recipe import ObjectiveName
from enresnet.training.run import Run, RunState


@dataclass(frozen=True)
class RunSummary:
    """What :func:`list_runs` says of one run.

    Attributes:
        path: The run's folder.
        state: As :attr:`Run.state` says, or ``"unreadable"``; then ``error`` says why, and the
            fields below have their defaults.
        accuracy: The accuracies in [0, 1] of the best network on test images, by attack, with
            ``"clean"`` first; empty if it was not evaluated.
        model: The name of the network.
        data: The name of the data set, or the path of its folder.
        objective: What was minimised.
        epochs_done: Epochs that are finished.
        epochs: Epochs of the whole training.
        kept_epoch: The epoch whose network is the best; None before there is one.
        kept_why: Why that one was selected.
        validation_natural: Its accuracy on clean validation images, in [0, 1].
        validation_robust: Its accuracy on attacked validation images, in [0, 1]; None for a
            natural objective.
        resume: The command that goes on with a stopped run; None in other states.
        error: What is wrong with the run or with its evaluation; "" if nothing is.

    Example::

        for run in enresnet.list_runs("."):
            print(run.path, run.state, run.accuracy.get("clean"))
    """

    path: Path
    state: RunState | Literal["unreadable"]
    accuracy: dict[str, float] = field(default_factory=dict)
    model: str = ""
    data: str = ""
    objective: ObjectiveName | None = None
    epochs_done: int = 0
    epochs: int = 0
    kept_epoch: int | None = None
    kept_why: str | None = None
    validation_natural: float | None = None
    validation_robust: float | None = None
    resume: str | None = None
    error: str = ""

    @classmethod
    def of(cls, folder: Path) -> RunSummary:
        """Return the summary of a run; whatever is wrong with it is in the summary."""
        try:
            return cls._of(Run.open(folder))
        except Exception as error:  # whatever is wrong with one run, the others are listed
            return cls(folder, "unreadable", error=str(error) or type(error).__name__)

    @classmethod
    def _of(cls, run: Run) -> RunSummary:
        metrics, state = run.metrics(), run.state
        kept = run.kept_epoch() or {}
        accuracy, damage = _tested(run)
        return cls(
            path=run.folder,
            state=state,
            accuracy=accuracy,
            model=run.config.model,
            data=run.config.data,
            objective=run.config.recipe.objective,
            epochs_done=len(metrics),
            epochs=run.config.recipe.epochs,
            kept_epoch=None if not kept else int(kept["epoch"]),
            kept_why=kept.get("kept"),
            validation_natural=kept.get("validation_natural"),
            validation_robust=kept.get("validation_robust"),
            resume=_how_to_resume(run) if state == "stopped" else None,
            error=damage,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as ``enresnet runs --json`` writes them."""
        if self.state == "unreadable":
            return {"run": str(self.path), "state": self.state, "error": self.error}
        return {
            "run": str(self.path),
            "state": self.state,
            "model": self.model,
            "data": self.data,
            "objective": self.objective,
            "epochs_done": self.epochs_done,
            "epochs": self.epochs,
            "kept_epoch": self.kept_epoch,
            "kept_why": self.kept_why,
            "validation_natural": self.validation_natural,
            "validation_robust": self.validation_robust,
            "test": self.accuracy,
            **({"error": self.error} if self.error else {}),
            "resume": self.resume,
        }


def list_runs(folder: str | os.PathLike[str] = "runs") -> list[RunSummary]:
    """Return the runs in a folder, however deep, sorted by path; ``enresnet runs`` shows them.

    Args:
        folder: Where to look; ``runs`` by default. It may be a run itself.

    Returns:
        One summary a run. A run that cannot be read is listed with the reason.

    Raises:
        FileNotFoundError: There is no such folder.

    Example::

        finished = [run for run in enresnet.list_runs(".") if run.state == "finished"]
        best = max(finished, key=lambda run: run.accuracy.get("clean", 0.0), default=None)
    """
    place = Path(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {place}; name the one that holds your runs")
    return [RunSummary.of(path.parent) for path in sorted(place.rglob("config.yaml"))]


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
    """Return the options that its processes were started with, from the newest whole checkpoint."""
    for path in reversed(checkpoints(run.last)):
        try:
            return str(facts_of(path).get("options", ""))
        except (SafetensorError, ValueError, LookupError, AttributeError, OSError):
            continue  # resuming tries the one before too
    return ""
