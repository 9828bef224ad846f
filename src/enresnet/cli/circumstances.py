"""What figures depend on besides the command: the machine and the versions."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

import enresnet
from enresnet import native


def machine() -> dict[str, Any]:
    """Return what speed depends on."""
    return {
        **hardware(),
        "torch": torch.__version__,
        "enresnet": enresnet.__version__,
    }


def hardware() -> dict[str, Any]:
    """Return the processor, and what is used of it."""
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
    """Return those of the programs that results depend on."""
    return {
        "enresnet": enresnet.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
