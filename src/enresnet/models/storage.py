"""Weights on disk: one safetensors file with all that is needed to build the model again.

The header carries a description of the model as JSON: what it is made of and with which
hyper-parameters. No pickle is written or read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from enresnet import checks
from enresnet.files import replacing
from enresnet.models.ensemble import Ensemble
from enresnet.models.noise import seed_noise
from enresnet.models.pretrained import find_pretrained
from enresnet.models.resnet import STEM_WIDTH, ResNet

FORMAT = "enresnet-model-1"


def save_model(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the model's weights and description to ``path``, whole or not at all."""
    header = {"format": FORMAT, "model": json.dumps(describe(model))}
    # clone: safetensors refuses tensors that share memory, as those of a repeated member do.
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
    }
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, header))  # whose errors are the system's own


def load_model(
    path: str | os.PathLike[str], *, generator: torch.Generator | None = None
) -> ResNet | Ensemble:
    """Build the model that ``path`` describes, on the CPU in evaluation mode, with its weights.

    ``path`` is a file of :func:`save_model`, or the name of weights that come with the package,
    such as ``en2_resnet20@cifar10-long`` (``enresnet models`` lists them). Weights stored below
    float32 are widened to it. ``generator`` seeds the noise.
    """
    target = Path(path)
    if "@" in str(path) and not target.exists():
        target = find_pretrained(str(path)).path
    if not target.is_file():
        raise FileNotFoundError(f"no model at {target}")
    try:
        with safe_open(target, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{target} is not a whole safetensors file: {error}") from error
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{target} was not written by enresnet.save_model as {FORMAT!r} (its format is "
            f"{header.get('format')!r}); build the model with create_model and load the tensors "
            "with load_state_dict"
        )
    try:
        description = json.loads(header["model"])
        _check_size(description, tensors)
        model = rebuild(description)
        dtype = torch.float32
        for tensor in tensors.values():
            if tensor.is_floating_point():
                dtype = torch.promote_types(dtype, tensor.dtype)
        model.to(dtype).load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{target} does not describe a model we can build: {error}") from error
    if generator is not None:
        seed_noise(model, generator)
    return model.eval()


def describe(model: nn.Module) -> dict[str, Any]:
    """Return what :func:`rebuild` needs, as plain JSON."""
    if isinstance(model, ResNet):
        return {"resnet": model.config}
    if isinstance(model, Ensemble):
        return {"ensemble": model.config, "members": [describe(member) for member in model.members]}
    raise TypeError(
        f"model must be a ResNet or an Ensemble of them to be stored with its description, found "
        f"{type(model).__name__}; store model.state_dict() with safetensors instead"
    )


def rebuild(description: dict[str, Any]) -> ResNet | Ensemble:
    """Return the model that :func:`describe` described, with fresh weights."""
    if set(description) == {"resnet"}:
        return ResNet(**description["resnet"])
    if set(description) == {"ensemble", "members"}:
        members = [rebuild(member) for member in description["members"]]
        return Ensemble(members, **description["ensemble"])
    raise ValueError(
        f"a description holds resnet, or ensemble and members; found {checks.brief(description)}"
    )


def _check_size(description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse a description of a network larger than the tensors that come with it.

    Networks are built before their weights are filled in, so a few bytes could ask for any memory.
    """
    layers, numbers = _needed(description)
    stored = sum(tensor.numel() for tensor in tensors.values())
    if layers > len(tensors) or numbers > stored:
        raise ValueError(
            f"the network is larger than the tensors that come with it: it has at least {layers} "
            f"tensors with {numbers} numbers, found {len(tensors)} with {stored}"
        )


def _needed(description: dict[str, Any]) -> tuple[int, int]:
    """Return how many tensors a description asks for at least, and how many numbers in them."""
    if "members" in description:
        parts = [_needed(member) for member in description["members"]]
        return sum(layers for layers, _ in parts), sum(numbers for _, numbers in parts)
    network = description["resnet"]
    sides = {name: checks.integer(name, network[name], low=1) for name in _SIDES}
    widths = [checks.integer("widths", width, low=1) for width in network["widths"]]
    deep = network.get("block") == "bottleneck"
    # Of a block only the convolutions count, in a first and in the others; BatchNorm is small.
    layers, numbers, before = 2, 9 * STEM_WIDTH * sides["in_channels"], STEM_WIDTH
    for width in widths:
        after, own = (4 * width, 13 * width**2) if deep else (width, 9 * width**2)
        entry = width if deep else 9 * width
        numbers += before * entry + (sides["blocks"] - 1) * after * entry + sides["blocks"] * own
        layers += sides["blocks"] * (18 if deep else 12)  # convolutions, and five a BatchNorm
        before = after
    return layers, numbers + before * sides["num_classes"]


_SIDES = ("blocks", "num_classes", "in_channels")
