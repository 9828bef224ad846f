"""Whether a forward switches autograd or autocast for some of its operations.

A traced graph keeps operations, not the modes they ran in: ``torch.no_grad()`` around a part of a
network, or ``torch.autocast(..., enabled=False)``, is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Modes = tuple[bool, bool, torch.dtype]


class _Watch(TorchFunctionMode):
    """Notes in which modes operations run."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device, self.seen = device, set[Modes]()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.seen.add(_modes(self._device))
        return result


@torch.enable_grad()
def switched_mode(network: nn.Module, images: Tensor) -> str:
    """Return which mode a forward switches, as a clause; "" if none.

    It is called with autograd on, without autocast and with it.
    """
    device = images.device.type
    for autocast in (False, True):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            outer = _modes(device)
            try:
                with _Watch(device) as watch:
                    network(images.clone())
            except Exception:  # a user's code, where an operation may have no such type
                continue
        for grad, *cast in watch.seen:
            if grad != outer[0]:
                return "its forward switches autograd off for a part (torch.no_grad)"
            if tuple(cast) != outer[1:]:
                return "its forward switches autocast for a part"
    return ""


def _modes(device: str) -> Modes:
    dtype = torch.get_autocast_dtype(device)
    return torch.is_grad_enabled(), torch.is_autocast_enabled(device), dtype
