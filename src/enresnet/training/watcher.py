"""Who looks on while a network trains: the terminal, a picture, TensorBoard, one's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from enresnet.drawing import as_png
from enresnet.files import replacing
from enresnet.training.curves import draw_curves
from enresnet.training.run import Run
from enresnet.training.standing import Epoch, Step

if TYPE_CHECKING:
    from enresnet.training.trainer import Trainer


class Watcher:
    """Hears of a training's start, steps, epochs and end; does nothing unless overridden."""

    def begin(self, run: Run, trainer: Trainer, epochs: Sequence[Epoch], resumed: str) -> None:
        """Training starts, after ``epochs`` that are done; ``resumed`` says from where."""

    def step(self, step: Step) -> None:
        """A step was taken."""

    def epoch(self, epoch: Epoch) -> None:
        """An epoch was finished and stored."""

    def end(self) -> None:
        """Training ended, for whatever reason."""


class Picture(Watcher):
    """Keeps curves.png in the run folder, drawn anew now and then, and at the end."""

    EVERY = 30.0  # seconds

    def begin(self, run: Run, trainer: Trainer, epochs: Sequence[Epoch], resumed: str) -> None:
        """Remember the epochs that are done."""
        del trainer, resumed
        self._run, self._epochs = run, list(epochs)
        self._drawn, self._last = 0, time.monotonic()

    def epoch(self, epoch: Epoch) -> None:
        """Draw, unless it was done just now."""
        self._epochs.append(epoch)
        if time.monotonic() - self._last > self.EVERY:
            self._draw()

    def end(self) -> None:
        """Draw what is not drawn yet."""
        if len(self._epochs) > self._drawn:
            self._draw()

    def _draw(self) -> None:
        with replacing(self._run.folder / "curves.png") as temporary:
            temporary.write_bytes(as_png(draw_curves(self._run.config.model, self._epochs)))
        self._drawn, self._last = len(self._epochs), time.monotonic()


class TensorBoard(Watcher):
    """Writes what TensorBoard shows to the folder ``tensorboard`` of the run."""

    EVERY = 20  # steps

    @staticmethod
    def installed() -> bool:
        """Return whether there is a TensorBoard to write for."""
        return find_spec("tensorboard") is not None

    def begin(self, run: Run, trainer: Trainer, epochs: Sequence[Epoch], resumed: str) -> None:
        """Open the folder; what a killed process wrote beyond its last checkpoint is hidden."""
        del epochs, resumed
        from torch.utils.tensorboard import SummaryWriter

        self._trainer = trainer
        self._writer = SummaryWriter(
            run.folder / "tensorboard", purge_step=trainer.steps_done, flush_secs=10
        )

    def step(self, step: Step) -> None:
        """Write now and then."""
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
        self._writer.close()

    def _write(self, step: int, **values: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
