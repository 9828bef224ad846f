"""Pickles from outside: arrays of bytes and plain containers, and no name but those arrays need."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

MOST_CONTAINERS = 1000


def read_pickle(content: bytes, where: str) -> dict[bytes, Any]:
    """Return the dictionary in a pickle that may hold uint8 arrays and plain containers only."""
    try:
        # Read without being run: containers nested without end would exhaust the C stack.
        built = sum(opcode.name in _BUILDERS for opcode, _, _ in pickletools.genops(content))
        if built > MOST_CONTAINERS:
            raise pickle.UnpicklingError(f"it builds {built} containers, official files a few")
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where} is refused: {error}") from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{where} is truncated or altered ({error}); fetch it again") from error
    if type(value) is not dict:
        raise ValueError(f"{where} must hold a dictionary, found {type(value).__name__}")
    return {
        key: item.value if isinstance(item, _Array) and hasattr(item, "value") else item
        for key, item in value.items()
        if type(key) is bytes
    }


_BUILDERS = frozenset(
    "TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_TUPLE LIST EMPTY_LIST DICT EMPTY_DICT EMPTY_SET FROZENSET "
    "DUP".split()
)


class _Token:
    """Stands for a name of numpy's in a pickle; nothing can be done with it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it sets the state of something that is no array")


class _Array:
    """Stands for an array while it is built: of bytes, contiguous, and nothing else."""

    __slots__ = ("value",)

    def __setstate__(self, state: object) -> None:
        if hasattr(self, "value") or not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("it holds an array in an unknown form")
        version, shape, dtype, fortran, content = state
        if not (
            version == 1
            and isinstance(shape, tuple)
            and all(type(side) is int and side >= 0 for side in shape)
            and isinstance(dtype, _Uint8)
            and fortran in (False, 0)
            and type(content) is bytes
            and math.prod(shape) == len(content)
        ):
            raise pickle.UnpicklingError("it holds an array that is not one of plain bytes")
        self.value = np.frombuffer(content, np.uint8).reshape(shape).copy()


class _Uint8:
    """Stands for the type uint8; its state says nothing that we need."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _Callable:
    """A function of ours that a pickle may call, and cannot change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it sets the state of something that is no array")


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    if not isinstance(kind, _Token) or shape != (0,) or code not in (b"b", "b"):
        raise pickle.UnpicklingError("it rebuilds something that is no array")
    return _Array()


def _dtype(code: Any, *_: Any) -> _Uint8:
    if code not in (b"u1", "u1"):
        raise pickle.UnpicklingError(f"it holds an array of {code!r}, and only bytes are allowed")
    return _Uint8()


class _PlainUnpickler(pickle.Unpickler):
    """Replaces the names of numpy in a pickle by stand-ins of ours; refuses every other name.

    Nothing of numpy's is within a pickle's reach: ``numpy.ndarray`` itself, called with a buffer
    and the type object, would let it forge pointers.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _Callable(_reconstruct)
        if (module, name) == ("numpy", "ndarray"):
            return _Token("ndarray")
        if (module, name) == ("numpy", "dtype"):
            return _Callable(_dtype)
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays are allowed")
