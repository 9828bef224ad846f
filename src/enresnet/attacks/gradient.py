r"""The gradient with respect to the images, averaged over the model's own noise (EOT).

.. math:: g(x) = \frac{1}{k} \sum_{j=1}^{k} \nabla_x L(f(x; \text{noise}_j), y)

The mean of k gradients, not the gradient at the mean of k outputs: the expected loss is what the
attacker of a randomised model raises (Sec. 4 uses k = 5). Nothing but the images' gradient is
computed, and the model is left as it was.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Model = Callable[[Tensor], Tensor]
"""An ``nn.Module`` or any callable from images in [0, 1] to logits N x classes."""


def expected_gradient(loss: Callable[[Tensor], Tensor], point: Tensor, eot: int = 1) -> Tensor:
    """Return the gradient of ``loss`` at ``point``, averaged over ``eot`` draws of its noise.

    ``loss`` gives one number an example. Examples do not meet: the losses are summed, so each
    one's gradient is its own.
    """
    total: Tensor | None = None
    for _ in range(eot):
        leaf = point.detach().requires_grad_()
        value = loss(leaf).sum()
        if not value.requires_grad:
            raise ValueError(
                "model gives no gradient: its output does not depend on the images through torch "
                "operations; was it computed under torch.no_grad, or with numpy?"
            )
        (gradient,) = torch.autograd.grad(value, leaf)
        # Not in place: a gradient may be an expanded view, as that of a mean is.
        total = gradient if total is None else total + gradient
    assert total is not None
    return total / eot if eot > 1 else total


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """Run ``model`` in evaluation mode, its parameters without gradient, and put all back after.

    Each module gets its own training flag back and each parameter its own ``requires_grad``,
    whatever happens inside. BatchNorm statistics do not move, since nothing trains.
    """
    modules = [module for root in modules_within(model) for module in root.modules()]
    flags = [(module, module.training) for module in modules]
    wanted = [p for module in modules for p in module.parameters(recurse=False) if p.requires_grad]
    parameters = [parameter for parameter in wanted if parameter.is_leaf]
    try:
        for module in modules:
            module.training = False
        for parameter in parameters:
            parameter.requires_grad_(False)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, flag in flags:
            module.training = flag
        for parameter in parameters:
            parameter.requires_grad_(True)


def modules_within(model: object) -> list[nn.Module]:
    """Return the modules that a callable runs, as far as Python lets us see them.

    A module is itself; ``functools.partial``, bound methods, containers, objects with attributes,
    and functions with what they close over or name globally are looked through, so that
    ``lambda x: net(2 * x - 1)`` is handled like ``net``.
    """
    found: list[nn.Module] = []
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, nn.Module):
            found.append(item)
        else:
            waiting.extend(_held_by(item))
    return found


def _held_by(item: Any) -> list[Any]:
    if isinstance(item, functools.partial):
        return [item.func, *item.args, *item.keywords.values()]
    if isinstance(item, types.MethodType):
        return [item.__self__, item.__func__]
    if isinstance(item, types.FunctionType):
        if item.__module__.split(".")[0] == "torch":
            return []
        names = inspect.getclosurevars(item)
        defaults = [*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values()]
        return [*names.nonlocals.values(), *names.globals.values(), *defaults]
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple | set):
        return list(item)
    if callable(item) and not isinstance(item, type):
        return list(getattr(item, "__dict__", {}).values())
    return []
