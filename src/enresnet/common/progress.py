"""A progress bar for long work: it appears on a terminal once the work has taken two seconds.

Where there is no terminal, work that may take hours prints a line now and then.
"""

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
BETWEEN = 30.0  # seconds between two plain lines


@contextmanager
def progress_bar(
    title: str,
    total: int | None,
    *,
    done: int = 0,
    times: bool = True,
    lines: bool = False,
    show: bool | None = None,
) -> Iterator[Advance]:
    """Yield a function that takes the amount of work just done, out of ``total``, and a word on it.

    Without a total the bar only shows that work goes on. ``done`` is what was done before;
    ``times=False`` leaves the times to the word beside the bar.
    ``show=None`` shows the bar when standard error is a terminal; True and False insist.
    ``lines`` prints a plain line now and then where it is none.
    """
    wanted = sys.stderr.isatty() if show is None else show
    started = time.monotonic()
    say = _lines(title, total, done) if lines and show is None and not wanted else None
    with ExitStack() as stack:
        draw: Callable[[int, str], None] | None = None

        def advance(amount: int, text: str = "") -> None:
            nonlocal done, draw
            done += amount
            if draw is None and wanted and (show or time.monotonic() - started > PATIENCE):
                draw = _open_bar(stack, title, total, times, transient=show is None)
            if draw is not None:
                draw(done, text)
            if say is not None:
                say(done, text)

        yield advance


@contextmanager
def counted(advance: Advance, cost: int, text: str = "") -> Iterator[Callable[[int], None]]:
    """Yield a function that takes work as it comes; in the end it amounts to ``cost``.

    However much or little it was: what work costs is known only roughly before.
    """
    done = 0

    def passed(number: int) -> None:
        nonlocal done
        step = min(number, cost - done)
        done += step
        advance(step, text)

    yield passed
    advance(cost - done, text)


def _lines(title: str, total: int | None, before: int) -> Callable[[int, str], None]:
    """Return a function that prints how far the work is, unless it did so a moment ago."""
    started = last = time.monotonic()

    def say(done: int, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < BETWEEN:
            return
        last, parts = now, [f"{title} {text}".rstrip(), f"{clock(now - started)} so far"]
        if total and done > before:
            left = (total - done) * (now - started) / (done - before)
            parts[1:1] = [f"{100 * done / total:.0f} %"]
            parts.append(f"{clock(left)} left")
        print(", ".join(parts), file=sys.stderr, flush=True)

    return say


def clock(seconds: float) -> str:
    """Return a time as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _open_bar(
    stack: ExitStack, title: str, total: int | None, times: bool, *, transient: bool
) -> Callable[[int, str], None]:
    # Only now: most calls never show a bar.
    from rich import console, progress
    from rich.table import Column

    # The word beside the bar gives way on a narrow terminal; bar and percentage never do.
    word = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[text]}", markup=False, table_column=word),
        *([progress.TimeElapsedColumn(), progress.TimeRemainingColumn()] if times else []),
        console=console.Console(stderr=True),
        transient=transient,
        expand=True,
    )
    task = stack.enter_context(bar).add_task(title, total=total, text="")

    def draw(done: int, text: str) -> None:
        bar.update(task, completed=done, text=text)

    return draw
