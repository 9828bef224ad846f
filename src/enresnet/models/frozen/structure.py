"""What a network's graph depends on besides its weights: if that is as it was, so is the graph."""

from __future__ import annotations

import types
from typing import Any

from torch import Tensor, nn

Structure = tuple[Any, ...]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type)


def structure_of(network: nn.Module, images: Tensor) -> Structure:
    """Return a value that is equal to an earlier one only where the network is built alike.

    It holds the modules themselves with their classes, modes and hooks, what plain values their
    attributes have, the shapes of parameters and buffers, and that of an image. A network that
    holds anything else is told by who it holds.
    """
    return (
        images.shape[1:],
        images.dtype,
        images.device,
        tuple(_module(name, module) for name, module in network.named_modules()),
    )


def _module(name: str, module: nn.Module) -> Structure:
    own = {key: value for key, value in vars(module).items() if key not in ("_modules", "training")}
    return (
        name,
        id(module),
        type(module),
        type(module).forward,
        module.training,
        tuple((key, _value(value)) for key, value in own.items()),
    )


def _value(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, Tensor):
        return (value.shape, value.dtype, value.device)
    if isinstance(value, tuple | list):
        return (type(value), tuple(_value(each) for each in value))
    if isinstance(value, dict):
        return (type(value), tuple((_value(key), _value(each)) for key, each in value.items()))
    if isinstance(value, types.FunctionType | types.MethodType):
        return (id(getattr(value, "__func__", value)),)
    return id(value)
