"""Functions of the user's own, named as ``module.path:name``; their errors show their own line."""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


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
    """Return an error of the user's own code, told by the last line of theirs that was reached."""
    if isinstance(error, SyntaxError) and error.filename:
        place, text = f"{error.filename}, line {error.lineno}", (error.text or "").strip()
        word = error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not _of_a_library(frame.filename)]
        frame = (theirs or list(frames))[-1]
        place, text, word = f"{frame.filename}, line {frame.lineno}", frame.line or "", str(error)
    name = type(error).__name__
    return ValueError(f"{what}: {name}: {word}\n  {place}\n    {text}")


def _of_a_library(file: str) -> bool:
    """Return whether a file is Python's own, an installed one or ours."""
    folders = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    ours = str(Path(__file__).parents[1])
    return file.startswith(("<", ours, *(f for f in folders if f)))
