"""Signals that ask a training to end: Ctrl-C, SIGTERM, and SIGUSR1, with which clusters warn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")


class InterruptedTrainingError(Exception):
    """The training was asked to end; its state is saved."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted")
        self.exit_code = 128 + number

    @classmethod
    def by_keyboard(cls) -> InterruptedTrainingError:
        """Return the error of a second Ctrl-C, which does not wait for the current step."""
        return cls(signal.SIGINT)


class Interruption:
    """Remembers that a signal asked to stop, so that the current step can be finished."""

    def __init__(self) -> None:
        self.number = 0
        self.at_once = False  # nothing would be lost: end without waiting for the next step

    def received(self, number: int, _: FrameType | None) -> None:
        """Handle a signal; a second Ctrl-C does not wait."""
        again, self.number = self.number == signal.SIGINT == number, number
        if again:
            raise KeyboardInterrupt
        if self.at_once:
            raise self.error()

    def error(self, number: int | None = None) -> InterruptedTrainingError:
        """Return the exception that ends the training, by a signal that any process received."""
        return InterruptedTrainingError(self.number if number is None else number)


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Handle the signals while the block runs; in the main thread only, as Python demands."""
    state = Interruption()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in SIGNALS:
            if (number := getattr(signal, name, None)) is not None:
                before[number] = signal.signal(number, state.received)
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
