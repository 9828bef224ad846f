"""The noise of a model, started anew under a name: what makes an evaluation repeatable.

A seed fixes our own noise, also inside other people's modules and functions, and all that is drawn
from torch's global generators. This is the one place that touches those.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.common.randomness import named_seed
from enresnet.models.interface import Model
from enresnet.models.noise import NoiseStream, streams_of

_ONE_AT_A_TIME = threading.RLock()
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@contextmanager
def own_streams(models: Iterable[Model], seed: int | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that starts the models' noise anew, under a name.

    All generators are put back where they were after; without a seed they are left alone. Torch's
    global ones are the process's: of its threads, one at a time has them.
    """
    if seed is None:
        yield lambda _: None
        return
    with _ONE_AT_A_TIME:
        yield from _reseeded(models, seed)


def _reseeded(models: Iterable[Model], seed: int) -> Iterator[Callable[[str], None]]:
    streams = list(streams_in(models))
    states = [stream.get_state() for stream in streams]

    def reseed(name: str) -> None:
        for number, stream in enumerate(streams):
            own = f"noise {name}" + (f" {number}" if number else "")  # no two may be alike
            stream.manual_seed(named_seed(seed, own))
        torch.manual_seed(named_seed(seed, f"torch {name}"))

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(list(devices)):
        try:
            yield reseed
        finally:
            for stream, state in zip(streams, states, strict=True):
                stream.set_state(state)


def streams_in(models: Iterable[Model]) -> dict[NoiseStream, None]:
    """Return the noise streams that models hold, as far as can be seen, each once.

    Looked into are modules, attributes, containers, closures, and the globals that code names. What
    is written in C, or keeps its attributes in slots, stays closed.
    """
    found: dict[NoiseStream, None] = {}
    met: dict[int, Any] = {}  # the things themselves are kept, or another could get an address
    left: list[Any] = list(models)[::-1]
    while left:
        thing = left.pop()
        if id(thing) in met or isinstance(thing, Tensor | str | bytes | int | float | complex):
            continue
        met[id(thing)] = thing
        if isinstance(thing, NoiseStream):
            found[thing] = None
        elif isinstance(thing, nn.Module):
            found |= dict.fromkeys(streams_of(thing))
        left += [*_inside(thing)][::-1]
    return found


def _inside(thing: Any) -> Iterator[Any]:
    """Yield what a thing holds."""
    if isinstance(thing, nn.Module):
        for part in thing.modules():
            own = own_attributes(part)
            hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
            if hooks or "forward" in own or is_foreign(type(part)):
                yield from (own, hooks, type(part))
    elif isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.FunctionType):
        yield from () if _is_library(thing.__module__) else _held_by(thing)
    elif isinstance(thing, type):
        for base in thing.__mro__:
            for value in () if _is_library(base.__module__) else vars(base).values():
                yield (
                    value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                )
    elif hasattr(thing, "__dict__") and not isinstance(thing, types.ModuleType | NoiseStream):
        yield from (vars(thing), type(thing))


def _held_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function has from outside: defaults, closure, the globals that it names."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            yield cell.cell_contents
    names = _names_in(function.__code__)
    for thing in (function.__globals__[name] for name in names if name in function.__globals__):
        yield thing
        if isinstance(thing, types.ModuleType) and not _is_library(thing.__name__):
            yield from (vars(thing)[name] for name in names if name in vars(thing))


def _names_in(code: types.CodeType) -> list[str]:
    """Return the globals and attributes that code names, also inside its own functions."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return sorted({*code.co_names, *(name for c in inner for name in _names_in(c))})


def is_foreign(kind: type[nn.Module]) -> bool:
    """Return whether a module is neither torch's nor ours: its attributes may hold anything."""
    return kind.__module__.partition(".")[0] not in ("torch", "enresnet")


def own_attributes(part: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that not every module has."""
    return {key: value for key, value in vars(part).items() if key not in _OF_EVERY_MODULE}


def _is_library(module: str | None) -> bool:
    """Return whether a module is installed, and not part of the user's own code."""
    name = module or "builtins"
    if name.partition(".")[0] in ("torch", "enresnet") or name in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and file.startswith(_LIBRARIES)
