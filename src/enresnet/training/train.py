"""One call from a configuration to a finished run folder, through whatever stops it on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from enresnet import checks
from enresnet.processes import first_process
from enresnet.training.checkpoint import checkpoints, newest_checkpoint, write_checkpoint
from enresnet.training.engine import Engine, LostProcessError
from enresnet.training.interruption import (
    InterruptedTrainingError,
    Interruption,
    interruption,
)
from enresnet.training.memory import networks_of
from enresnet.training.run import Run, RunConfig
from enresnet.training.selection import Selection
from enresnet.training.standing import Epoch, Step
from enresnet.training.state import prefixed, without_prefix
from enresnet.training.trainer import ADVICE, Trainer
from enresnet.training.watcher import Picture, TensorBoard, Watcher

SHORTEST = 10.0  # seconds between two checkpoints, unless told
SHARE = 0.01  # of the time that checkpoints may take
AT_EPOCH = 1.0  # seconds since the last checkpoint that make one worth its while after an epoch


def train(
    config: RunConfig,
    out: Path,
    *,
    engine: Engine | None = None,
    checkpoint_every: float | None = None,
    watchers: Sequence[Watcher] = (),
) -> Run:
    """Train as ``config`` says into the folder ``out``, or go on with what the same call began.

    The best network and the last one are kept; :mod:`~enresnet.training.selection` says which is
    the best. All that resuming needs is stored every ``checkpoint_every`` seconds; by default every
    ten, or as seldom as it takes to spend less than a hundredth of the time on it. A run that is
    finished is left as it is.
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
    data = config.load_data()
    data.check_classes()
    config = replace(config, fingerprint=data.fingerprint, precision=engine.precision)
    with ExitStack() as stack:
        first = first_process()
        if (out / "config.yaml").is_file():  # in every process: none is to wait for the others
            run = Run.start(out, config)
            if run.finished:
                return run
        if first:
            run = Run.start(out, config)
            stack.enter_context(run.locked())
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
        keeper = Keeper(run, trainer, asked, checkpoint_every)
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
        self, run: Run, trainer: Trainer, asked: Interruption, every: float | None
    ) -> None:
        self._run, self._trainer, self._asked, self._every = run, trainer, asked, every
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
        self._trainer.restore(tensors, facts)
        if self._first:
            for path in damaged:  # they would take the place of whole ones
                path.unlink()
        self.epochs = [Epoch(**values) for values in facts["epochs"]]
        self.step = self._trainer.steps_done
        if "selection" in facts:
            self._selection.restore(without_prefix("selection", tensors), facts["selection"])
        if self._first:
            self._run.record(self._selection.marked(self.epochs))
        self._check_agreement()
        at = self._trainer.progress
        return (
            f"resuming from step {self.step} (epoch {at.epoch + 1}, step {at.step} of "
            f"{self._trainer.steps}), saved {facts['saved']}"
        )

    def after_step(self, step: Step) -> None:
        """Store the state if it is time; end if that was asked for."""
        self._asked.at_once = False
        if step.stop:
            self._save()
            self._trainer.engine.wait()  # none is to leave while the first still writes
            raise self._asked.error(step.stop)
        if self._due(step.closes_epoch):
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
        return f"run the same command again, or enresnet resume {self._run.folder}{options}"

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
                "saved": datetime.now(UTC).isoformat(timespec="milliseconds"),
            }
            write_checkpoint(self._run.last, trainer.steps_done, tensors, facts)
        self.step = trainer.steps_done
        self._saved = time.monotonic()
        self._cost = self._saved - start


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
    ways = [] if trainer.lean or len(networks_of(trainer.model)) == 1 else ["memory=lean"]
    ways.append(f"batch_size={max(1, trainer.recipe.batch_size // 2)}")
    return MemoryError(f"out of memory: try {' or '.join(ways)} in another run; {keeper.kept}")
