"""Errors in the user's own code: whether one is a bug, and the line that it was raised from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_TYPED = ("<stdin>", "<string>", "<ipython")  # at a prompt, after -c, in a notebook


def is_bug(error: Exception) -> bool:
    """Return whether an error is one of those that Python raises for a mistake in the code.

    Not those of the system, such as that memory is out or a file is missing; nor those of a class
    of somebody's own, which somebody may wait for.
    """
    others = (MemoryError, OSError, Warning, FloatingPointError, StopIteration)
    return type(error).__module__ == "builtins" and not isinstance(error, others)


def raised_by_us(error: Exception) -> bool:
    """Return whether a line of this package raised an error: such an error is a sentence."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_OURS)


def users_line(error: Exception) -> str:
    """Return the last line of the user's own code that an error came from, with its place.

    Of the last line at all where none is the user's own.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"\n  {error.filename}, line {error.lineno}\n    {(error.text or '').strip()}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _of_a_library(frame.filename)]
    if not frames:
        return ""
    frame = (theirs or list(frames))[-1]
    text = f"\n    {frame.line}" if frame.line else ""
    return f"\n  {frame.filename}, line {frame.lineno}{text}"


def _of_a_library(file: str) -> bool:
    """Return whether a file is Python's own, an installed one or ours."""
    if file.startswith("<"):
        return not file.startswith(_TYPED)
    return file.startswith((_OURS, *(folder for folder in _LIBRARIES if folder)))
