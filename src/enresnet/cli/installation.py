"""What ``enresnet doctor`` looks at, one probe each: versions, hardware, compiler, data, caches.

A probe that fails is a line that says so. Nothing outside the standard library is imported before
the probe that needs it: what is missing is what we are asked for. Nothing is fetched.
"""

from __future__ import annotations

import importlib
import math
import os
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from enresnet.common import requirements
from enresnet.common.requirements import Requirement, install_command

State = Literal["ok", "note", "broken"]
"""``note`` is worth knowing; ``broken`` is something without which the package does not work."""


@dataclass(frozen=True)
class Line:
    """What a probe found.

    Args:
        name: What it looked at.
        found: What there is.
        remark: What to know about it, or to do.
        state: Whether that is well.
        missing: The requirement that is not met, if it is one.
    """

    name: str
    found: str
    remark: str = ""
    state: State = "ok"
    missing: Requirement | None = None

    def to_json(self) -> dict[str, str]:
        """Return it as plain JSON."""
        return {name: getattr(self, name) for name in ("name", "found", "remark", "state")}


Probe = Callable[[], Iterator[Line]]

# The environment variables that the package, or torch for it, reads.
VARIABLES = {
    "ENRESNET_DATA": "the folder of data sets; by default in the user's cache",
    "ENRESNET_NATIVE": "0 switches the loops in C off",
    "ENRESNET_FIRST_PROCESS": "set by a training of several processes for its others",
    "CC": "the C compiler to try first",
    "XDG_CACHE_HOME": "the user's cache on Linux; by default ~/.cache",
    "OMP_NUM_THREADS": "torch's threads",
    "CUDA_VISIBLE_DEVICES": "the GPUs that torch sees",
    "RANK": "the number of this process, from torchrun",
    "LOCAL_RANK": "its number on this machine",
    "NODE_RANK": "the number of this machine",
    "SLURM_PROCID": "the number of this process, from SLURM",
    "TORCHELASTIC_RUN_ID": "set by torchrun",
    "DISPLAY": "the screen; enresnet demo opens a browser where there is one",
    "WAYLAND_DISPLAY": "the screen, alike",
    "SSH_CONNECTION": "set where one works from afar; enresnet demo then opens no browser",
    "NO_PROXY": "hosts that are reached directly; enresnet demo adds its own",
}
PRIVATE = ("SSH_CONNECTION", "NO_PROXY")  # addresses: only whether they are set is shown


def inspect_installation() -> dict[str, list[Line]]:
    """Return what there is, by section; it never raises."""
    return {section: list(_all_of(probes)) for section, probes in SECTIONS.items()}


def _all_of(probes: dict[str, Probe]) -> Iterator[Line]:
    for name, probe in probes.items():
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            try:
                yield from list(probe())
            except Exception as error:
                yield Line(name, f"cannot be found out: {_reason(error)}", state="note")
        for text in dict.fromkeys(str(one.message) for one in given if _concerns(one.category)):
            yield Line(name, "warning", text, "note")


def _concerns(category: type[Warning]) -> bool:
    """Return whether a warning is for users: those to developers are not."""
    developers = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning)
    return not issubclass(category, (*developers, ResourceWarning))


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _package() -> Iterator[Line]:
    import enresnet

    yield Line("enresnet", enresnet.__version__, f"in {Path(enresnet.__file__).parent}")


def _commit() -> Iterator[Line]:
    from enresnet.evaluation.environment import commit

    found = commit()
    changed = "with changes since" if found.endswith("+") else ""
    yield Line("commit", found.rstrip("+") or "not from a clone", changed)


def _python() -> Iterator[Line]:
    found, least = platform.python_version(), requirements.python_needed()
    if requirements.is_at_least(found, least):
        yield Line("python", found, sys.executable)
    else:
        yield Line("python", found, f"too old: {least} is needed", "broken")


def _dependencies() -> Iterator[Line]:
    for needed in requirements.core_requirements():
        yield _dependency(needed)


def _dependency(needed: Requirement) -> Line:
    found = needed.installed()
    if not found:
        remark = f"missing: {needed} is needed"
        return Line(needed.name, "not installed", remark, "broken", needed)
    if not needed.is_met():
        return Line(needed.name, found, f"too old: {needed} is needed", "broken", needed)
    try:
        importlib.import_module(needed.module)
    except Exception as error:  # of what an import can end with, anything
        remark = f"cannot be imported: {_reason(error)}"
        return Line(needed.name, found, remark, "broken", needed)
    return Line(needed.name, found)


def _system() -> Iterator[Line]:
    yield Line("system", platform.platform())


def _processor() -> Iterator[Line]:
    from enresnet.evaluation.environment import processor

    yield Line("processor", processor())


def _cores() -> Iterator[Line]:
    there = os.cpu_count()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    yield Line("cores", f"{usable} usable of {there}")


def _threads() -> Iterator[Line]:
    from enresnet.evaluation import hardware

    found = hardware()
    yield Line("torch", f"{found['threads']} threads, vectors {found['capability']}")


def _memory() -> Iterator[Line]:
    from enresnet.data.images import free_memory

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = free_memory()
    known = "" if math.isinf(free) else f", {_size(free)} of it free"
    yield Line("memory", f"{_size(total)}{known}")


def _gpus() -> Iterator[Line]:
    import torch

    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        yield Line(f"GPU {number}", f"{about.name}, {_size(about.total_memory)}")
    if torch.backends.mps.is_available():
        yield Line("GPU", "Apple's, as mps")
    elif not torch.cuda.device_count():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        yield Line("GPU", "none", f"torch is built {built}")


def _bfloat16() -> Iterator[Line]:
    import torch

    from enresnet.attacks.precision import fast_bfloat16

    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    for device in devices:
        fast = fast_bfloat16(device)
        yield Line(f"bfloat16 on {device}", "fast" if fast else "no faster than float32")


def _precision() -> Iterator[Line]:
    from enresnet.training import Engine

    engine = Engine(precision="auto")
    yield Line("precision auto", engine.precision, f"what training chooses, on {engine.device}")


def _loops() -> Iterator[Line]:
    from enresnet import native

    reason = native.why_not()
    if reason:
        remark = f"{reason}; torch's own operations serve instead, more slowly"
        yield Line("loops in C", "not in use", remark, "note")
    else:
        yield Line("loops in C", "compiled and loaded")
        if alone := native.why_not_kept():
            remark = f"{alone}; every process compiles them anew, which takes some seconds"
            yield Line("kept in", "nowhere: compiled for this process only", remark, "note")
        else:
            yield Line("kept in", str(native.cache()))


def _compiler() -> Iterator[Line]:
    from enresnet import native

    known = native.compilers()
    if not known:
        yield Line("compiler", "none", "the loops in C need cc, gcc or clang", "note")
        return
    done = subprocess.run(
        [*known[0], "--version"], capture_output=True, text=True, timeout=10, check=True
    )
    yield Line("compiler", (done.stdout.splitlines() or [""])[0], " ".join(known[0]))


def _digits() -> Iterator[Line]:
    try:
        from enresnet.data import load_data

        found = load_data("digits")
        count = sum(map(len, (found.train, found.validation, found.test)))
    except Exception as error:
        yield Line("digits", "cannot be read", _reason(error), "broken")
        return
    yield Line("digits", f"{count} images", "they come with scikit-learn")


def _cifar(name: str) -> Iterator[Line]:
    from enresnet.data import cache_folder, cifar

    spec = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}[name]
    try:
        path = cifar.find_cifar(spec)
    except ValueError as error:
        yield Line(name, "damaged", str(error), "note")
        return
    if path is None:
        yield Line(name, f"not in {cache_folder()}", f"to fetch it: enresnet data {name}")
    else:
        yield Line(name, f"whole, in {path}", "every digest is right")


def _extras() -> Iterator[Line]:
    for name, needed in requirements.extras().items():
        lacking = [one for one in needed if not one.is_met()]
        there = [f"{one.name} {one.installed()}" for one in needed if one.installed()]
        if not lacking:
            yield Line(name, ", ".join(there))
            continue
        found = ", ".join([*there, *(f"no {one.name}" for one in needed if not one.installed())])
        yield Line(name, found, f"to install it: {install_command(lacking)}")


def _library(name: str) -> Iterator[Line]:
    """Yield what there is of a library whose networks timm:NAME and torchvision:NAME are."""
    from enresnet.models import external

    # Without its requirements: it asks for a torch of its own, with gigabytes for GPUs.
    words = [sys.executable or "python", "-m", "pip", "install", "--no-deps", "timm", "torchvision"]
    install = shlex.join(words)
    found = Requirement(name).installed()
    if not found:
        yield Line(name, "not installed", f"for {name}:NAME: {install}")
        return
    try:
        {"timm": external.import_timm, "torchvision": external.import_torchvision}[name]()
    except Exception as error:  # of what an import can end with, anything
        cause = error.__cause__ or error
        remark = f"cannot be imported: {_reason(cause)}; to install it anew: {install}"
        yield Line(name, found, remark, "note")
        return
    yield Line(name, found, f"{name}:NAME works")


def _loops_kept() -> Iterator[Line]:
    from enresnet import native

    yield Line("loops in C", _size(_bytes(native.cache())), str(native.cache()))


def _data_kept() -> Iterator[Line]:
    from enresnet.data import cache_folder

    files = [*cache_folder().glob("cifar*")]
    yield Line("data sets", _size(sum(map(_bytes, files))), str(cache_folder()))


def _bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    files = [path, *path.rglob("*")]
    return sum(file.lstat().st_size for file in files if file.is_file())


def _variables() -> Iterator[Line]:
    for name, meaning in VARIABLES.items():
        found = os.environ.get(name, "not set")
        yield Line(name, "set" if name in PRIVATE and name in os.environ else found, meaning)
    kept = sorted(name for name in os.environ if name.startswith("MALLOC_"))
    yield Line("MALLOC_*", ", ".join(kept) or "not set", "if set, we leave the allocator alone")


def _size(count: float) -> str:
    """Return a number of bytes as one would say it."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


SECTIONS: dict[str, dict[str, Probe]] = {
    "versions": {
        "enresnet": _package,
        "commit": _commit,
        "python": _python,
        "dependencies": _dependencies,
    },
    "hardware": {
        "system": _system,
        "processor": _processor,
        "cores": _cores,
        "torch": _threads,
        "memory": _memory,
        "GPU": _gpus,
        "bfloat16": _bfloat16,
        "precision auto": _precision,
    },
    "compiler": {"loops in C": _loops, "compiler": _compiler},
    "data": {
        "digits": _digits,
        "cifar10": lambda: _cifar("cifar10"),
        "cifar100": lambda: _cifar("cifar100"),
    },
    "extras": {"extras": _extras},
    "networks of others": {
        "timm": lambda: _library("timm"),
        "torchvision": lambda: _library("torchvision"),
    },
    "caches": {"loops in C": _loops_kept, "data sets": _data_kept},
    "environment variables": {"variables": _variables},
}
