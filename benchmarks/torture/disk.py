"""The switch of disk.c: which change of which folder's files meets a fault."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

KINDS = {"count": 1, "kill": 2, "full": 3, "error": 4}


def build(folder: Path) -> Path:
    """Compile disk.c into ``folder``; a process started with it as LD_PRELOAD can be armed."""
    library = folder / "disk.so"
    compiler = os.environ.get("CC", "cc")
    source = Path(__file__).with_name("disk.c")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def arm(folder: Path, told: Path, kind: str, number: int = 0) -> None:
    """Let the change ``number`` of a file in ``folder`` meet a fault, or count the changes.

    A kill is one by SIGKILL; a full disk refuses from then on whatever needs room; an error is one
    EIO. What met the fault is written to the file ``told``.
    """
    ctypes.CDLL(None).torture_arm(
        os.fsencode(folder.absolute()), os.fsencode(told.absolute()), KINDS[kind], number
    )


def changes() -> int:
    """Return how many changes there were since :func:`arm`."""
    count = ctypes.CDLL(None).torture_events
    count.restype = ctypes.c_long
    return int(count())
