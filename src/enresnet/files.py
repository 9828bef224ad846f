"""Files that are whole or not there: written under a temporary name, then renamed."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
