"""What a model's Python code reaches beside the model: generators, names of its file, the clock.

A forward may draw from a generator of its file, or count its calls there. Methods of the model's
classes are looked at, and the functions that they name, from file to file; what these hand on to
code that they were given, or do in compiled code, is not seen.
"""

from __future__ import annotations

import datetime
import dis
import functools
import operator
import os
import random
import secrets
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

MOST = 300  # functions that are looked at
_KNOWN = {"torch", "numpy", "enresnet"}  # what these do is seen otherwise
_NOT_FORWARD = {"__init__", "__repr__", "extra_repr", "train", "reset_parameters"}
_ENTROPY: dict[types.ModuleType, set[str]] = {
    time: {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    datetime: {"now", "utcnow", "today"},
    os: {"urandom", "getrandom"},
    random: {"SystemRandom"},
    secrets: {"token_bytes", "token_hex", "randbelow", "randbits", "choice", "SystemRandom"},
    uuid: {"uuid1", "uuid4"},
}
ENTROPY_CALLS = [
    getattr(place, name, None) for place, names in _ENTROPY.items() for name in sorted(names)
]

_CALL: Callable[[type], Any] = operator.attrgetter("__call__")  # every class has one: its type's


class ReachableCode:
    """The functions that a model's answers come from, as far as they are seen.

    Args:
        owners: The modules of a network, or a callable.
    """

    def __init__(self, owners: list[Any]) -> None:
        self._kinds = {type(owner): None for owner in owners if isinstance(owner, nn.Module)}
        self._own = [f for o in owners if not isinstance(o, nn.Module) for f in _functions_in(o)]
        methods = [f for kind in self._kinds for _, f in _methods(kind)]
        self._functions = _with_all_named([*methods, *self._own])

    def generators(self) -> Iterator[Any]:
        """Yield the random generators in their files, classes and closures."""
        files = {id(f.__globals__): f.__globals__ for f in self._functions.values()}
        values = [value for names in files.values() for value in list(names.values())]
        values += [v for kind in self._kinds for c in _own(kind) for v in vars(c).values()]
        values += [v for function in self._functions.values() for v in _closed_over(function)]
        seen: set[int] = set()
        for value in values:
            if is_generator(value) and id(value) not in seen:
                seen.add(id(value))
                yield value

    def names(self) -> Iterator[tuple[str, Any]]:
        """Yield the data that their code can change, each with words for where it is held.

        That is what names stand for in their files, what their classes hold, default arguments, and
        what is stored on functions; not what closures hold, in which wrappers count calls.
        """
        named: set[str] = set()
        for function in self._functions.values():
            named.update(names := _names_in(function.__code__))
            for name in names:
                value = function.__globals__.get(name)
                if _is_data(value, function.__module__):
                    yield f"{name}, which its file holds", value
            own = f"of {function.__qualname__}"
            yield f"a default argument {own}", function.__defaults__
            yield f"a default argument {own}", function.__kwdefaults__
            yield f"an attribute {own}", vars(function)
        for kind in self._kinds:
            for each in _own(kind):
                for name, value in list(vars(each).items()):
                    if name in named and _is_data(value, each.__module__):
                        yield f"{name}, which the class {each.__name__} holds", value

    def entropy(self) -> str:
        """Return how they read the clock or the system's entropy, such as time.time; "" if not.

        Of methods only those count that a forward may call: classes of libraries have others, which
        store and send what the class holds.
        """
        for function in self._called_by_forward().values():
            names = _names_in(function.__code__)
            values = [function.__globals__.get(name) for name in names]
            values += [sys.modules.get(name) for name in _imports_in(function.__code__)]
            for value in values:
                if isinstance(value, types.ModuleType):
                    for name in sorted(_ENTROPY.get(value, set()) & set(names)):
                        return f"{value.__name__}.{name}"
                elif value is datetime.datetime and _ENTROPY[datetime] & set(names):
                    return "datetime.now"
                elif isinstance(value, random.SystemRandom):
                    return "random.SystemRandom"
                elif callable(value) and any(value is call for call in ENTROPY_CALLS):
                    return str(getattr(value, "__name__", value))
        return ""

    def _called_by_forward(self) -> dict[types.CodeType, types.FunctionType]:
        """Return what a forward reaches, where a method's name in code may mean any of that name.

        Methods with names such as __getattr__ are called without being named.
        """
        methods = [pair for kind in self._kinds for pair in _methods(kind)]
        found = _with_all_named(
            [f for name, f in methods if name == "forward" or name.startswith("__")] + self._own
        )
        before = -1
        while before < len(found):
            before = len(found)
            named = {name for f in found.values() for name in _words_in(f.__code__)}
            found = _with_all_named([f for name, f in methods if name in named], found)
        return found


def is_generator(value: Any) -> bool:
    """Return whether a value is a random generator whose state can be read."""
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if (numpy := sys.modules.get("numpy")) is not None:
        kinds += (numpy.random.RandomState, numpy.random.Generator)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def _own(kind: type) -> list[type]:
    """Return the classes of a module that are not torch's, nor ours."""
    return [c for c in kind.__mro__ if c is not object and not _is_known(c)]


def _with_all_named(
    functions: list[types.FunctionType],
    known: dict[types.CodeType, types.FunctionType] | None = None,
) -> dict[types.CodeType, types.FunctionType]:
    """Return functions, and all that they name, from file to file, by their code."""
    left, found = list(functions), dict(known or {})
    while left and len(found) < MOST:
        function = left.pop()
        if function.__code__ not in found and not _is_known(function):
            found[function.__code__] = function
            left += [f for value in _named(function) for f in _functions_in(value)]
    return found


def _methods(kind: type) -> list[tuple[str, types.FunctionType]]:
    return [
        (name, function)
        for each in _own(kind)
        for name, value in vars(each).items()
        if name not in _NOT_FORWARD
        for function in _functions_in(value)
    ]


def _functions_in(value: Any) -> list[types.FunctionType]:
    """Return the Python function that a value is, wraps or calls."""
    if isinstance(value, functools.partial):
        return _functions_in(value.func)
    if isinstance(value, property):
        return [] if value.fget is None else _functions_in(value.fget)
    if isinstance(value, types.MethodType | staticmethod | classmethod):
        return _functions_in(value.__func__)
    if isinstance(value, types.FunctionType):
        return [value]
    call = None if isinstance(value, nn.Module) else _CALL(type(value))
    return [call] if isinstance(call, types.FunctionType) else []


def _named(function: types.FunctionType) -> list[Any]:
    """Return what a function names in its file, and what it closes over."""
    names = _names_in(function.__code__)
    values = [function.__globals__.get(name) for name in names]
    for value in list(values):
        if isinstance(value, types.ModuleType) and not _is_known(value):
            values += [vars(value).get(name) for name in names]
    return values + _closed_over(function)


def _closed_over(function: types.FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is empty as yet
            continue
    return found


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[str, ...]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return tuple(dict.fromkeys([*code.co_names, *(n for c in inner for n in _names_in(c))]))


@functools.lru_cache(maxsize=4096)
def _words_in(code: types.CodeType) -> frozenset[str]:
    """Return the names in a function's code, and its strings, which getattr may take for names."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    strings = {c for c in code.co_consts if isinstance(c, str)}
    return frozenset(strings.union(code.co_names, *(_words_in(c) for c in inner)))


@functools.lru_cache(maxsize=4096)
def _imports_in(code: types.CodeType) -> tuple[str, ...]:
    found = dis.get_instructions(code)
    return tuple(str(one.argval) for one in found if one.opname == "IMPORT_NAME")


def _is_data(value: Any, file: str | None) -> bool:
    if isinstance(value, bool | int | float | list | dict | tuple | set | torch.Tensor):
        return True
    kind = type(value)
    callable_ = isinstance(value, type | types.FunctionType | nn.Module)
    return kind.__module__ == file and not callable_ and hasattr(value, "__dict__")


def _is_known(value: Any) -> bool:
    file = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    top = (file or "").partition(".")[0]
    return top in _KNOWN or top in sys.stdlib_module_names
