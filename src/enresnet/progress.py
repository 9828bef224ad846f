"""A progress bar for long work: it appears on a terminal once the work has taken two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

PATIENCE = 2.0  # seconds of work before a bar is worth its place on the screen


@contextmanager
def progress_bar(
    title: str, total: int | None, *, unit: str = "", show: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the amount of work just done, out of ``total``.

    Without a total the bar only shows that work goes on. A ``unit`` adds a rate, such as images/s.
    ``show=None`` shows the bar when standard error is a terminal; True and False insist.
    """
    wanted = sys.stderr.isatty() if show is None else show
    started, done = time.monotonic(), 0
    with ExitStack() as stack:
        draw: Callable[[int], None] | None = None

        def advance(amount: int) -> None:
            nonlocal done, draw
            done += amount
            if draw is None and wanted and (show or time.monotonic() - started > PATIENCE):
                draw = _open_bar(stack, title, total, unit, transient=show is None)
            if draw is not None:
                draw(done)

        yield advance


def _open_bar(
    stack: ExitStack, title: str, total: int | None, unit: str, *, transient: bool
) -> Callable[[int], None]:
    from rich import console, progress  # only now: most calls never show a bar

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
        transient=transient,
    )
    task = stack.enter_context(bar).add_task(title, total=total, rate="")

    def draw(done: int) -> None:
        speed = bar.tasks[0].speed
        bar.update(task, completed=done, rate=f"{speed:.0f} {unit}/s" if unit and speed else "")

    return draw
