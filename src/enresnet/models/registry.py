"""From a name to a model; :mod:`enresnet.models.names` has the grammar.

Parts joined by ``+`` weigh equally as parts, whatever their number of members (Sec. 4.2).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.models.architecture import StdOver
from enresnet.models.conversion.convert import feynman_kac
from enresnet.models.ensemble import Average, Ensemble
from enresnet.models.external import DEFAULT_SIZE, ExternalNetwork, NetworkSource
from enresnet.models.interface import module_of
from enresnet.models.names import ExternalPart, Part, base_name, parse_name
from enresnet.models.noise import DEFAULT_NOISE, noise_modules
from enresnet.models.normalized import Normalized
from enresnet.models.resnet import ResNet


def create_model(
    name: str,
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    noise: float | None = None,
    std_over: StdOver = "example",
    average: Average = "logits",
    draws: int = 1,
    weights: Sequence[float] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    image_size: int | None = None,
    generator: torch.Generator | None = None,
) -> ResNet | ExternalNetwork | Ensemble:
    """Return a new model from images in [0, 1] to logits, with random weights.

    Args:
        name: ``[enK_]BASE[+...]``. BASE is ``resnetD`` with D = 6n+2 layers, ``resnetD_bottleneck``
            with 9n+2, or ``wrnD_K`` with 6n+4 layers and K times the channels; ``timm:NAME`` or
            ``torchvision:NAME``, a network of that library; or ``module.path:function``, which
            imports your own function and calls it (with ``num_classes``, ``in_channels`` and
            ``image_size`` if it takes them). ``enK_`` makes an ensemble of K networks with noise,
            by :func:`feynman_kac` where they are not ours; ``+`` joins parts, which have equal
            weight whatever their number of members. The paper's spelling, such as En5ResNet20, is
            understood.
        num_classes: The number of classes; 10 by default.
        in_channels: The colour channels of the images; 3 by default.
        noise: The paper's a, in units of the features' standard deviation, in every part named
            ``enK_``; 0.1 by default. 0 gives the ensemble without noise of Sec. 4.4.
        std_over: What that standard deviation is taken over: each ``"example"`` by itself (the
            default), or the whole ``"batch"`` as in the authors' released code.
        average: What an ensemble averages: ``"logits"`` (the default) or ``"probabilities"``.
        draws: Independent noisy runs of every member that one prediction averages; 1 by default.
        weights: Weights of the parts joined by ``+``, or of the members of a single part; equal by
            default.
        mean: Subtracted from the images, one number a channel; by default nothing, for networks of
            a library what that library says.
        std: Divides the images after that, one number a channel; as ``mean``.
        image_size: The side of the images in pixels, for networks that are not ours; 32 by default.
            Ours take any.
        generator: Draws the weights, and then the noise. By default both start from the system's
            entropy.

    Returns:
        A :class:`ResNet` for a single BASE of ours, an :class:`ExternalNetwork` for another, else
        an :class:`Ensemble`. It is in training mode.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The name is unknown (the error names near matches), an argument is out of range,
            or noise, weights, draws or average are given for a single network without noise. A
            network that is not ours cannot be built, or has no residual connection.
        ImportError: The library that is named is not installed.

    Example::

        import torch

        model = enresnet.create_model("en5_resnet20", num_classes=10)
        logits = model(torch.rand(2, 3, 32, 32))  # 2 x 10
    """
    parts = parse_name(name)
    noisy = [part for part in parts if part.members is not None]
    single = len(parts) == 1 and not noisy
    if noise is None:
        noise = DEFAULT_NOISE
    elif checks.number("noise", noise, low=0) > 0 and not noisy:
        raise ValueError(
            f"noise={noise:g} contradicts {name!r}, which names networks without noise; "
            f"write {'+'.join(f'en1_{part}' for part in parts)}"
        )
    if single and (weights is not None or draws != 1 or average != "logits"):
        raise ValueError(
            f"weights, draws and average belong to ensembles; {name!r} is a single network "
            f"without noise. For its ensemble write en1_{parts[0]}"
        )
    generator = checked_generator(generator)
    options: dict[str, Any] = {
        "num_classes": num_classes,
        "in_channels": in_channels,
        "std_over": std_over,
        "mean": mean,
        "std": std,
        "generator": generator,
    }
    members = [
        _external_networks(part, noise, image_size, options)
        if isinstance(part, ExternalPart)
        else [_network(part, noise, options) for _ in range(part.members or 1)]
        for part in parts
    ]
    if single:
        return members[0][0]
    top: dict[str, Any] = {
        "weights": weights,
        "average": average,
        "draws": draws,
        "generator": generator,
    }
    if len(parts) == 1:
        return Ensemble(members[0], **top)
    return Ensemble([Ensemble(group, average=average) for group in members], **top)


def same_architecture(model: nn.Module, name: str) -> bool:
    """Return whether a model has the architecture that ``name`` names, whatever its weights.

    Args:
        model: A model of this package; any other has no such architecture.
        name: A model's name.

    Returns:
        True if blocks, channels and members agree. Classes, noise and weights are not compared.

    Raises:
        TypeError: ``name`` is not a string.
        ValueError: It names no model; the error names near matches.

    Example::

        from enresnet.models import same_architecture

        same_architecture(enresnet.create_model("en2_resnet8", noise=0), "En2ResNet8")  # True
    """
    parts = parse_name(name)
    expected: list[Any] = [
        [part.source if isinstance(part, ExternalPart) else part.architecture] * (part.members or 1)
        for part in parts
    ]
    if len(parts) > 1:
        return bool(_architecture(model) == expected)
    return bool(_architecture(model) == (expected[0] if parts[0].members else expected[0][0]))


def name_of(model: object) -> str:
    """Return what a model is called in results.

    One of ours has the name that builds its architecture; another is called after its class, a
    function by its own name, and a model that is given normalised images as it is without.
    """
    if type(model) is Normalized:
        return name_of(model.model)
    if isinstance(model, functools.partial):
        return name_of(model.func)
    owner = module_of(model)
    if owner is None:
        return getattr(model, "__name__", type(model).__name__)
    return _own_name(owner) or type(owner).__name__


def _own_name(model: nn.Module) -> str | None:
    """Return the name of a network of ours; None where no name builds its architecture."""
    if type(model) is ResNet:
        base = base_name(model.architecture)
        noisy = any(place.noise > 0 for place in noise_modules(model))
        return base if base is None or not noisy else f"en1_{base}"
    if type(model) is ExternalNetwork:
        own = model.kind.rpartition(".")[2] if model.source is None else model.source.source
        return f"en1_{own}" if model.residuals is not None else own
    if type(model) is not Ensemble:
        return None
    if all(type(member) is ExternalNetwork for member in model.members):
        names = {_own_name(member) or "" for member in model.members}
        alone = names.pop().removeprefix("en1_")
        return f"en{len(model.members)}_{alone}" if not names else None
    if all(type(member) is ResNet for member in model.members):
        first, *others = (_architecture(member) for member in model.members)
        base = base_name(first) if all(other == first for other in others) else None
        return None if base is None else f"en{len(model.members)}_{base}"
    groups = [_own_name(member) for member in model.members if type(member) is Ensemble]
    known = [name for name in groups if name is not None and "+" not in name]
    return "+".join(known) if len(known) == len(model.members) else None


def _architecture(model: object) -> Any:
    if isinstance(model, Ensemble):
        return [_architecture(member) for member in model.members]
    if isinstance(model, ExternalNetwork):
        return None if model.source is None else model.source.source
    return model.architecture if isinstance(model, ResNet) else None


def _external_networks(
    part: ExternalPart, noise: float, image_size: int | None, options: dict[str, Any]
) -> list[Any]:
    """Return the networks of a part that are not ours, each with weights of its own."""
    source = NetworkSource(
        part.source,
        options["num_classes"],
        options["in_channels"],
        DEFAULT_SIZE if image_size is None else image_size,
    )
    mean, std = options["mean"], options["std"]
    if mean is None and std is None:
        mean, std = source.normalisation() or (None, None)
    generator = options["generator"]
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        network = ExternalNetwork(source.build(), source, mean=mean, std=std)
    if part.members is None:
        return [network]
    ensemble = feynman_kac(
        network,
        members=part.members,
        noise=noise,
        std_over=options["std_over"],
        init="fresh",
        example=source.example(),
        generator=generator,
    )
    return list(ensemble.members)


def _network(part: Part, noise: float, options: dict[str, Any]) -> ResNet:
    noise = 0.0 if part.members is None else noise
    return ResNet(**asdict(part.architecture), noise=noise, **options)
