"""The residual sums that a pass of images runs, in whatever code they stand.

A trace shows the sums in a module's own ``forward``. Code that it cannot follow, or keeps as one
step (torch.jit.script, torch.fx.wrap), adds unseen. torch's dispatcher sees every sum.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import TorchDispatchMode

from enresnet.models.conversion.draws import seeded
from enresnet.models.conversion.shortcuts import no_residual

_ATEN = torch.ops.aten
_SUMS = (_ATEN.add, _ATEN.add_, _ATEN.sub, _ATEN.sub_, _ATEN.rsub)  # of their first two arguments
_LISTED = (_ATEN._foreach_add, _ATEN._foreach_add_)  # of two lists of tensors
_REDUCTIONS = (_ATEN.sum, _ATEN.mean)  # which add what was put side by side


def executed_sums(model: nn.Module, images: Tensor) -> Counter[str]:
    """Return how many residual sums the own code of each module runs, by the module's name.

    Args:
        model: The network, in evaluation mode; it gets hooks, so it should be a copy. Its
            parameters must not require gradients, so that only what comes from the images does.
        images: Images that it takes.

    Returns:
        The counts; none where the network fails while it is watched.
    """
    sums = _Sums(model)
    start = images.detach().clone().requires_grad_()
    try:
        # An optimised script hides from autograd what it adds.
        with seeded(model), torch.enable_grad(), optimized_execution(False), _not_compiled():
            inputs = start.clone()  # the dispatcher does not know where a leaf stands
            with sums:
                model(inputs)
    except Exception:  # nothing is lost but a hint
        return Counter()
    return sums.counts


def _not_compiled() -> AbstractContextManager[Any]:
    """Let networks of torch.compile run as they are: its cache would keep what has our hooks."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes seconds
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


class _Sums(TorchDispatchMode):
    """Counts the residual sums in the module that runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counter[str]()
        self._running: list[str] = []  # the modules that are being called, the innermost last
        self._stacked: dict[int, tuple[Tensor, list[Tensor]]] = {}  # by the id of the whole
        self._joined: dict[int, tuple[Tensor, list[Tensor], int]] = {}  # and the dimension
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._enter(name))
            module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, name: str) -> Callable[..., None]:
        return lambda *_: self._running.append(name)

    def _leave(self, *_: Any) -> None:
        self._running.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        packet = func.overloadpacket
        if any(not no_residual(*pair) for pair in self._pairs(packet, args)):
            self.counts[self._running[-1] if self._running else ""] += 1
        result = func(*args, **(kwargs or {}))
        if packet is _ATEN.stack:
            self._stacked[id(result)] = result, args[0]  # held, so that no other gets its id
        elif packet is _ATEN.cat:
            along = (args[1] if len(args) > 1 else 0) % result.ndim
            self._joined[id(result)] = result, args[0], along
        return result

    def _pairs(self, packet: Any, args: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        """Yield the terms that an operation adds, two by two."""
        terms: list[tuple[Any, Any]] = []
        if packet in _SUMS:
            terms = [args[:2]]
        elif packet in _LISTED and isinstance(args[1], list):
            terms = list(zip(args[0], args[1], strict=False))
        elif packet in _REDUCTIONS and id(args[0]) in self._stacked:
            terms = list(combinations(self._stacked[id(args[0])][1], 2))
        elif packet in _REDUCTIONS and id(args[0]) in self._joined and len(args) > 1:
            whole, parts, along = self._joined[id(args[0])]
            if [dim % whole.ndim for dim in args[1] or ()] == [along]:
                terms = list(combinations(parts, 2))
        for pair in terms:
            if all(isinstance(x, Tensor) and x.grad_fn is not None for x in pair):
                yield pair
