r"""Any network with residual connections as a Feynman-Kac ensemble (Sec. 3.1).

.. math:: x_{l+1} = x_l + F(x_l) \quad\longrightarrow\quad
          x_{l+1} = x_l + F(x_l) + a\,\mathrm{std}(x_l + F(x_l))\, N(0, I)

A residual mapping is an addition in the ``forward`` of some module. Noise becomes a module after
it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.models.architecture import StdOver
from enresnet.models.conversion.checking import check_conversion
from enresnet.models.conversion.fresh import fresh
from enresnet.models.conversion.noisy import with_noise
from enresnet.models.conversion.residuals import Blocks, find_residuals
from enresnet.models.ensemble import Average, Ensemble
from enresnet.models.external import ExternalNetwork
from enresnet.models.noise import DEFAULT_NOISE, NoiseStream, noise_modules
from enresnet.models.resnet import ResNet

Init = Literal["fresh", "copy"]


def feynman_kac(
    model: nn.Module,
    *,
    members: int = 5,
    noise: float = DEFAULT_NOISE,
    std_over: StdOver = "example",
    average: Average = "logits",
    draws: int = 1,
    init: Init = "copy",
    builder: Callable[[], nn.Module] | None = None,
    blocks: Blocks | None = None,
    example: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """Turn a network with residual connections into a Feynman-Kac ensemble.

    The network is left as it was; the ensemble's members are copies of it with noise after every
    residual mapping. ``ensemble.members[0].network`` is the first of them: its parameters have the
    names that they have in the network.

    Args:
        model: From images in [0, 1] to logits; see :class:`Normalized` for one that wants them
            otherwise.
        members: How many networks are averaged.
        noise: The paper's a: the noise's standard deviation in units of that of the mapping's
            output.
        std_over: Over what that standard deviation is taken: each example, or the whole batch.
        average: What is averaged, logits or probabilities.
        draws: Noisy runs of every member inside one prediction.
        init: ``"copy"`` starts all members from the network's weights, for fine-tuning; ``"fresh"``
            draws new ones for each, by the modules' ``reset_parameters`` or by ``builder``.
        builder: Returns the network with fresh weights each time; for ``init="fresh"`` where some
            module has weights but no ``reset_parameters``, or one that leaves some as they were.
            Its weights take the types and devices of the network's.
        blocks: Names of modules, classes or names of classes, or one of them, whose output gets the
            noise, in place of the additions that are found; for networks whose ``forward`` cannot
            be traced.
        example: Images to look at the network with, N x C x H x W; by default two random ones of a
            size that it takes.
        generator: Seeds fresh weights and then serves the noise.

    Returns:
        The ensemble, in the network's mode. ``print(ensemble.describe())`` tells where noise was
        added, and what was skipped.

    Raises:
        TypeError: The model is no ``nn.Module`` of Python code, or ``builder`` returns none.
        ValueError: The model has noise already, there is no residual connection, the network cannot
            be looked into, noise would not reach all that reads a residual mapping's output, or
            gradient checkpointing would draw other noise in the backward pass.

    Shape:
        - example: N x C x H x W
        - the ensemble: as the network, N x C x H x W to N x classes

    Example::

        network = enresnet.create_model("resnet8")  # or any of timm's, torchvision's, yours
        ensemble = enresnet.feynman_kac(network, members=2, noise=0.1)
        print(ensemble.describe())
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, found {type(model).__name__}")
    _check_model(model)
    checks.integer("members", members, low=1)
    checks.number("noise", noise, low=0)
    checks.choice("init", init, get_args(Init))
    generator = checked_generator(generator)
    outer = model if isinstance(model, ExternalNetwork) else ExternalNetwork(model)
    inner = outer.network
    if builder is None and outer.source is not None:
        builder = outer.source.build
    residuals = find_residuals(inner, blocks=blocks, example=example)
    stream = NoiseStream(generator)
    check_conversion(inner, residuals, example)
    inside = []
    for _ in range(members):
        network = copy.deepcopy(inner)
        if init == "fresh":
            network = fresh(network, builder, generator)
        noisy = with_noise(network, residuals, noise, std_over, stream)
        inside.append(noisy if type(noisy) is ResNet else outer.with_network(noisy, residuals))
    ensemble = Ensemble(inside, average=average, draws=draws, generator=generator)
    return ensemble.train(model.training)


def _check_model(model: nn.Module) -> None:
    """Raise where it can be seen beforehand that a model is not one to convert."""
    inner = model.network if isinstance(model, ExternalNetwork) else model
    if isinstance(inner, torch.jit.ScriptModule):
        raise TypeError(
            f"model must be a network of Python code, found {type(inner).__name__}: convert the "
            "network before torch.jit.script or torch.jit.trace"
        )
    if any(place.noise > 0 for place in noise_modules(model)):
        raise ValueError(
            "model has noise after its residual mappings already: convert the network that it was "
            "made of, or change the noise, enresnet.models.set_noise(model, noise)"
        )
