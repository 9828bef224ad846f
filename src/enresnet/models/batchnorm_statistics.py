"""BatchNorm statistics held still while a network in training mode runs once more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def statistics_held(model: nn.Module) -> Iterator[None]:
    """Let ``model`` run, in its own mode, without counting into its running statistics."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(layer, layer.momentum, layer.num_batches_tracked) for layer in layers]
    try:
        for layer in layers:
            layer.momentum = 0.0  # running = 1 * running + 0 * batch
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked = layer.num_batches_tracked.clone()
        yield
    finally:
        for layer, momentum, count in before:
            layer.momentum, layer.num_batches_tracked = momentum, count
