"""One call from a configuration to a finished run folder; interrupted, the same call resumes it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from enresnet.common import checks
from enresnet.common.files import remove_leftovers
from enresnet.common.processes import first_process
from enresnet.common.randomness import torch_seeded
from enresnet.data import DataSet
from enresnet.models import names_code
from enresnet.training.callbacks import Callback, Picture, TensorBoard
from enresnet.training.engine import Engine, LostProcessError
from enresnet.training.events import Step
from enresnet.training.interruption import InterruptedTrainingError, interruption
from enresnet.training.keeper import Keeper
from enresnet.training.memory import networks_of
from enresnet.training.run import LOCK, Run
from enresnet.training.run_config import RunConfig
from enresnet.training.strides import wrong_in_bfloat16
from enresnet.training.trainer import Trainer


def train(
    config: RunConfig,
    out: str | os.PathLike[str],
    *,
    engine: Engine | None = None,
    checkpoint_every: float | None = None,
    callbacks: Sequence[Callback] = (),
    overwrite: bool = False,
    other_loops: bool = False,
    curves: bool = True,
    trust_code: bool = False,
) -> Run:
    """Train a network into a run folder, or resume the training that the same call began there.

    The best network and the last one are kept; :mod:`~enresnet.training.selection` says which is
    the best. A finished run is returned as it is.

    Args:
        config: Model, data, recipe and seed.
        out: The run folder; it is created.
        engine: Device, precision and processes; by default one process on the fastest device, in
            ``config.precision``.
        checkpoint_every: Seconds between two checkpoints; by default 10, or more where that would
            take over 1 % of the time.
        callbacks: Called at the start, after steps and epochs, and at the end.
        overwrite: True discards the networks in the folder and trains from the start.
        other_loops: True allows to resume with the loops in C although the training began without
            them, or the other way round. The noise of the remaining steps is then different.
        curves: False draws no curves.png, which takes longer than a training of seconds does.
        trust_code: True imports and runs the code, ``module.path:name``, that builds the recipe's
            teacher, where it names some. The code of ``config.model`` is run in any case.

    Returns:
        The finished run.

    Raises:
        FileExistsError: The folder holds a run of another configuration, or a network without a
            checkpoint to resume from.
        FloatingPointError: The loss or a weight is no longer finite.
        InterruptedTrainingError: A signal such as Ctrl-C asked to stop; the state is stored.
        LostProcessError: Another process of this training ended.
        MemoryError: A step does not fit into memory; the error says what would.
        OSError: The data cannot be read, or the folder cannot be written.
        ValueError: The configuration, the engine and the folder do not fit together.

    Example::

        recipe = enresnet.load_recipe("natural", epochs=1)
        config = enresnet.RunConfig("resnet8", "digits", recipe, limit=100)
        run = enresnet.train(config, "runs/digits")
        model = run.load("best")
    """
    out = Path(out)
    if not isinstance(config, RunConfig):
        raise TypeError(
            f"config must be a RunConfig, such as RunConfig('resnet8', 'digits', "
            f"load_recipe('fast')); found {checks.brief(config)}"
        )
    if checkpoint_every is not None:
        checks.number("checkpoint_every", checkpoint_every, low=0)
    if engine is None:
        engine = Engine(precision=config.precision)
    elif config.precision not in ("auto", engine.precision):
        raise ValueError(
            f"precision is {config.precision} in the configuration and {engine.precision} in the "
            "engine; they must be the same"
        )
    if not overwrite and (out / "config.yaml").exists():
        Run.open(out).check_resumable()  # before the data is read, or even fetched
    data = config.load_data()
    data.check_classes()
    _choose_precision(engine, config, data)
    config = replace(
        config,
        fingerprint=data.fingerprint,
        classes=data.classes,
        precision=engine.precision,
    )
    with ExitStack() as stack:
        first = first_process()
        new, begun = _New.looked_at(out), ExitStack()
        if (out / "config.yaml").exists():  # in every process: none is to wait for the others
            run = Run.start(out, config)
            if run.finished and not overwrite:
                remove_leftovers(out)  # of a process that was killed while another one trained
                return run
        if first:
            run = Run.start(out, config)
            stack.enter_context(run.locked())
            stack.push(begun)
            begun.push(new.remove_after_errors)
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
            trust_code=trust_code,
        )
        if overwrite:
            if first:
                run.discard()
            engine.wait()  # no process looks for checkpoints before
        keeper = Keeper(
            run, trainer, asked, checkpoint_every, anew=overwrite, other_loops=other_loops
        )
        resumed = keeper.resume()
        begun.pop_all()  # from here on there is something to resume
        if first:
            run.record_environment(keeper.step, processes=engine.processes)
        extra = [
            *([Picture()] if curves else []),
            *([TensorBoard()] if TensorBoard.installed() else []),
        ]
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


def resume(
    folder: str | os.PathLike[str],
    *,
    engine: Engine | None = None,
    checkpoint_every: float | None = None,
    callbacks: Sequence[Callback] = (),
    overwrite: bool = False,
    other_loops: bool = False,
    trust_code: bool = False,
) -> Run:
    """Resume the training of a run folder, as its config.yaml says.

    Args:
        folder: The folder that :func:`train` made.
        engine: As in :func:`train`; the number of processes must be the same as before.
        checkpoint_every: Seconds between two checkpoints, as in :func:`train`.
        callbacks: Called at the start, after steps and epochs, and at the end.
        overwrite: True discards the networks in the folder and trains from the start.
        other_loops: True allows to resume with or without the loops in C, unlike before.
        trust_code: True imports and runs the code, ``module.path:name``, that builds the network
            or its teacher, where config.yaml or the teacher's file names some.

    Returns:
        The finished run; a run that was finished already is returned as it is.

    Raises:
        FileNotFoundError: The folder is not a run.
        ValueError: The run was integrated from others, so that there is nothing to train, or it
            names code; else as :func:`train`, like all other errors.

    Example::

        recipe = enresnet.load_recipe("natural", epochs=1)
        config = enresnet.RunConfig("resnet8", "digits", recipe, limit=100)
        enresnet.train(config, "runs/digits")
        run = enresnet.resume("runs/digits")  # continues if it was stopped
    """
    run = Run.open(folder)
    if run.config.parts:
        raise ValueError(f"{run.folder} was integrated from other runs; there is nothing to train")
    if names_code(run.config.model) and not trust_code:
        raise ValueError(
            f"{run.folder} names code, {run.config.model}, which would be imported and run. If you "
            "trust it, say trust_code=True, or --trust-code"
        )
    return train(
        run.config,
        run.folder,
        engine=engine,
        checkpoint_every=checkpoint_every,
        callbacks=callbacks,
        overwrite=overwrite,
        other_loops=other_loops,
        trust_code=trust_code,
    )


def _choose_precision(engine: Engine, config: RunConfig, data: DataSet) -> None:
    """Take float32 if nobody asked for bfloat16, and torch is wrong in it on this network.

    Ours never has strides that are too large for its images.
    """
    if not engine.automatic or engine.precision != "bf16" or ":" not in config.model:
        return
    if engine.device.type != "cpu":
        return
    few = data.train.batch(slice(2))[0]
    try:
        with torch_seeded(0, few.device):
            why = wrong_in_bfloat16(config.create_model(data), few)
    except Exception:  # what is wrong with the network is told where it is trained
        return
    if why:
        engine.fall_back(why)


@dataclass(frozen=True)
class _New:
    """What a training that does not even begin must not leave behind."""

    out: Path
    run: bool  # whether there was none before
    folder: bool

    @classmethod
    def looked_at(cls, out: Path) -> _New:
        return cls(out, run=not (out / "config.yaml").exists(), folder=not out.exists())

    def remove_after_errors(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not self.run:
            return
        for name in ("config.yaml", LOCK):
            (self.out / name).unlink(missing_ok=True)
        if self.folder and not any(self.out.iterdir()):
            self.out.rmdir()


@contextmanager
def _writing(keeper: Keeper) -> Iterator[None]:
    """Add to an error of the system that the run's folder could not be written."""
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
    """Add to an error that ends a training what is stored, and how to resume."""
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
    except (RuntimeError, LostProcessError) as error:
        if isinstance(error, LostProcessError) or trainer.engine.is_lost(error):
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
