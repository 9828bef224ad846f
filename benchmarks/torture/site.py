"""A site of our own with a small CIFAR-10, so that downloads need no network."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import signal
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from enresnet.data import cifar, download, registry

PER_FILE = 40  # images; the official files have 10,000
PIECE = 1 << 14  # bytes that are read at once, so that the small archive has many pieces


def write_archive(folder: Path) -> None:
    """Write the archive that the site serves."""
    spec, draw = cifar.CIFAR10, np.random.default_rng(0)
    with tarfile.open(folder / spec.binary_archive, "w:gz") as archive:
        for name in (*spec.train_files, spec.test_file):
            records = draw.integers(0, 256, (PER_FILE, 1 + cifar.PIXELS), dtype=np.uint8)
            records[:, 0] = np.arange(PER_FILE) % len(spec.classes)
            member = tarfile.TarInfo(f"{spec.binary_folder}/{name}.bin")
            member.size = records.size
            archive.addfile(member, io.BytesIO(records.tobytes()))


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """Serve a folder from another process, and yield the port.

    Where a file named ``drop`` holds a number, the next answer ends after so many bytes.
    """
    handler = _handler(folder)
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    child = os.fork()
    if child == 0:
        try:
            server.serve_forever()
        finally:
            os._exit(0)
    try:
        yield server.server_port
    finally:
        server.server_close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def use(folder: Path, port: int) -> None:
    """Let the package fetch CIFAR-10 from this site, in this process."""
    archive = folder / cifar.CIFAR10.binary_archive
    spec = replace(
        cifar.CIFAR10,
        npm=None,
        binary_md5=hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest(),
    )
    arrays = cifar._from_source(spec, archive)
    digests = {name: download.sha256(array) for name, array in arrays.items()}
    registry.CIFAR10 = replace(spec, digests=digests)  # type: ignore[attr-defined]
    cifar.SITE = f"http://127.0.0.1:{port}"
    download.CHUNK = PIECE


def _handler(folder: Path) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = (folder / Path(self.path).name).read_bytes()
            drop = folder / "drop"
            end = int(drop.read_text()) if drop.exists() else len(content)
            drop.unlink(missing_ok=True)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:end])

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    return Handler
