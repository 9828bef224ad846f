"""Inputs are tried in a forked process, so that a hang or a crash costs one input."""

from __future__ import annotations

import os
import random
import resource
import select
import signal
import struct
import sys
import traceback
import warnings
from pathlib import Path

from torture import sandbox
from torture.inputs import GENERATORS
from torture.outcomes import Tally, judge

PATIENCE = 60.0  # seconds that one input may take, on a machine that does other work too
MEMORY = 6 << 30  # bytes of address space that a process may grow by


def try_inputs(name: str, first: int, last: int, seed: int, folder: Path) -> Tally:
    """Try the inputs ``first`` to ``last - 1`` of a generator; count what became of them."""
    tally, number = Tally(), first
    while number < last:
        number = _run_worker(name, number, last, seed, folder, tally)
    return tally


def _run_worker(name: str, first: int, last: int, seed: int, folder: Path, tally: Tally) -> int:
    """Fork a process that tries inputs until it ends or hangs; return the next to try."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _work(name, first, last, seed, folder, writing)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    number = first
    with os.fdopen(reading, "rb") as pipe:
        while number < last:
            ready, _, _ = select.select([pipe], [], [], PATIENCE)
            header = pipe.read(4) if ready else b""
            if len(header) < 4:
                if not ready:
                    os.kill(child, signal.SIGKILL)
                how = "the process died" if ready else f"no end after {PATIENCE:.0f} s"
                tally.record(("lost", how), number)
                number += 1
                break
            kind, _, text = (
                pipe.read(struct.unpack("<I", header)[0]).decode(errors="replace").partition("\n")
            )
            tally.record((kind, text), number)
            number += 1
    os.waitpid(child, 0)
    return number


def _work(name: str, first: int, last: int, seed: int, folder: Path, writing: int) -> None:
    """Try inputs one by one; tell the parent of each."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    sandbox.enter(folder)
    warnings.simplefilter("ignore")
    prepare, attempt = GENERATORS[name]
    material = prepare()
    for number in range(first, last):
        draw = random.Random(f"{seed} {name} {number}")
        try:
            outcome = ("held", attempt(material, draw))
        except sandbox.LeftTheSandboxError as error:
            outcome = ("lost", f"left its folder: {error}")
        except Exception as error:
            outcome = judge(error)
        message = "\n".join(outcome).encode(errors="backslashreplace")[:4000]
        os.write(writing, struct.pack("<I", len(message)) + message)
