"""One call from a configuration to a finished run folder, through whatever stops it on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from enresnet import native
from enresnet.common import checks
from enresnet.common.processes import first_process
from enresnet.training.callbacks import Callback, Picture, TensorBoard
from enresnet.training.checkpoint import checkpoints, newest_checkpoint, write_checkpoint
from enresnet.training.engine import Engine, LostProcessError
from enresnet.training.events import Epoch, Step
from enresnet.training.interruption import (
    InterruptedTrainingError,
    Interruption,
    interruption,
)
from enresnet.training.memory import networks_of
from enresnet.training.run import Run, RunConfig, plain_config
from enresnet.training.selection import Selection
from enresnet.training.state import prefixed, without_prefix
from enresnet.training.trainer import ADVICE, Trainer

SHORTEST = 10.0  # seconds between two checkpoints, unless told
SHARE = 0.01  # of the time that checkpoints may take
AT_EPOCH = 1.0  # seconds since the last checkpoint that make one worth its while after an epoch


def train(
    config: RunConfig,
    out: Path,
    *,
    engine: Engine | None = None,
    checkpoint_every: float | None = None,
    watchers: Sequence[Callback] = (),
    overwrite: bool = False,
    other_loops: bool = False,
) -> Run:
    """Train as ``config`` says into the folder ``out``, or go on with what the same call began.

    The best network and the last one are kept; :mod:`~enresnet.training.selection` says which is
    the best. All that resuming needs is stored every ``checkpoint_every`` seconds; by default every
    ten, or as seldom as it takes to spend less than a hundredth of the time on it.

    A run that is finished is left as it is, and a network without a checkpoint to go on from is
    refused, unless ``overwrite`` says that the folder's training is to start anew. A training that
    began with the loops in C goes on without them, or the other way round, only with
    ``other_loops``: the noise of the steps to come is then another.
    """
    if checkpoint_every is not None:
        checks.number("checkpoint_every", checkpoint_every, low=0)
    if engine is None:
        engine = Engine(precision=config.precision)
    elif config.precision not in ("auto", engine.precision):
        raise ValueError(
            f"precision is {config.precision} in the configuration and {engine.precision} in the "
            "engine; they must be the same"
        )
    if not overwrite and (out / "config.yaml").is_file():
        Run.open(out).check_resumable()  # before the data is read, or even fetched
    data = config.load_data()
    data.check_classes()
    config = replace(
        config,
        fingerprint=data.fingerprint,
        classes=data.classes,
        precision=engine.precision,
    )
    with ExitStack() as stack:
        first = first_process()
        if (out / "config.yaml").is_file():  # in every process: none is to wait for the others
            run = Run.start(out, config)
            if run.finished and not overwrite:
                return run
        if first:
            run = Run.start(out, config)
            stack.enter_context(run.locked())
            if not overwrite:  # another process may have ended since
                if run.finished:
                    return run
                run.check_resumable()
        else:
            run = Run(out, config)
        engine.launch()
        asked = stack.enter_context(interruption())
        model = config.create_model(data)
        trainer = Trainer(
            model,
            data,
            config.recipe,
            seed=config.seed,
            engine=engine,
            stop_asked=lambda: asked.number,
        )
        if overwrite:
            if first:
                run.discard()
            engine.wait()  # no process looks for checkpoints before
        keeper = Keeper(
            run, trainer, asked, checkpoint_every, anew=overwrite, other_loops=other_loops
        )
        resumed = keeper.resume()
        if first:
            run.record_environment(keeper.step, processes=engine.processes)
        extra = [Picture(), *([TensorBoard()] if TensorBoard.installed() else [])]
        listening = [*watchers, *extra] if first else []
        stack.enter_context(_told(keeper, trainer))

        def after_step(step: Step) -> None:
            with _writing(keeper):
                for watcher in listening:
                    watcher.step(step)
                keeper.after_step(step)

        with ExitStack() as watching:
            for watcher in listening:
                watcher.begin(run, trainer, keeper.epochs, resumed)
                watching.callback(watcher.end)
            for epoch in trainer.epochs(after_step):
                with _writing(keeper):
                    keeper.after_epoch(epoch)
                    for watcher in listening:
                        watcher.epoch(epoch)
        keeper.finish()  # last: a run whose watchers were cut short is not finished
    return run


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
        """Put the trainer where the newest whole checkpoint stands; return from where, or ''."""
        state = newest_checkpoint(self._run.last)
        if state is None:
            if checkpoints(self._run.last):
                raise ValueError(
                    f"no checkpoint in {self._run.last} is whole; remove the folder to start anew"
                )
            return ""
        tensors, facts, damaged = state
        self._check_run(facts)
        others = self._check_loops(facts)
        try:
            self._trainer.restore(tensors, facts)
            self.epochs = [Epoch(**values) for values in facts["epochs"]]
            if "selection" in facts:
                self._selection.restore(without_prefix("selection", tensors), facts["selection"])
            saved = str(facts["saved"])
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            raise ValueError(
                f"the checkpoint in {self._run.last} does not fit {self._run.config.model} "
                f"({type(error).__name__}: {reason}): was it copied from another run? {_ANEW}"
            ) from error
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
            f"{self._trainer.steps}), saved {saved}{others}"
        )

    def after_step(self, step: Step) -> None:
        """Store the state if it is time; end if that was asked for."""
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
        """What a user can count on after an error."""
        if not self._first:
            return "the last stored state is kept"
        if not self.step:
            return "nothing was stored yet"
        return f"the state of step {self.step} is kept in {self._run.folder}"

    @property
    def how_to_resume(self) -> str:
        """What a user can type."""
        options = self._trainer.engine.options
        again = "run the same command again" + " without --overwrite" * self._anew
        return f"{again}, or enresnet resume {self._run.folder}{options}"

    def _check_run(self, facts: Mapping[str, Any]) -> None:
        """Raise if a checkpoint says that it is another run's; earlier versions do not say."""
        there, here = facts.get("run"), self._identity()
        if not isinstance(there, dict):
            return
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
        """Return what decides a training; where the images lie does not, their digest does."""
        values = plain_config(self._run.config)
        for name in ("data", "parts", "weights"):
            del values[name]
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    def _check_loops(self, facts: Mapping[str, Any]) -> str:
        """Raise if the training began with other loops, unless that is allowed; then say so."""
        engine, begun = self._trainer.engine, facts.get("native_loops")
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
            tensors = {
                **trainer.tensors(),
                **prefixed("selection", self._selection.tensors()),
            }
            _check_finite(tensors, trainer)
            facts = {
                **trainer.facts(),
                "epochs": [asdict(epoch) for epoch in self.epochs],
                "selection": self._selection.facts(),
                "options": trainer.engine.options,
                "run": self._identity(),
                "native_loops": self._loops,
                "saved": datetime.now(UTC).isoformat(timespec="milliseconds"),
            }
            write_checkpoint(self._run.last, trainer.steps_done, tensors, facts)
        self.step = trainer.steps_done
        self._saved = time.monotonic()
        self._cost = self._saved - start


_ANEW = "Put its own checkpoint back, or train anew with --overwrite"


def _check_finite(tensors: Mapping[str, Tensor], trainer: Trainer) -> None:
    odd = [name for name, value in tensors.items() if not torch.isfinite(value).all()]
    if odd:
        raise FloatingPointError(
            f"{odd[0]} is no longer finite after step {trainer.steps_done}; {ADVICE}"
        )


@contextmanager
def _writing(keeper: Keeper) -> Iterator[None]:
    """Say of an error of the system that it came in writing the run's folder."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        raise OSError(
            f"cannot write to {keeper.folder}: {error.strerror or error}; {keeper.kept}; once that "
            f"is mended, {keeper.how_to_resume}"
        ) from error


@contextmanager
def _told(keeper: Keeper, trainer: Trainer) -> Iterator[None]:
    """Add to what ends a training what is kept, and how to go on."""
    try:
        yield
    except (InterruptedTrainingError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):
            error = InterruptedTrainingError.by_keyboard()
        error.args = (f"interrupted: {keeper.kept}; to go on, {keeper.how_to_resume}",)
        raise error from None
    except FloatingPointError as error:
        raise FloatingPointError(f"{error}; {keeper.kept}") from error
    except MemoryError as error:
        raise _out_of_memory(keeper, trainer) from error
    except RuntimeError as error:
        if trainer.engine.is_lost(error):
            raise LostProcessError(
                f"another process of this training ended, so process {trainer.engine.rank} stops "
                f"too: {keeper.kept}; to go on, {keeper.how_to_resume}"
            ) from error
        if "out of memory" in str(error) or "can't allocate memory" in str(error):
            raise _out_of_memory(keeper, trainer) from error
        raise


def _out_of_memory(keeper: Keeper, trainer: Trainer) -> MemoryError:
    ways = [] if trainer.recompute or len(networks_of(trainer.model)) == 1 else ["memory=lean"]
    ways.append(f"batch_size={max(1, trainer.recipe.batch_size // 2)}")
    return MemoryError(f"out of memory: try {' or '.join(ways)} in another run; {keeper.kept}")
