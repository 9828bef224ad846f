"""A progress bar for long work: it appears on a terminal once the work has taken two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol


class Advance(Protocol):
    """Takes the amount of work just done, and a word to show beside the bar."""

    def __call__(self, amount: int, text: str = "") -> None:
        """Let the bar move."""


PATIENCE = 2.0  # seconds of work before a bar is worth its place on the screen


@contextmanager
def progress_bar(
    title: str,
    total: int | None,
    *,
    done: int = 0,
    times: bool = True,
    show: bool | None = None,
) -> Iterator[Advance]:
    """Yield a function that takes the amount of work just done, out of ``total``, and a word on it.

    Without a total the bar only shows that work goes on. ``done`` is what was done before;
    ``times=False`` leaves the times to the word beside the bar.
    ``show=None`` shows the bar when standard error is a terminal; True and False insist.
    """
    wanted = sys.stderr.isatty() if show is None else show
    started = time.monotonic()
    with ExitStack() as stack:
        draw: Callable[[int, str], None] | None = None

        def advance(amount: int, text: str = "") -> None:
            nonlocal done, draw
            done += amount
            if draw is None and wanted and (show or time.monotonic() - started > PATIENCE):
                draw = _open_bar(stack, title, total, times, transient=show is None)
            if draw is not None:
                draw(done, text)

        yield advance


def _open_bar(
    stack: ExitStack, title: str, total: int | None, times: bool, *, transient: bool
) -> Callable[[int, str], None]:
    from rich import console, progress  # only now: most calls never show a bar

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[text]}"),
        *([progress.TimeElapsedColumn(), progress.TimeRemainingColumn()] if times else []),
        console=console.Console(stderr=True),
        transient=transient,
    )
    task = stack.enter_context(bar).add_task(title, total=total, text="")

    def draw(done: int, text: str) -> None:
        bar.update(task, completed=done, text=text)

    return draw
