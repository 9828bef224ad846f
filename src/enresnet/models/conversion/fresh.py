"""New weights for the members of an ensemble, each drawn by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from enresnet.models.conversion.candidates import place_of


def fresh(
    network: nn.Module, builder: Callable[[], nn.Module] | None, generator: torch.Generator
) -> nn.Module:
    """Return the network with new weights, drawn from a seed of the generator.

    Raises:
        ValueError: Some weights cannot be drawn anew.
    """
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
            if kept := _kept_by(reset, module):
                names = ", ".join(f"{name}.{one}" if name else one for one in kept)
                raise ValueError(
                    f"init='fresh' cannot draw new weights for {place_of(name, module)}: its "
                    f"reset_parameters leaves {names} as it was; give builder=..., a function that "
                    "returns the network with fresh weights, or init='copy'"
                )
    return network


def _kept_by(reset: Callable[[], object], module: nn.Module) -> list[str]:
    """Reset a module, and return the names of its own weights and statistics that were left out.

    All are NaN before, so that it shows what was set, also to the number that it had.
    """
    own = {**module._parameters, **module._buffers}
    constants = module._non_persistent_buffers_set  # not stored, so not learned
    marked = {
        name: tensor
        for name, tensor in own.items()
        if tensor is not None and tensor.is_floating_point() and name not in constants
    }
    with torch.no_grad():
        for tensor in marked.values():
            tensor.fill_(torch.nan)
    reset()
    after = {**module._parameters, **module._buffers}
    return [
        name for name in marked if (now := after.get(name)) is not None and bool(now.isnan().any())
    ]


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
