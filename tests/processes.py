"""Real processes for tests: the command line run apart, so that it can be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

LINE = re.compile(r"resuming from step (\d+) .*saved (\S+)")


def start(*words: object, **environment: str) -> subprocess.Popen[str]:
    """Start ``enresnet WORDS``."""
    return subprocess.Popen(
        [sys.executable, "-m", "enresnet", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def finish(*words: object) -> str:
    """Run ``enresnet WORDS`` to its end; return what it printed."""
    process = start(*words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def wait_for(condition, *, seconds: float = 120) -> None:
    """Wait until ``condition()`` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def kill(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> tuple[str, str]:
    """End a process by a signal; return what it printed."""
    process.send_signal(number)
    return process.communicate(timeout=60)


def newest(run: Path) -> Path | None:
    """Return the newest checkpoint of a run."""
    return max((run / "last").glob("step-*.safetensors"), default=None)


def dead_process() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
