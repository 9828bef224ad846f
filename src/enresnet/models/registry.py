"""From a name to a model; :mod:`enresnet.models.names` has the grammar.

Parts joined by ``+`` weigh equally as parts, whatever their number of members (Sec. 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.models.ensemble import Ensemble
from enresnet.models.names import Part, parse_name
from enresnet.models.noise import DEFAULT_NOISE
from enresnet.models.resnet import ResNet


def create_model(
    name: str,
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    noise: float | None = None,
    std_over: str = "example",
    average: str = "logits",
    draws: int = 1,
    weights: Sequence[float] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    generator: torch.Generator | None = None,
) -> ResNet | Ensemble:
    """Return the model that ``name`` describes: images in [0, 1], N x C x H x W -> logits.

    ``noise`` is the paper's a, 0.1 by default, in every part named ``enK_``; 0 gives the plain
    ensemble of Sec. 4.4. ``weights`` weigh the parts joined by ``+``, or the members of a single
    part. ``generator`` seeds the weights and then serves the noise of the whole model.
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
    members = [[_network(part, noise, options) for _ in range(part.members or 1)] for part in parts]
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


def same_architecture(model: ResNet | Ensemble, name: str) -> bool:
    """Return whether a model is of the kind that ``name`` names, whatever its weights."""
    parts = parse_name(name)
    expected: list[Any] = [[part.architecture] * (part.members or 1) for part in parts]
    if len(parts) > 1:
        return bool(_architecture(model) == expected)
    return bool(_architecture(model) == (expected[0] if parts[0].members else expected[0][0]))


def _architecture(model: object) -> Any:
    if isinstance(model, Ensemble):
        return [_architecture(member) for member in model.members]
    return model.architecture if isinstance(model, ResNet) else None


def _network(part: Part, noise: float, options: dict[str, Any]) -> ResNet:
    noise = 0.0 if part.members is None else noise
    return ResNet(**asdict(part.architecture), noise=noise, **options)
