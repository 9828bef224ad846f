"""New weights for the members of an ensemble, each drawn by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from enresnet.models.conversion.candidates import place_of


def fresh(
    network: nn.Module, builder: Callable[[], nn.Module] | None, generator: torch.Generator
) -> nn.Module:
    """Return the network with new weights, drawn from a seed of the generator."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if builder is not None:
            return like(builder(), network)
        for name, module in network.named_modules():
            own = [*module._parameters.values(), *module._buffers.values()]
            if not any(value is not None for value in own):
                continue
            reset = getattr(module, "reset_parameters", None)
            if not callable(reset):
                raise ValueError(
                    f"init='fresh' cannot draw new weights for {place_of(name, module)}: it has no "
                    "reset_parameters; give builder=..., a function that returns the network with "
                    "fresh weights, or init='copy'"
                )
            reset()
    return network


def like(built: nn.Module, network: nn.Module) -> nn.Module:
    """Return a network that was built, its tensors in the types and on the devices of another's."""
    if not isinstance(built, nn.Module):
        raise TypeError(f"builder must return an nn.Module, found {type(built).__name__}")
    others = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    tensors = {**dict(built.named_parameters()), **dict(built.named_buffers())}
    wanted = {id(tensor): others[name] for name, tensor in tensors.items() if name in others}

    def moved(tensor: Tensor) -> Tensor:
        other = wanted.get(id(tensor), tensor)
        return tensor.to(other.device, other.dtype)

    built._apply(moved)
    return built
