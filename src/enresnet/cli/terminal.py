"""A training on the terminal: one line that changes, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.console import Console

from enresnet.common.progress import clock, has_bar, progress_bar
from enresnet.common.text import for_terminal
from enresnet.training import Callback, Epoch, Run, Step

if TYPE_CHECKING:
    from enresnet.training import Trainer

PATIENCE = 30.0  # seconds between two plain lines


class Terminal(Callback):
    """Shows where the training stands, and keeps its epochs."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self._console = Console()
        self._stack = ExitStack()

    def begin(self, run: Run, trainer: Trainer, epochs: Sequence[Epoch], resumed: str) -> None:
        """Say from where the training goes on."""
        if resumed:
            self._say(resumed)
        self.epochs = list(epochs)
        self._trainer, self._of = trainer, run.config.recipe.epochs
        total = self._of * trainer.steps
        self._advance = self._stack.enter_context(
            progress_bar(run.config.model, total, done=trainer.steps_done, times=False)
        )
        self._lines = not has_bar()
        self._last = time.monotonic()
        # Time and steps lately, for a rate that follows a machine's moods.
        self._marks: deque[tuple[float, int, int]] = deque(maxlen=50)
        self._images = 0
        self._mark()

    def step(self, step: Step) -> None:
        """Let the line change, or print one if the last is long ago."""
        self._images += step.images
        self._mark()
        text = self._state(step)
        self._advance(1, text)
        if self._lines and time.monotonic() - self._last > PATIENCE:
            self._last = time.monotonic()
            self._say(f"epoch {step.epoch}/{self._of}, step {step.step}/{step.steps}: {text}")

    def epoch(self, epoch: Epoch) -> None:
        """Print a line that stays."""
        self.epochs.append(epoch)
        self._last = time.monotonic()
        self._marks.clear()
        self._mark()
        self._say(_line(epoch, self._of))

    def end(self) -> None:
        """Leave the terminal as it was."""
        self._stack.close()

    def _mark(self) -> None:
        self._marks.append((time.monotonic(), self._trainer.steps_done, self._images))

    def _state(self, step: Step) -> str:
        parts = [f"loss {step.loss:.3f}"]
        if step.natural is not None:
            parts.append(f"natural {100 * step.natural:.1f} %")
        if step.robust is not None:
            parts.append(f"attacked {100 * step.robust:.1f} %")
        (then, steps, images), (now, done, seen) = self._marks[0], self._marks[-1]
        if now > then and done > steps:
            left = (self._of * step.steps - done) * (now - then) / (done - steps)
            parts += [f"{(seen - images) / (now - then):.0f} images/s", f"{clock(left)} left"]
        return ", ".join(parts)

    def _say(self, text: str) -> None:
        self._console.print(for_terminal(text), highlight=False, soft_wrap=True, markup=False)


def _line(epoch: Epoch, epochs: int) -> str:
    parts = [f"epoch {epoch.epoch}/{epochs}: loss {epoch.train_loss:.3f}"]
    for name, natural, robust in (
        ("training", epoch.train_natural, epoch.train_robust),
        ("validation", epoch.validation_natural, epoch.validation_robust),
    ):
        if natural is not None:
            parts.append(f"{name} natural {100 * natural:.1f} %")
        if robust is not None:
            parts.append(f"attacked {100 * robust:.1f} %")
    if epoch.weights:
        parts.append(f"weights {epoch.weights}")
    parts += [
        f"rate {epoch.learning_rate:.3g}",
        f"{epoch.images_per_second:.0f} images/s",
        f"{epoch.seconds:.0f} s",
    ]
    return ", ".join(parts) + (f"\n  {epoch.note}" if epoch.note else "")
