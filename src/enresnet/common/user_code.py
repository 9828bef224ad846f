"""Code of the user's own, named as ``module.path:name``; its errors show its own line."""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_TYPED = ("<stdin>", "<string>", "<ipython")  # at a prompt, after -c, in a notebook


def is_code_name(name: str) -> bool:
    """Return whether a text has the form ``module.path:name``."""
    return _NAME.fullmatch(name) is not None


def import_named(source: str) -> Any:
    """Import what ``module.path:name`` names, from the current folder or what is installed.

    Raises:
        FileNotFoundError: There is no such module.
        ValueError: It cannot be imported, or has no such name.
    """
    module_name, _, name = source.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as python -m does
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise at_its_line(f"{module_name} cannot be imported", error) from error
        raise FileNotFoundError(
            f"there is no module {module_name} here or among the installed packages"
        ) from error
    except Exception as error:
        raise at_its_line(f"{module_name} cannot be imported", error) from error
    finally:
        sys.path.remove(here)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"module {module_name} has no {name}")
        found = getattr(found, part)
    return found


def at_its_line(what: str, error: Exception) -> ValueError:
    """Return an error of the user's own code, with the last line of that code that ran."""
    word = error.msg if isinstance(error, SyntaxError) else str(error)
    return ValueError(f"{what}: {type(error).__name__}: {word}{users_line(error)}")


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
