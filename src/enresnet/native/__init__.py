"""Loops in C for what torch has no single operation for: Gaussian noise, fused seams of blocks.

``noise.c`` is compiled by the machine's own compiler when it is first needed (``make`` does it
ahead) and kept in the user's cache, in a folder that no one else may enter. The file's name holds
its digest: one that is cut short or that another user owns is never loaded, but compiled anew.
Without a compiler, or with ``ENRESNET_NATIVE=0``, everything works through torch's own operations,
with other draws from the same seed.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import itertools
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enresnet.common.files import atomic_write, remove, temporary_path, user_cache

if TYPE_CHECKING:
    from torch import Tensor

SOURCES = ("noise.c", "noise_loops.h")
FAST = ["-O3", "-march=native", "-fno-math-errno"]
# The first that compiles: some compilers know no OpenMP, some no preferred width.
FLAGS = ([*FAST, "-mprefer-vector-width=512", "-fopenmp"], [*FAST, "-fopenmp"], FAST)

_P, _I, _F, _U, _T = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_float,
    ctypes.c_uint64,
    ctypes.c_int,
)
_ARGUMENTS = {
    "normal": [_P, _I, _U, _T],
    "inject": [_P, _P, _I, _I, _F, _U, _P, _P, _T],
    "inject_backward": [_P, _P, _P, _P, _I, _I, _P, _P, _T],
    "mask": [_P, _P, _I, _T],
    "seam": [_P] * 7 + [_I, _I, _I, _F, _U, _P, _T],
    "seam_backward": [_P] * 7 + [_I, _I, _I, _F, _P, _T],
    "take": [_P, _P, _I, _I, _I, _I, _I, _T],
    "give": [_P, _P, _I, _I, _I, _I, _I, _T],
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled loops, or None where they are not available."""
    if os.environ.get("ENRESNET_NATIVE") == "0":
        return None
    import torch  # first: its OpenMP is then ours too, and their threads do not fight

    del torch
    folder, keeps = None, True
    try:
        folder, keeps = _folder()
        path = _kept(folder) or _made(folder)
        loaded = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        if folder is not None and not keeps:
            remove(folder)  # what is loaded stays loaded
    for name, arguments in _ARGUMENTS.items():
        for kind in ("float", "bfloat"):
            function = getattr(loaded, f"{name}_{kind}")
            function.argtypes, function.restype = arguments, None
    return loaded


def why_not() -> str:
    """Return why the loops are not in use; "" if they are."""
    if library() is not None:
        return ""
    if os.environ.get("ENRESNET_NATIVE") == "0":
        return "switched off by ENRESNET_NATIVE=0"
    if not compilers():
        return "there is no C compiler"
    try:
        with tempfile.TemporaryDirectory(prefix="enresnet-") as folder:
            _compile(path := Path(folder, "noise.so"))
            ctypes.CDLL(str(path))
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        code = f"exit code {error.returncode}"
        reason = next((line for line in lines if "error" in line), lines[-1] if lines else code)
        return f"{error.cmd[0]} fails: {reason}"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "they compile and load now, but did not before"


def cache() -> Path:
    """Return the folder where the compiled loops are kept; it may not exist yet.

    Raises:
        RuntimeError: The user has no home.
    """
    return user_cache() / f"native-{_user()}"


def compilers() -> list[list[str]]:
    """Return the commands of the compilers that are tried, the first first: $CC, then others."""
    chosen = shlex.split(os.environ.get("CC", ""))
    usual = [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]
    return [chosen, *usual] if chosen else usual


def supports(x: Tensor) -> bool:
    """Return whether the loops can work on a tensor: float32 or bfloat16, dense, on the CPU."""
    import torch

    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and not is_watched(x)
        and library() is not None
    )


def is_watched(x: Tensor) -> bool:
    """Return whether torch is looking at operations rather than running them on plain tensors."""
    import torch

    return bool(
        type(x) not in (torch.Tensor, torch.nn.Parameter)
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def call(name: str, like: Tensor, *arguments: Any) -> None:
    """Call a loop of the type of ``like``; tensors become addresses, the threads are torch's."""
    import torch

    loaded = library()
    assert loaded is not None
    kind = "bfloat" if like.dtype == torch.bfloat16 else "float"
    plain = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
    getattr(loaded, f"{name}_{kind}")(*plain, torch.get_num_threads())


def other_loops(begun: bool) -> str:
    """Return why work cannot go on that was begun with the loops in C, or without; "" if it can."""
    here = library() is not None
    if here == begun:
        return ""
    words = (
        "it began with {} and would go on with {}, which draw other noise from the same seed: {}"
    )
    c, torchs = "the loops in C", "torch's operations"
    if here:
        return words.format(torchs, c, "set ENRESNET_NATIVE=0")
    return words.format(c, torchs, "unset ENRESNET_NATIVE, or install a C compiler")


def _folder() -> tuple[Path, bool]:
    """Return a folder of this user alone, and whether it is kept for the next process."""
    if not why_not_kept():
        return cache(), True
    return Path(tempfile.mkdtemp(prefix="enresnet-")), False


def why_not_kept() -> str:
    """Return why the compiled loops cannot be kept for the next process; "" if they can.

    The folder for them is made, or closed to others, where that is needed.
    """
    try:
        folder = cache()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # what it is, we look at below
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if stat.S_ISLNK(found.st_mode):
            return f"{folder} is a link"
        if not stat.S_ISDIR(found.st_mode):
            return f"{folder} is not a folder"
        if found.st_uid != _user():
            return f"{folder} belongs to another user"
        folder.chmod(0o700)
        return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written to"
    except (FileExistsError, NotADirectoryError) as error:
        return f"{error.filename} is not a folder"
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return str(error)


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _kept(folder: Path) -> Path | None:
    """Return the library that was compiled before, if it is ours and whole; others are removed."""
    for path in sorted(folder.glob(f"noise-{glob.escape(_key())}-*.so")):
        try:
            found = path.lstat()
            own = stat.S_ISREG(found.st_mode) and found.st_uid == _user()
            if own and not found.st_mode & 0o022 and path.name == _name(path.read_bytes()):
                return path
            remove(path)
        except OSError:
            continue
    return None


def _made(folder: Path) -> Path:
    """Compile the library, and return it under the name that holds its digest."""
    temporary = temporary_path(folder / "noise.so")
    try:
        _compile(temporary)
        temporary.chmod(0o600)  # whatever the umask: what others may write is not loaded
        return temporary.rename(folder / _name(temporary.read_bytes()))
    finally:
        temporary.unlink(missing_ok=True)


def _name(content: bytes) -> str:
    return f"noise-{_key()}-{hashlib.sha256(content).hexdigest()}.so"


@functools.cache
def _key() -> str:
    """Return what must be the same for a compiled file to be used: sources, flags, processor."""
    here = Path(__file__).parent
    digest = hashlib.sha256(repr(FLAGS).encode())
    for name in SOURCES:
        digest.update((here / name).read_bytes())
    digest.update(platform.machine().encode())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        digest.update(next((line for line in lines if line.startswith("flags")), "").encode())
    except OSError:
        digest.update(platform.processor().encode())
    return digest.hexdigest()[:16]


def _compile(path: Path) -> None:
    """Compile with the first compiler and the first flags that work."""
    source = Path(__file__).with_name(SOURCES[0])
    error: Exception = OSError("no C compiler")
    for compiler, flags in itertools.product(compilers(), FLAGS):
        try:
            with atomic_write(path) as temporary:
                words = [*flags, "-shared", "-fPIC", str(source), "-o", str(temporary), "-lm"]
                subprocess.run([*compiler, *words], check=True, capture_output=True, timeout=120)
                if not temporary.stat().st_size:
                    raise OSError(f"{compiler[0]} wrote nothing")
            return
        except (OSError, subprocess.SubprocessError) as failed:
            error = failed
    raise error
