"""Files that are whole or not there, and files that one process has to itself."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from platformdirs import user_cache_path


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; on success it becomes ``path``, otherwise it leaves no trace.

    A link stays a link: the file it points to is replaced. A file that was there keeps its mode
    and, where the system allows it, its owner. What is no regular file (a FIFO, a device) is never
    replaced: the finished content is written into it. As in a shell, writing to a FIFO waits for a
    reader.
    """
    target = writable(path)
    # A file that our own output goes to, as /dev/stdout may be, is written to as well: were it
    # replaced, all that is printed later would be lost.
    through = target.exists() and (not target.is_file() or _our_output(target) is not None)
    if not through and target.is_symlink():
        target = Path(os.path.realpath(target))
    before = target.stat() if target.exists() and not through else None
    # Never beside a device: its folder is no place for files.
    temporary = temporary_path(Path(tempfile.gettempdir(), target.name) if through else target)
    _sweep(temporary.parent)
    private = through or before is not None
    try:
        # Without another mode to keep, with the permissions that any new file gets.
        new = os.O_CREAT | os.O_EXCL | os.O_RDWR
        os.close(os.open(temporary, new, 0o600 if private else 0o666))
        mode = stat.S_IMODE(temporary.stat().st_mode if before is None else before.st_mode)
        yield temporary
        if through:
            _write_through(temporary, target)
            return
        if before is not None and hasattr(os, "chown"):
            with suppress(OSError):
                os.chown(temporary, before.st_uid, before.st_gid)
        temporary.chmod(mode)
        synchronise(temporary)  # the rename must not overtake the data when the machine dies
        temporary.replace(target)
    except OSError as error:
        # Of a write or a sync the system does not say where.
        if error.errno is not None and error.filename is None:
            error.filename = str(target)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _our_output(target: Path) -> int | None:
    """Return the number under which this process has a file open as its output, if it has."""
    for number in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), target.stat()):
                return number
    return None


def _write_through(source: Path, target: Path) -> None:
    output = _our_output(target)
    if output is None:
        number = os.open(target, os.O_WRONLY | getattr(os, "O_NOCTTY", 0))
    else:
        sys.stdout.flush()
        sys.stderr.flush()
        number = os.dup(output)  # where it stands now, not at the file's start
    with os.fdopen(number, "wb") as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)


def synchronise(path: Path) -> None:
    """Wait until a file is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def temporary_path(target: Path) -> Path:
    """Return a free hidden name beside ``target`` that says which process it belongs to."""
    mark = f"{os.getpid()}.{_machine()}{secrets.token_hex(4)}"
    return target.with_name(f".{target.name}.{mark}.tmp")


def is_temporary(path: Path) -> bool:
    """Return whether a name is one of :func:`temporary_path`, of the living or of the dead."""
    return _TEMPORARY.fullmatch(path.name) is not None


def is_leftover(path: Path) -> bool:
    """Return whether a temporary file or folder belongs to a process that is dead.

    Processes of other machines cannot be asked. What they left counts as dead once nothing has
    been written to it for a day.
    """
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return False
    if match["machine"] not in (None, _machine()) or os.name != "posix":
        try:
            return time.time() - path.lstat().st_mtime > DAY
        except OSError:
            return False
    return not _is_alive(int(match["process"]))


def remove_leftovers(folder: Path, *, deep: bool = True) -> None:
    """Remove all that dead processes left in a folder of ours, and in those inside it."""
    for path in list(folder.rglob(".*.tmp") if deep else folder.glob(".*.tmp")):
        if is_leftover(path):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder; another process may be as far."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


DAY = 24 * 3600.0  # seconds
# Names of earlier versions do not tell the machine.
_TEMPORARY = re.compile(
    r"\..+\.(?P<process>\d{1,9})\.(?P<machine>[0-9a-f]{8})?[0-9a-f]{8}\.tmp", re.DOTALL
)


@functools.cache
def _machine() -> str:
    """Return eight digits that tell apart machines, and containers, which count processes anew."""
    try:
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        space = 0
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return process > 0 and not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Return whether a process has ended and only waits for its parent to notice."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:  # not on this system
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]


_swept: set[Path] = set()


def _sweep(folder: Path) -> None:
    """Remove, once in a process, what dead processes of this machine left of writing here.

    The folder may be anyone's, so only names with this machine's mark are touched.
    """
    folder = folder.absolute()
    if folder in _swept:
        return
    _swept.add(folder)
    with suppress(OSError):
        for path in list(folder.glob(f".*.*.{_machine()}*.tmp")):
            if is_leftover(path):
                remove(path)


def user_cache() -> Path:
    """Return our folder in the user's cache: on Linux ``$XDG_CACHE_HOME`` or ~/.cache, enresnet.

    Raises:
        RuntimeError: The user has no home.
    """
    return user_cache_path("enresnet", appauthor=False)


def writable(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if a file can be put there; long work asks before it starts."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    if target.exists() and not target.is_file():
        if target.is_socket():
            raise OSError(f"cannot write {target}: it is a socket")
        if not os.access(target, os.W_OK):
            raise PermissionError(f"cannot write {target}: it is not writable")
        return target
    folder = target.parent
    if target.is_symlink():
        place = Path(os.path.realpath(target))
        if place.is_symlink():
            raise OSError(f"cannot write {target}: its links lead nowhere but round")
        folder = place.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {target}: its folder does not exist")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write {target}: its folder is not writable")
    return target


def try_lock(file: IO[Any]) -> bool:
    """Return whether an exclusive lock on an open file was available; then it is held.

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
    if not try_lock(file):
        raise FileExistsError(f"{otherwise} by another process")
    yield


@contextmanager
def has_to_itself(folder: Path) -> Iterator[None]:
    """Let one process after the other change what a folder holds; the next one waits."""
    try:
        import fcntl
    except ImportError:  # as above
        yield
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
