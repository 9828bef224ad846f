"""A progress bar for long work: on a terminal and in a notebook, after two seconds of work.

Elsewhere, work that may take hours prints a line now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress


class Advance(Protocol):
    """Takes the amount of work just done, and a word to show beside the bar."""

    def __call__(self, amount: int, text: str = "") -> None:
        """Let the bar move."""


PATIENCE = 2.0  # seconds of work before a bar is worth its place on the screen
BETWEEN = 30.0  # seconds between two plain lines
REFRESH = 0.2  # seconds between two pictures of a bar in a notebook
NOTEBOOK_WIDTH = 100  # columns of a bar there


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
    ``show=None`` shows the bar when standard error is a terminal, and in a notebook; True and False
    insist. ``lines`` prints a plain line now and then where it is neither.
    """
    wanted = has_bar() if show is None else show
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


def has_bar() -> bool:
    """Return whether there is a place for a bar: a terminal, or a notebook."""
    return sys.stderr.isatty() or in_notebook()


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this code; standard error is no terminal there."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)  # a kernel has loaded it
    kind = type(None if get_shell is None else get_shell())
    return kind.__name__ == "ZMQInteractiveShell" or kind.__module__.startswith("google.colab")


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
    notebook = in_notebook()
    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[text]}", markup=False, table_column=word),
        *([progress.TimeElapsedColumn(), progress.TimeRemainingColumn()] if times else []),
        console=console.Console(
            stderr=True,
            width=NOTEBOOK_WIDTH if notebook else None,
            color_system=None if notebook else "auto",
            force_jupyter=False,
        ),
        transient=transient,
        expand=True,
    )
    task = bar.add_task(title, total=total, text="")
    refresh = _in_cell(stack, bar, transient) if notebook else None
    if refresh is None:
        stack.enter_context(bar)

    def draw(done: int, text: str) -> None:
        bar.update(task, completed=done, text=text)
        if refresh is not None:
            refresh()

    return draw


def _in_cell(stack: ExitStack, bar: Progress, transient: bool) -> Callable[[], None]:
    """Return a function that draws a bar below a notebook's cell, a few times a second.

    rich itself draws there only with ipywidgets; a display that is updated needs nothing else.
    """
    cell: Any = import_module("IPython.display").display(_plain(""), raw=True, display_id=True)
    last = -REFRESH

    def refresh(*, now: bool = False) -> None:
        nonlocal last
        if now or time.monotonic() - last >= REFRESH:
            last = time.monotonic()
            with bar.console.capture() as captured:
                bar.console.print(bar.get_renderable())
            cell.update(_plain(captured.get()), raw=True)

    stack.callback(lambda: cell.update(_plain(""), raw=True) if transient else refresh(now=True))
    return refresh


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": text.rstrip("\n")}
