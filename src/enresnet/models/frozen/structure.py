"""What a network's graph depends on besides its weights: if that is as it was, so is the graph."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Structure = tuple[Any, ...]
SMALL = 16  # numbers in a buffer that a forward may read as plain ones
DEEP = 6  # levels of objects within objects that are looked into
LONG = 1000  # values of a list or an object that are looked at
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type)


def structure_of(network: nn.Module, images: Tensor) -> Structure:
    """Return a value that is equal to an earlier one only where the network is built alike.

    It holds the modules themselves with their classes, modes and hooks, what plain values their
    attributes have, also within objects, the shapes of parameters and buffers, and that of an
    image. A small buffer counts with its values: a forward may read it as a number.
    """
    return (
        images.shape[1:],
        images.dtype,
        images.device,
        tuple(_module(name, module) for name, module in network.named_modules()),
    )


def _module(name: str, module: nn.Module) -> Structure:
    skipped = ("_modules", "_parameters", "_buffers", "training")
    own = {key: value for key, value in vars(module).items() if key not in skipped}
    normalises = isinstance(module, _NormBase)  # its buffers move in training, and are no settings
    return (
        name,
        _Same(module),
        type(module),
        type(module).forward,
        module.training,
        tuple((key, _value(value, DEEP)) for key, value in own.items()),
        tuple((key, _shape(value)) for key, value in module._parameters.items()),
        tuple(
            (key, _shape(value) if normalises else _buffer(value))
            for key, value in module._buffers.items()
        ),
    )


def _shape(value: Tensor | None) -> Any:
    return None if value is None else (value.shape, value.dtype, value.device)


def _buffer(value: Tensor | None) -> Any:
    small = value is not None and value.numel() <= SMALL
    return (_shape(value), tuple(value.flatten().tolist()) if small and value is not None else ())


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, Tensor):
        return _buffer(value)
    if isinstance(value, types.FunctionType | types.MethodType):
        return _Same(getattr(value, "__func__", value))
    if not depth or isinstance(value, nn.Module):  # no depth is left where something holds itself
        return _Same(value)
    kind: Any = type(value)
    if isinstance(value, tuple | list | set | frozenset):
        inner = list(value)
    elif isinstance(value, dict):
        inner = [each for pair in value.items() for each in pair]
    else:
        kind, inner = _Same(value), list(getattr(value, "__dict__", {}).items())
    if len(inner) > LONG:
        return (kind, len(inner))
    return (kind, tuple(_value(each, depth - 1) for each in inner))


class _Same:
    """Is equal only for the same object, which it does not keep alive."""

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        try:
            self._reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # such as an object with slots
            self._reference = int

    def __eq__(self, other: object) -> bool:
        # A number may be given anew to another object once this one is gone.
        same = isinstance(other, _Same) and self._id == other._id
        return same and self._reference() is not None

    __hash__ = None  # type: ignore[assignment]
