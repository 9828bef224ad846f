"""Contexts that a ``forward`` enters: gradients off, autocast on or off.

A trace would drop them, and parameters would get gradients that they had not, or layers compute in
another precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DEVICES = ("cpu", "cuda")
GRADIENTS = "its forward switches gradients on or off (torch.no_grad), which a trace would drop"
AUTOCAST = "its forward switches autocast on or off, which a trace would drop"


def contexts() -> dict[str, object]:
    """Return the contexts that code runs in now, under the words for a change of them."""
    return {
        GRADIENTS: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        AUTOCAST: [torch.is_autocast_enabled(device) for device in _DEVICES],
    }


@contextmanager
def all_switched(on: bool) -> Iterator[None]:
    """Switch gradients and autocast on, or both off, so that it shows who switches one of them."""
    before = [torch.is_autocast_enabled(device) for device in _DEVICES]
    with torch.inference_mode(False), torch.set_grad_enabled(on):
        try:
            for device in _DEVICES:
                torch.set_autocast_enabled(device, on)
            yield
        finally:
            for device, enabled in zip(_DEVICES, before, strict=True):
                torch.set_autocast_enabled(device, enabled)
