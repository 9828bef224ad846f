"""What the package takes for a model: images in [0, 1] go in, logits come out."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Model = Callable[[Tensor], Any]
"""An ``nn.Module`` or any callable from images in [0, 1] to logits N x classes.

What holds the logits will do, as :func:`logits_of` tells.
"""


def logits_of(output: object) -> Any:
    """Return the logits in what a model returns.

    They are the output itself, its attribute ``logits``, its entry ``"logits"``, or the first of a
    tuple. What holds none is returned as it is, for the caller to refuse.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(found := getattr(output, "logits", None), Tensor):
        return found
    if isinstance(output, Mapping) and isinstance(found := output.get("logits"), Tensor):
        return found
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    return output


def wrong_logits(output: object, count: int) -> str | None:
    """Return what keeps an output from being logits N x classes; None if nothing does.

    Args:
        output: What :func:`logits_of` found.
        count: The number of images.

    Returns:
        A sentence, to be raised by who asked the model.
    """
    odd = odd_tensor(output)
    if odd is None:
        assert isinstance(output, Tensor)
        if output.ndim == 2 and len(output) == count and not output.is_complex():
            return None
        odd = str(tuple(output.shape)) + f" in {output.dtype}" * output.is_complex()
    return (
        f"model must return logits N x classes, here {count} x classes; found {odd}; wrap it in a "
        "function that returns them"
    )


def odd_tensor(value: object) -> str | None:
    """Return what keeps a value from being a tensor of plain numbers; None if nothing does."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_nested:
        return "a nested tensor"
    if value.layout != torch.strided:
        return f"{value.dtype} in the layout {value.layout}"
    if value.is_meta:
        return "a tensor on the device meta, which holds no numbers"
    if value.is_quantized:
        return f"a quantised tensor, {value.dtype}"
    return None


def module_of(model: object) -> nn.Module | None:
    """Return the module that ``model`` is, or whose method it is."""
    owner = model.__self__ if isinstance(model, types.MethodType) else model
    return owner if isinstance(owner, nn.Module) else None


def device_of(model: Model, *, default: torch.device) -> torch.device:
    """Return where a module's parameters live; ``default`` for other callables."""
    module = module_of(model)
    first = None if module is None else next(module.parameters(), None)
    return default if first is None else first.device
