"""What is known of a model, and the numbers its gradients are computed in.

Bfloat16 where it is fast and does no harm.

An attack only needs to know where to go: its points move in float32, and every judgement is made
in float32. The gradients of our own networks are as useful in bfloat16
(``benchmarks/precision.py`` prints the difference); of other models we cannot know, so they are
left alone unless told.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.attacks.gradient import Model
from enresnet.models import Ensemble, ResNet
from enresnet.models.frozen.fold import known_parts
from enresnet.models.noise import noise_modules

PRECISIONS = ("auto", "32", "bf16")


def wants_bfloat16(model: Model, images: Tensor, precision: str) -> bool:
    """Return whether the gradients of ``model`` at float32 images are to be reduced."""
    if images.dtype != torch.float32 or torch.is_autocast_enabled(images.device.type):
        return False  # chosen already
    suits = our_network(model) is not None and fast_bfloat16(images.device)
    return precision == "bf16" or (precision == "auto" and suits)


def our_network(model: Model) -> ResNet | Ensemble | None:
    """Return the network that a model is, if it is one of ours, as we made it.

    A subclass, a layer of another kind, a method of its own or a hook may do anything, so those are
    other people's models.
    """
    owner = getattr(model, "__self__", model)
    plain = owner is model or getattr(model, "__name__", "") in ("forward", "__call__")
    if not plain or not isinstance(owner, ResNet | Ensemble):
        return None
    known = known_parts() | {Ensemble}
    for part in owner.modules():
        if type(part) not in known or "forward" in part.__dict__:
            return None
        if any(getattr(part, name) for name in _HOOKS):
            return None
    return owner if _is_ours(owner) else None


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def _is_ours(module: nn.Module) -> bool:
    if type(module) is Ensemble:
        return all(_is_ours(member) for member in module.members)
    return type(module) is ResNet


def keeps_apart(model: Model) -> bool:
    """Return whether a model is known to treat each image of a batch alone.

    And has room for more of them: a lean one is lean for want of memory.
    """
    network = our_network(model)
    if network is None or any(part.training for part in network.modules()):  # BatchNorm joins them
        return False
    if any(isinstance(part, Ensemble) and part.recompute for part in network.modules()):
        return False
    return all(place.std_over == "example" for place in noise_modules(network))


def is_deterministic(model: Model) -> bool:
    """Return whether a model is known to answer twice the same."""
    network = our_network(model)
    if network is None or any(part.training for part in network.modules()):
        return False
    return all(place.noise == 0 for place in noise_modules(network))


def fast_bfloat16(device: torch.device) -> bool:
    """Return whether the hardware computes in bfloat16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False
