"""What figures depend on besides the command: the machine, the versions, the commit.

torch is imported where it is asked for: the processor and the commit are known without it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from enresnet import native


def machine() -> dict[str, Any]:
    """Return what speed depends on: the hardware and the versions of torch and of this package.

    Returns:
        As plain JSON: what :func:`hardware` returns, with ``torch`` and ``enresnet``.

    Example::

        from enresnet.evaluation import machine

        print(machine()["processor"], machine()["torch"])
    """
    found = versions()
    return {**hardware(), "torch": found["torch"], "enresnet": found["enresnet"]}


def hardware() -> dict[str, Any]:
    """Return the processor, and what is used of it.

    Returns:
        As plain JSON: the name of the ``processor``, torch's ``threads``, the vector ``capability``
        that torch uses, and whether our ``native_loops`` in C are in use.

    Example::

        from enresnet.evaluation import hardware

        print(hardware()["threads"])
    """
    import torch

    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "native_loops": native.library() is not None,
    }


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of the programs that results depend on.

    Returns:
        The versions of ``enresnet``, ``torch`` and ``python``, and the ``commit`` of this package:
        with "+" if files differ from it, "" if it was not installed from a checkout.

    Example::

        from enresnet.evaluation import versions

        print(versions()["torch"])
    """
    import torch

    return {
        "enresnet": importlib.metadata.version("enresnet"),
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@functools.cache
def commit() -> str:
    """Return the commit of the source code, with "+" if files differ from it; "" if not known.

    It is known where the package runs from a checkout, and not where it was installed as a copy.
    """
    here = Path(__file__).parent.parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # ours, not a project around a copy
        return git("rev-parse", "HEAD") + "+" * bool(git("status", "--porcelain", "."))
    except (OSError, subprocess.SubprocessError):
        return ""
