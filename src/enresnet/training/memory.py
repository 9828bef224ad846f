"""How much memory a step takes, whether that much is free, and otherwise what would fit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.data.images import free_memory
from enresnet.models import Ensemble, set_recompute
from enresnet.models.batchnorm_statistics import statistics_held
from enresnet.models.noise import streams_of
from enresnet.training.recipe import Memory


def choose_memory(
    model: nn.Module,
    images: Tensor,
    batch_size: int,
    memory: Memory,
    *,
    passes: int = 1,
    sharing: int = 1,
) -> bool:
    """Choose between lean and plain memory, set ``model`` accordingly; return whether it is lean.

    ``auto`` is lean for ensembles whose activations, all at once, would take more than half of the
    free memory. They are measured on a few ``images``, for a loss that runs the model ``passes``
    times. ``sharing`` processes share the memory of a CPU. What cannot fit is an error.
    """
    free, networks = free_on(images.device), networks_of(model)
    if images.device.type == "cpu":
        free /= sharing
    batch = batch_size / len(images)
    set_recompute(model, False)
    sizes = [activation_bytes(network, images) * batch for network in networks]
    plain, lean = passes * sum(sizes), max(sizes)
    short = plain > free / 2 and len(networks) > 1
    chosen = short if memory == "auto" else memory == "lean"
    if (lean if chosen else plain) > free:
        raise MemoryError(_advice(plain, lean, batch_size, free, networks=len(networks)))
    set_recompute(model, chosen)
    return chosen


def activation_bytes(model: nn.Module, images: Tensor) -> int:
    """Return the bytes that the graph of a forward pass in training keeps, without parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    flags = [(module, module.training) for module in model.modules()]
    streams = {stream: stream.get_state() for stream in streams_of(model)}
    try:
        model.train()
        with (
            torch.enable_grad(),
            statistics_held(model),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
        ):
            output = model(images.clone().requires_grad_())
        del output  # only now: storage of freed tensors would be counted once for many
    finally:
        for module, flag in flags:
            module.training = flag
        for stream, state in streams.items():
            stream.set_state(state)
    return sum(kept.values())


def networks_of(model: nn.Module) -> list[nn.Module]:
    """Return the single networks that a model averages."""
    if not isinstance(model, Ensemble):
        return [model]
    return [network for member in model.members for network in networks_of(member)]


def free_on(device: torch.device) -> float:
    """Return the free bytes of a device."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return free_memory()


def _advice(plain: float, lean: float, batch_size: int, free: float, *, networks: int) -> str:
    gib = 2**30
    ways = []
    if networks > 1 and lean <= free:
        ways.append(f"memory=lean would take {lean / gib:.1f} GiB")
    for name, needed in (("plain", plain), ("lean", lean)):
        fitting = int(0.8 * free / needed * batch_size)
        if 0 < fitting < batch_size and (name == "plain" or networks > 1):
            ways.append(f"batch_size={fitting} would fit with memory={name}")
    return (
        f"batch_size={batch_size} takes about {plain / gib:.1f} GiB of activations, and "
        f"{free / gib:.1f} GiB are free: " + (", ".join(ways) or "take a smaller network")
    )
