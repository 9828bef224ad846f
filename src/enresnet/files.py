"""Files that are whole or not there, and files that one process has to itself."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; on success it becomes ``path``, otherwise it leaves no trace."""
    target = writable(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch()  # with the permissions that any new file gets
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)
        synchronise(temporary)  # the rename must not overtake the data when the machine dies
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def synchronise(path: Path) -> None:
    """Wait until a file is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def is_leftover(path: Path) -> bool:
    """Return whether a file is what a process that was killed left of :func:`replacing`."""
    return _LEFTOVER.fullmatch(path.name) is not None


_LEFTOVER = re.compile(r"\..+\.\d+\.[0-9a-f]{8}\.tmp")


def writable(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if a file can be put there; long work asks before it starts."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: its folder does not exist")
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"cannot write {target}: its folder is not writable")
    return target


def take(file: IO[Any]) -> bool:
    """Return whether an exclusive lock on an open file was to be had.

    The system lets go of it when the process ends.
    """
    try:
        import fcntl
    except ImportError:  # not on this system: two processes in one place are the user's care
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(file: IO[Any], otherwise: str) -> Iterator[None]:
    """Keep an open file to one process; raise with a word where another has it."""
    if not take(file):
        raise FileExistsError(f"{otherwise} by another process")
    yield
