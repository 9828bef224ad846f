"""How much memory a step takes, whether it can be had, and what would fit if it cannot."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.data.images import free_memory
from enresnet.models import Ensemble, set_lean, without_noise


def choose_memory(model: nn.Module, images: Tensor, batch_size: int, memory: str) -> bool:
    """Set ``model`` lean or not as ``memory`` says; return which.

    ``auto`` is lean for ensembles whose activations, all at once, would take more than half of the
    free memory; they are measured on the few ``images`` given. What cannot fit is refused.
    """
    free = free_on(images.device)
    set_lean(model, False)
    plain = activation_bytes(model, images) / len(images)
    lean = max(activation_bytes(part, images) for part in networks_of(model)) / len(images)
    chosen = plain * batch_size > free / 2 if memory == "auto" else memory == "lean"
    needed = lean if chosen else plain
    if needed * batch_size > free:
        raise MemoryError(_advice(needed, lean, batch_size, free, lean_chosen=chosen))
    set_lean(model, chosen)
    return chosen


def activation_bytes(model: nn.Module, images: Tensor) -> int:
    """Return how many bytes the graph of one forward pass keeps, parameters apart."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    flags = [(module, module.training) for module in model.modules()]
    model.eval()  # BatchNorm statistics and the stream of noise stay as they are
    with (
        torch.enable_grad(),
        without_noise(model),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
    ):
        model(images.clone().requires_grad_())
    for module, flag in flags:
        module.training = flag
    return sum(kept.values())


def networks_of(model: nn.Module) -> list[nn.Module]:
    """Return the single networks that a model averages."""
    if not isinstance(model, Ensemble):
        return [model]
    return [network for member in model.members for network in networks_of(member)]


def free_on(device: torch.device) -> float:
    """Return the bytes that can be had on a device."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return free_memory()


def _advice(needed: float, lean: float, batch_size: int, free: float, *, lean_chosen: bool) -> str:
    gib = 2**30
    ways = []
    if not lean_chosen and lean * batch_size <= free:
        ways.append(f"memory=lean would take {lean * batch_size / gib:.1f} GiB")
    fitting = int(0.8 * free / needed)
    if fitting > 0:
        ways.append(f"batch_size={fitting} would fit")
    return (
        f"batch_size={batch_size} takes about {needed * batch_size / gib:.1f} GiB of activations, "
        f"and {free / gib:.1f} GiB are free: " + (", ".join(ways) or "take a smaller network")
    )
