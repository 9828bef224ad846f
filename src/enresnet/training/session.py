"""One call from a configuration to a finished run folder, through whatever stops it on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from enresnet.common import checks
from enresnet.common.processes import first_process
from enresnet.training.callbacks import Callback, Picture, TensorBoard
from enresnet.training.engine import Engine, LostProcessError
from enresnet.training.events import Step
from enresnet.training.interruption import InterruptedTrainingError, interruption
from enresnet.training.keeper import Keeper
from enresnet.training.memory import networks_of
from enresnet.training.run import Run, RunConfig
from enresnet.training.trainer import Trainer


def train(
    config: RunConfig,
    out: Path,
    *,
    engine: Engine | None = None,
    checkpoint_every: float | None = None,
    callbacks: Sequence[Callback] = (),
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
        listening = [*callbacks, *extra] if first else []
        stack.enter_context(_told(keeper, trainer))

        def after_step(step: Step) -> None:
            with _writing(keeper):
                for callback in listening:
                    callback.step(step)
                keeper.after_step(step)

        with ExitStack() as ending:
            for callback in listening:
                callback.begin(run, trainer, keeper.epochs, resumed)
                ending.callback(callback.end)
            for epoch in trainer.epochs(after_step):
                with _writing(keeper):
                    keeper.after_epoch(epoch)
                    for callback in listening:
                        callback.epoch(epoch)
        keeper.finish()  # last: a run whose callbacks were cut short is not finished
    return run


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
