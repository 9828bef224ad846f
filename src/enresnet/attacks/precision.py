"""The numbers in which gradients are computed: bfloat16 where it is fast and does no harm.

An attack only needs to know where to go: its points move in float32, and every judgement is made
in float32. The gradients of our own networks are as useful in bfloat16
(``benchmarks/precision.py`` prints the difference). Networks that torch.fx can follow are computed
in it if their answers stay the same but for rounding. For other models that is not known: they are
computed as they are, unless the caller chooses bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from enresnet.attacks.known_networks import our_network
from enresnet.common.precision import Precision
from enresnet.models.frozen import FrozenCall
from enresnet.models.interface import Model


def wants_bfloat16(model: Model, call: object, images: Tensor, precision: Precision) -> bool:
    """Return whether the gradients of ``model`` at float32 images are to be reduced.

    ``call`` is the way to call it while it is frozen.
    """
    if images.dtype != torch.float32 or torch.is_autocast_enabled(images.device.type):
        return False  # chosen already
    if precision != "auto" or not fast_bfloat16(images.device):
        return precision == "bf16"
    if our_network(model) is not None:
        return True
    return isinstance(call, FrozenCall) and call.holds_in_bfloat16()


def fast_bfloat16(device: torch.device) -> bool:
    """Return whether the hardware computes in bfloat16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False
