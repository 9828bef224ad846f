"""What a forward pass leaves behind beside its answer: numbers it drew, and state it changed.

A network that draws random numbers, or that keeps something between its calls, is not known to
answer twice the same, however often it did. Both are seen by what they change: where generators
stand, the global ones and those that the code reaches (reached.py), what the modules hold, and what
the names in their code stand for. Code that reads the clock or the system's entropy is seen by the
names it uses.
"""

from __future__ import annotations

import hashlib
import random
import types
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from enresnet.models.interface import Model, module_of
from enresnet.models.reachable_code import ReachableCode

DRAWS = "its forward draws random numbers"
DEPTH = 4  # how far containers and objects in a module's fields are followed
MOST_VALUES = 10_000  # of one module; what comes after them is not compared
MOST_ELEMENTS = 2**22  # of a tensor that is compared by value; larger ones by their version
MOST_WEIGHTS = 2**16  # the same of a parameter: there are many, and torch counts their changes
_OF_TORCH = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers"}
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


class StateBefore:
    """What forward passes may change beside their answers, as it stands when this is made.

    It covers Python's, numpy's and torch's global generators, those that the model's code reaches,
    and data that it names in its file; of a module the fields, buffers and parameters of all its
    parts too. A module
    may store what it was last given: make this after a pass, and ask after more on the same images.

    Args:
        model: The model that is about to be called.
    """

    def __init__(self, model: Model) -> None:
        root = module_of(model)
        self._modules = [] if root is None else list(root.modules())
        self._held = [_held(module) for module in self._modules]
        self._reached = ReachableCode(self._modules if root is not None else [model])
        self._generators = self._drawn()
        self._names = self._named()

    def _drawn(self) -> list[object]:
        found = _generators()
        for generator in self._reached.generators():
            found += _values(generator, DEPTH, set())
        return found

    def _named(self) -> list[tuple[str, list[object]]]:
        seen = {id(module) for module in self._modules}
        return [
            (name, list(islice(_values(value, DEPTH, set(seen)), MOST_VALUES)))
            for name, value in self._reached.names()
        ]

    def change(self) -> str:
        """Return what has changed since, as a clause; "" if nothing has."""
        if self._drawn() != self._generators:
            return DRAWS
        if entropy := self._reached.entropy():
            return f"its forward reads the clock or the system's entropy ({entropy})"
        for now, (name, value) in zip(self._named(), self._names, strict=False):
            if now != (name, value):
                return f"its forward changes {name}"
        for module, before in zip(self._modules, self._held, strict=True):
            if _held(module) != before:
                return f"the forward of {type(module).__name__} changes the module"
        return ""


def _generators() -> list[object]:
    """Return where the global generators stand."""
    found: list[object] = [random.getstate(), _digest(torch.get_rng_state())]
    found += _values(np.random.get_state(legacy=False), DEPTH, set())  # noqa: NPY002
    if torch.cuda.is_initialized():
        found += [_digest(generator.get_state()) for generator in torch.cuda.default_generators]
    return found


def _held(module: nn.Module) -> list[object]:
    """Return what a module holds, without its submodules, as values to compare."""
    found: list[object] = []
    seen = {id(module), *(id(part) for part in module.children())}
    for name, value in vars(module).items():
        if name in _OF_TORCH:
            continue
        for item in _values(value, DEPTH, seen):
            if len(found) >= MOST_VALUES:
                return found
            found.append((name, item))
    return found


def _values(value: Any, depth: int, seen: set[int]) -> Iterator[object]:
    """Yield plain values that differ where ``value`` was changed."""
    yield type(value)
    if value is None or isinstance(value, str | bytes | int):
        yield value
    elif isinstance(value, float | complex | np.generic):
        yield repr(value)  # NaN is itself
    elif isinstance(value, Tensor):
        yield from _of_tensor(value)
    elif isinstance(value, torch.Generator):
        yield _digest(value.get_state())
    elif isinstance(value, random.SystemRandom):
        yield id(value)
    elif isinstance(value, random.Random):
        yield value.getstate()
    elif id(value) in seen or depth == 0 or isinstance(value, _OPAQUE):
        yield id(value)
    else:
        seen.add(id(value))
        yield from _of_container(value, depth - 1, seen)


def _of_container(value: Any, depth: int, seen: set[int]) -> Iterator[object]:
    if isinstance(value, np.ndarray):
        small = value.size <= MOST_ELEMENTS and not value.dtype.hasobject
        yield value.shape, value.dtype.str, value.tobytes() if small else id(value)
    elif isinstance(value, np.random.RandomState):
        yield from _values(value.get_state(legacy=False), depth, seen)
    elif isinstance(value, np.random.Generator):
        yield from _values(value.bit_generator.state, depth, seen)
    elif isinstance(value, dict):
        yield len(value)
        for key, item in list(value.items()):
            yield from _values(key, depth, seen)
            yield from _values(item, depth, seen)
    elif isinstance(value, list | tuple | deque):
        yield len(value)
        for item in list(value):
            yield from _values(item, depth, seen)
    elif isinstance(value, set | frozenset):
        yield len(value), frozenset(hash(item) for item in value)
    else:
        yield id(value)
        yield from _values(getattr(value, "__dict__", None), depth, seen)


def _of_tensor(value: Tensor) -> Iterator[object]:
    """Yield what tells whether a tensor was changed or replaced by another one."""
    most = MOST_WEIGHTS if isinstance(value, nn.Parameter) else MOST_ELEMENTS
    try:
        yield tuple(value.shape), value.dtype, value.device
        if value.numel() <= most or value.is_inference():
            yield _digest(value)
            return
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        pass  # sparse, quantised, without data yet, or a class of its own
    yield id(value), 0 if value.is_inference() else value._version


def _digest(value: Tensor) -> bytes:
    flat = value.detach().cpu().contiguous().flatten()
    return hashlib.blake2b(flat.view(torch.uint8).numpy().data).digest()
