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

from enresnet.attacks.gradient import Model, module_of
from enresnet.models import Ensemble, ResNet
from enresnet.models.noise import noise_modules

PRECISIONS = ("auto", "32", "bf16")


def wants_bfloat16(model: Model, images: Tensor, precision: str) -> bool:
    """Return whether the gradients of ``model`` at float32 images are to be reduced."""
    if images.dtype != torch.float32 or torch.is_autocast_enabled(images.device.type):
        return False  # chosen already
    module = module_of(model)
    suits = module is not None and is_ours(module) and fast_bfloat16(images.device)
    return precision == "bf16" or (precision == "auto" and suits)


def is_ours(module: nn.Module) -> bool:
    """Return whether a model is made of our networks alone."""
    if isinstance(module, Ensemble):
        return all(is_ours(member) for member in module.members)
    return isinstance(module, ResNet)


def keeps_apart(model: Model) -> bool:
    """Return whether a model is known to treat each image of a batch alone.

    And has room for more of them: a lean one is lean for want of memory.
    """
    module = module_of(model)
    if module is None or not is_ours(module):
        return False
    for part in module.modules():
        if isinstance(part, Ensemble) and part.lean:
            return False
        if part._forward_hooks or part._forward_pre_hooks:  # someone listens
            return False
    return all(place.std_over == "example" for place in noise_modules(module))


def is_deterministic(model: Model) -> bool:
    """Return whether a model is known to answer twice the same."""
    module = module_of(model)
    if module is None or not is_ours(module):
        return False
    return all(place.noise == 0 for place in noise_modules(module))


def fast_bfloat16(device: torch.device) -> bool:
    """Return whether the hardware computes in bfloat16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False
