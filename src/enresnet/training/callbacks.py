"""Callbacks of a training: the picture of its curves, TensorBoard, and the base of your own."""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from enresnet.common.files import atomic_write
from enresnet.common.plotting import as_png
from enresnet.training.curves import draw_curves
from enresnet.training.events import Epoch, Step
from enresnet.training.run import Run

if TYPE_CHECKING:
    from enresnet.training.trainer import Trainer


class Callback:
    """Base class of callbacks: called at the start, after steps and epochs, and at the end.

    The methods do nothing unless overridden. Callbacks run in the first process only. An exception
    in one ends the training, whose last checkpoint is kept.

    Example::

        from enresnet.training import Callback, Epoch

        class Losses(Callback):
            def epoch(self, epoch: Epoch):
                print(epoch.epoch, epoch.train_loss)

        recipe = enresnet.load_recipe("natural", epochs=1)
        config = enresnet.RunConfig("resnet8", "digits", recipe, limit=100)
        run = enresnet.train(config, "runs/digits", callbacks=[Losses()])
    """

    def begin(self, run: Run, trainer: Trainer, epochs: Sequence[Epoch], resumed: str) -> None:
        """Called when training starts.

        Args:
            run: The run's folder.
            trainer: The trainer.
            epochs: The epochs that are done already; empty unless the training is resumed.
            resumed: From where it is resumed, in words; "" for a new training.
        """

    def step(self, step: Step) -> None:
        """Called after every step."""

    def epoch(self, epoch: Epoch) -> None:
        """Called after every epoch, when its network and metrics are stored."""

    def end(self) -> None:
        """Called when training ends, for whatever reason."""


class Picture(Callback):
    """Draws curves.png in the run folder, at most every 30 seconds, and at the end."""

    EVERY = 30.0  # seconds

    def begin(self, run: Run, trainer: Trainer, epochs: Sequence[Epoch], resumed: str) -> None:
        """Remember the epochs that are done."""
        del trainer, resumed
        self._run, self._epochs = run, list(epochs)
        self._drawn, self._last = 0, time.monotonic()

    def epoch(self, epoch: Epoch) -> None:
        """Draw, unless the last picture is recent."""
        self._epochs.append(epoch)
        if time.monotonic() - self._last > self.EVERY:
            self._draw()

    def end(self) -> None:
        """Draw the epochs that are not drawn yet."""
        if len(self._epochs) > self._drawn:
            self._draw()

    def _draw(self) -> None:
        with atomic_write(self._run.folder / "curves.png") as temporary:
            temporary.write_bytes(as_png(draw_curves(self._run.config.model, self._epochs)))
        self._drawn, self._last = len(self._epochs), time.monotonic()


class TensorBoard(Callback):
    """Writes what TensorBoard shows to the folder ``tensorboard`` of the run."""

    EVERY = 20  # steps
    _file: Any = None

    @staticmethod
    def installed() -> bool:
        """Return whether TensorBoard is installed."""
        return find_spec("tensorboard") is not None

    def begin(self, run: Run, trainer: Trainer, epochs: Sequence[Epoch], resumed: str) -> None:
        """Open a file; it hides what a killed process wrote after its last checkpoint."""
        del epochs, resumed
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._trainer, self._file = trainer, None
        folder, done = run.folder / "tensorboard", trainer.steps_done
        name = f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{os.getpid()}.0"
        with self._going_on():
            folder.mkdir(exist_ok=True)
            self._file = (folder / name).open("ab", buffering=0)
        self._add(step=done, file_version="brain.Event:2")
        self._add(step=done, session_log=SessionLog(status=SessionLog.START))

    def step(self, step: Step) -> None:
        """Write every 20th step."""
        done = self._trainer.steps_done
        if done % self.EVERY == 0:
            self._write(done, loss=step.loss, natural=step.natural, robust=step.robust)
            self._write(done, learning_rate=step.learning_rate)

    def epoch(self, epoch: Epoch) -> None:
        """Write what validation found."""
        self._write(
            self._trainer.steps_done,
            validation_natural=epoch.validation_natural,
            validation_robust=epoch.validation_robust,
            images_per_second=epoch.images_per_second,
        )

    def end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, step: int, **values: float | None) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for name, value in values.items():
            if value is not None:
                shown = Summary.Value(tag=name, simple_value=value)
                self._add(step=step, summary=Summary(value=[shown]))

    def _add(self, **content: Any) -> None:
        """Write an event at once.

        The writers of torch and TensorBoard write from a thread, where an error becomes a
        traceback on the terminal.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is not None:
            with self._going_on():
                RecordWriter(self._file).write(
                    Event(wall_time=time.time(), **content).SerializeToString()
                )

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Continue without TensorBoard if its file cannot be written."""
        try:
            yield
        except OSError as error:
            warnings.warn(
                f"nothing more is written for TensorBoard ({error}); the training goes on",
                stacklevel=2,
            )
            if self._file is not None:
                self._file.close()
            self._file = None
