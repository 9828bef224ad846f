"""A folder that nothing leaves: every write of this process is watched, and one outside ends it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# What may be written besides the folder itself: Python's own byte code, and what was opened before.
_SILENT = ("/proc/", "/dev/shm/", "/dev/tty")
_ALLOWED: list[str] = []
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class LeftTheSandboxError(BaseException):
    """Something was about to be written elsewhere: no handler of ours may catch it."""


def enter(folder: Path) -> None:
    """Work in ``folder`` from now on, with every cache inside it; there is no way back."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    inside = {
        "HOME": folder / "home",
        "XDG_CACHE_HOME": folder / "cache",
        "ENRESNET_DATA": folder / "data",
        "TMPDIR": folder / "tmp",
        "MPLCONFIGDIR": folder / "matplotlib",
    }
    for name, path in inside.items():
        path.mkdir(exist_ok=True)
        os.environ[name] = str(path)
    tempfile.tempdir = str(inside["TMPDIR"])
    os.chdir(folder)
    _ALLOWED.append(f"{folder}{os.sep}")
    sys.addaudithook(_watch)


def is_write(arguments: tuple[Any, ...]) -> bool:
    """Return whether the audit event "open" is of a path that will be written to."""
    path, mode, flags = arguments
    writes = bool(isinstance(flags, int) and flags & _WRITES) or (
        isinstance(mode, str) and any(letter in mode for letter in "wax+")
    )
    return writes and not isinstance(path, int)


# Audit events that change what a path leads to, and where their arguments hold a folder's number
# that the path is relative to.
_CHANGES = {
    "os.remove": 1,
    "os.rmdir": 1,
    "os.mkdir": 2,
    "os.chmod": 2,
    "os.chown": 3,
    "os.truncate": None,
    "shutil.rmtree": 1,
}


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and is_write(arguments):
        # Libraries start programs with their errors to the null device, which keeps nothing.
        # Only opening it is allowed: renamed or removed, it would be gone for the whole machine.
        if arguments[0] != os.devnull:
            _check(arguments[0], event)
    elif event in _CHANGES:
        place = _CHANGES[event]
        _check(arguments[0], event, None if place is None else arguments[place])
    elif event in ("os.rename", "os.link"):
        _check(arguments[0], event, arguments[2])
        _check(arguments[1], event, arguments[3])
    elif event == "os.symlink":
        _check(arguments[1], event, arguments[2])


def _check(path: Any, event: str, folder: Any = None) -> None:
    if not isinstance(path, str | bytes | os.PathLike) or not _ALLOWED:
        return
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        text = str(Path(f"/proc/self/fd/{folder}").readlink() / text)
    text = os.path.realpath(text)
    if text.endswith(".pyc") or "__pycache__" in text or text.startswith(_SILENT):
        return
    if not any(f"{text}{os.sep}".startswith(root) for root in _ALLOWED):
        raise LeftTheSandboxError(f"{event} of {text}")
