"""The tensors of a network in training: its weights, their average, the optimiser's momenta."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def network_tensors(
    model: nn.Module, average: nn.Module | None, optimiser: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Return all of them, by name."""
    momenta = {
        name: optimiser.state[parameter]["momentum_buffer"]
        for name, parameter in model.named_parameters()
        if optimiser.state.get(parameter, {}).get("momentum_buffer") is not None
    }
    return {
        **prefixed("model", model.state_dict()),
        **prefixed("average", {} if average is None else average.state_dict()),
        **prefixed("momentum", momenta),
    }


def load_network_tensors(
    tensors: dict[str, Tensor],
    model: nn.Module,
    average: nn.Module | None,
    optimiser: torch.optim.Optimizer,
) -> None:
    """Put them back where :func:`network_tensors` found them."""
    model.load_state_dict(without_prefix("model", tensors))
    if average is not None:
        average.load_state_dict(without_prefix("average", tensors))
    momenta = without_prefix("momentum", tensors)
    optimiser.state.clear()
    for name, parameter in model.named_parameters():
        if name in momenta:
            # In the weight's own memory format, which fused SGD counts on.
            momentum = torch.empty_like(parameter, requires_grad=False).copy_(momenta[name])
            optimiser.state[parameter]["momentum_buffer"] = momentum


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under names of their own."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return those of :func:`prefixed`, under their first names."""
    start = f"{prefix}/"
    return {
        name.removeprefix(start): tensor
        for name, tensor in tensors.items()
        if name.startswith(start)
    }
