"""Commands of the package in forked processes that may be killed."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import enresnet
from enresnet.cli import main

PATIENCE = 300.0  # seconds that one command may take


def nothing() -> None:
    """Do nothing."""


@dataclass
class Process:
    """A command that runs, in a process group of its own; what it says goes to a file."""

    number: int
    said_in: Path
    code: int | None = None

    @classmethod
    def start(
        cls,
        words: list[str],
        said_in: Path,
        before: Callable[[], None] = nothing,
        after: Callable[[], None] = nothing,
    ) -> Process:
        """Fork a process that is the command; ``before`` and ``after`` run in it."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            _become(words, said_in, before, after)
        return cls(child, said_in)

    def ended(self) -> bool:
        """Return whether it has ended."""
        if self.code is None:
            done, status = os.waitpid(self.number, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """Return the exit code; None, after all its processes were killed, if it did not end."""
        started = time.monotonic()
        while not (self.ended() and not self.others()):
            if time.monotonic() - started > seconds:
                for process in [self.number, *self.others()]:
                    _kill(process)
                return None
            time.sleep(0.005)
        return self.code

    def kill_after(self, seconds: float) -> None:
        """Kill it by SIGKILL after so many seconds, unless it has ended."""
        started = time.monotonic()
        while not self.ended() and time.monotonic() - started < seconds:
            time.sleep(0.005)
        if not self.ended():
            _kill(self.number)

    def others(self) -> list[int]:
        """Return the processes that it started and that live."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == self.number and state != "Z" and path.parent.name != str(self.number):
                found.append(int(path.parent.name))
        return found

    def said(self) -> str:
        """Return the end of what it said."""
        return self.said_in.read_text(errors="replace")[-1500:]


def become_command(words: list[str]) -> None:
    """Replace this process by ``python -m enresnet``, for commands that start others like it."""
    os.environ["PYTHONPATH"] = str(Path(enresnet.__file__).resolve().parents[1])
    os.execv(sys.executable, [sys.executable, "-m", "enresnet", *words])


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _become(
    words: list[str], said_in: Path, before: Callable[[], None], after: Callable[[], None]
) -> None:
    """Be the command: the process ends with its code, 99 for an error that nobody caught."""
    code = 99
    with said_in.open("w") as said:
        try:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            sys.stdout = sys.stderr = io.TextIOWrapper(os.fdopen(1, "wb", 0), write_through=True)
            warnings.simplefilter("ignore")
            before()
            code = main(words)
            after()
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc(file=said)
            said.flush()
        finally:
            os._exit(code)
