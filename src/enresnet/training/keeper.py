"""Writes a run's folder while its network trains: checkpoints, networks, metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from enresnet import native
from enresnet.common import checks
from enresnet.common.precision import EARLIER_NAMES
from enresnet.training.checkpoint import checkpoints
from enresnet.training.events import Epoch, Step
from enresnet.training.interruption import Interruption
from enresnet.training.run import Run
from enresnet.training.run_config import plain_config
from enresnet.training.selection import Selection
from enresnet.training.state import TrainingState
from enresnet.training.trainer import ADVICE, Trainer

SHORTEST = 10.0  # seconds between two checkpoints, by default
SHARE = 0.01  # of the time that checkpoints may take
AT_EPOCH = 1.0  # seconds since the last checkpoint after which the end of an epoch gets one


class Keeper:
    """Writes a run's folder, in the first process alone, and reads it in all of them."""

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        asked: Interruption,
        every: float | None,
        *,
        anew: bool = False,
        other_loops: bool = False,
    ) -> None:
        self._run, self._trainer, self._asked, self._every = run, trainer, asked, every
        self._anew, self._other_loops = anew, other_loops
        # How many of the processes draw noise by the loops in C; the others do by torch's.
        here = torch.tensor(float(native.library() is not None), device=trainer.engine.device)
        self._loops = int(trainer.engine.sum_over_processes(here).item())
        self._first = trainer.engine.rank == 0
        self._alone = trainer.engine.processes == 1
        self.epochs: list[Epoch] = []
        recipe = run.config.recipe
        self._selection = Selection(epochs=recipe.epochs, averaged=recipe.ema > 0)
        self._saved, self._cost = time.monotonic(), 0.0
        self.step = 0  # the last that is stored

    def resume(self) -> str:
        """Restore the trainer from the newest whole checkpoint; return from where, or ''."""
        with self._fitting():
            found = TrainingState.load(self._run.last)
        if found is None:
            if checkpoints(self._run.last):
                raise ValueError(
                    f"no checkpoint in {self._run.last} is whole; remove the folder to start anew"
                )
            return ""
        state, damaged = found
        self._check_run(state)
        others = self._check_loops(state)
        with self._fitting():
            self._trainer.restore(state.trainer)
        self._selection.restore(state.selection)
        self.epochs = list(state.epochs)
        if self._first:
            for path in damaged:  # they would take the place of whole ones
                path.unlink()
        self.step = self._trainer.steps_done
        if self._first:
            self._run.record(self._selection.marked(self.epochs))
        self._check_agreement()
        at = self._trainer.progress
        return (
            f"resuming from step {self.step} (epoch {at.epoch + 1}, step {at.step} of "
            f"{self._trainer.steps}), saved {state.saved}{others}"
        )

    def after_step(self, step: Step) -> None:
        """Store the state if a checkpoint is due; raise if a signal asked to stop."""
        self._asked.at_once = False
        if step.stop:
            self._save()
            self._trainer.engine.wait()  # none is to leave while the first still writes
            raise self._asked.error(step.stop)
        # The first one before there is any network: see the run's folder.
        if self._due(step.closes_epoch) or (step.closes_epoch and not self.step):
            self._save()
        # Until the next step there is only validation, which can be done again. Other processes
        # would wait in vain.
        stored = self.step == self._trainer.steps_done
        self._asked.at_once = step.closes_epoch and stored and self._alone

    def after_epoch(self, epoch: Epoch) -> None:
        """Store the networks and the metrics."""
        self.epochs.append(epoch)
        found = self._trainer.validation
        keep = self._selection.consider(
            epoch.epoch,
            None if found is None else found.scores,
            selecting=self._trainer.selecting,
        )
        if not self._first:
            return
        due = self._due(True)
        if due or keep or epoch.epoch == self._run.config.recipe.epochs:
            _check_finite(self._trainer.result.state_dict(), self._trainer)
        if keep:
            self._run.save("best", self._trainer.result)
        if due or epoch.epoch == self._run.config.recipe.epochs:
            self._run.save("last", self._trainer.result)
        self._run.record(self._selection.marked(self.epochs))
        if due:
            self._save()

    def finish(self) -> None:
        """Remove what only resuming needs."""
        self._asked.at_once = False
        if self._first:
            for path in checkpoints(self._run.last):
                path.unlink()

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._run.folder

    @property
    def kept(self) -> str:
        """What is stored, for the text of an error."""
        if not self._first:
            return "the last stored state is kept"
        if not self.step:
            return "nothing was stored yet"
        return f"the state of step {self.step} is kept in {self._run.folder}"

    @property
    def how_to_resume(self) -> str:
        """What to type to resume, for the text of an error."""
        options = self._trainer.engine.options
        again = "run the same command again" + " without --overwrite" * self._anew
        return f"{again}, or enresnet resume {self._run.folder}{options}"

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Add to an error that it comes from a checkpoint that is not this run's."""
        try:
            yield
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            raise ValueError(
                f"the checkpoint in {self._run.last} does not fit {self._run.config.model} "
                f"({type(error).__name__}: {reason}): was it copied from another run? {_ANEW}"
            ) from error

    def _check_run(self, state: TrainingState) -> None:
        """Raise if a checkpoint is of another run; those of earlier versions do not say."""
        here = self._identity()
        if state.run is None:
            return
        there = {**state.run, "precision": _precision_of_today(state.run.get("precision"))}
        differing = [
            f"{name} {checks.brief(there[name])} there, {checks.brief(here[name])} here"
            for name in here
            if name in there and there[name] != here[name]
        ]
        if differing:
            raise ValueError(
                f"{self._run.last} holds a checkpoint of another run ({'; '.join(differing)}). "
                f"{_ANEW}"
            )

    def _identity(self) -> dict[str, Any]:
        """Return what decides a training: not the path of the images, but their digest."""
        values = plain_config(self._run.config)
        for name in ("data", "parts", "weights"):
            del values[name]
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    def _check_loops(self, state: TrainingState) -> str:
        """Return a note if the training began with other loops; raise unless that is allowed."""
        engine, begun = self._trainer.engine, state.native_loops
        if begun is None:  # stored by an earlier version
            before = self._run.began_with_loops()
            begun = self._loops if before is None else before * engine.processes
        if begun == self._loops:
            return ""
        if not self._other_loops:
            reason = native.other_loops(bool(begun)) or (
                f"{checks.brief(begun)} of its {engine.processes} processes had the loops in C, "
                f"and now {self._loops} have"
            )
            raise ValueError(
                f"{self._run.folder} cannot go on as it began: {reason}; or go on with other draws "
                "by --other-loops"
            )
        now = "by the loops in C" if self._loops else "by torch's operations"
        return f"; from here on the noise is drawn {now}, as environment.json says"

    def _check_agreement(self) -> None:
        engine = self._trainer.engine
        mine = torch.tensor(float(self.step), device=engine.device)
        if engine.sum_over_processes(mine).item() != self.step * engine.processes:
            raise ValueError(
                f"process {engine.rank} found step {self.step} in {self._run.last} and others "
                "found another; do all of them see the same folder?"
            )

    def _due(self, epoch_ends: bool) -> bool:
        if self._every is None:
            wanted = max(AT_EPOCH if epoch_ends else SHORTEST, self._cost / SHARE)
        else:
            wanted = self._every
        return time.monotonic() - self._saved >= wanted

    def _save(self) -> None:
        start, trainer = time.monotonic(), self._trainer
        if self._first:
            state = TrainingState(
                trainer=trainer.state,
                epochs=self.epochs,
                selection=self._selection.state,
                options=trainer.engine.options,
                run=self._identity(),
                native_loops=self._loops,
                saved=datetime.now(UTC).isoformat(timespec="milliseconds"),
            )
            _check_finite(state.tensors(), trainer)
            state.save(self._run.last, trainer.steps_done)
        self.step = trainer.steps_done
        self._saved = time.monotonic()
        self._cost = self._saved - start


_ANEW = "Put its own checkpoint back, or train anew with --overwrite"


def _precision_of_today(name: object) -> object:
    return EARLIER_NAMES.get(name, name) if isinstance(name, str) else name


def _check_finite(tensors: Mapping[str, Tensor], trainer: Trainer) -> None:
    odd = [name for name, value in tensors.items() if not torch.isfinite(value).all()]
    if odd:
        raise FloatingPointError(
            f"{odd[0]} is no longer finite after step {trainer.steps_done}; {ADVICE}"
        )
