"""From a name to a model: ``[enK_]BASE[+...]``.

BASE is ``resnetD`` (D = 6n+2; 9n+2 for ``resnetD_bottleneck``) or ``wrnD_K`` (D = 6n+4, and the
paper's ``wrn14_2``). ``enK_`` makes K noise-injected networks and averages them; without it the
network is alone and has no noise. Parts joined by ``+`` weigh equally as parts, whatever their
number of members (Sec. 4.2). The paper's own spelling, such as En5ResNet20 or
En2ResNet110&En1WideResNet34-10, is understood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from enresnet import checks
from enresnet.models.ensemble import Ensemble
from enresnet.models.noise import DEFAULT_NOISE
from enresnet.models.resnet import (
    WIDTHS,
    ResNet,
    resnet,
    resnet_blocks,
    wide_resnet,
    wide_resnet_blocks,
)
from enresnet.randomness import checked_generator

# The networks of the paper's tables, in their order.
PAPER_MODELS = (
    "resnet20",
    "en1_resnet20",
    "en2_resnet20",
    "en5_resnet20",
    "en1_resnet20+en1_resnet32",
    "en2_resnet32",
    "resnet44",
    "en1_resnet44",
    "en2_resnet44",
    "resnet110",
    "en2_resnet110",
    "wrn14_2",
    "en1_wrn34_10",
    "en2_resnet20+en5_resnet20",
    "en2_resnet44+en5_resnet20",
    "en2_resnet110+en5_resnet20",
    "en2_resnet110+en1_wrn34_10",
)

_PART = re.compile(
    r"(?:en_?(?P<members>[0-9]+)_?)?"
    r"(?:(?P<resnet>resnet)[_-]?(?P<depth>[0-9]+)(?P<bottleneck>_bottleneck)?"
    r"|(?P<wide>wrn|wide_?resnet)[_-]?(?P<wide_depth>[0-9]+)[_-](?P<widen>[0-9]+))"
)


@dataclass(frozen=True)
class Part:
    """One term of a model's name."""

    members: int | None  # None: a single network without noise
    depth: int
    widen: int | None  # None: a ResNet
    bottleneck: bool

    def __str__(self) -> str:
        prefix = "" if self.members is None else f"en{self.members}_"
        if self.widen is not None:
            return f"{prefix}wrn{self.depth}_{self.widen}"
        return f"{prefix}resnet{self.depth}{'_bottleneck' * self.bottleneck}"


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


def list_models() -> list[str]:
    """Return the names of the paper's networks; the grammar of this module allows many more."""
    return list(PAPER_MODELS)


def canonical_name(name: str) -> str:
    """Return the one spelling of ``name`` that we print, such as en5_resnet20 for En5ResNet20."""
    return "+".join(map(str, parse_name(name)))


def paper_name(name: str) -> str:
    """Return the paper's spelling of ``name``, such as En5ResNet20 for en5_resnet20."""
    return "&".join(map(_paper_spelling, parse_name(name)))


def same_architecture(model: ResNet | Ensemble, name: str) -> bool:
    """Return whether a model is of the kind that ``name`` names, whatever its weights."""
    parts = parse_name(name)
    expected: list[Any] = [[_shape(part)] * (part.members or 1) for part in parts]
    if len(parts) > 1:
        return bool(_architecture(model) == expected)
    return bool(_architecture(model) == (expected[0] if parts[0].members else expected[0][0]))


def _architecture(model: object) -> Any:
    if isinstance(model, Ensemble):
        return [_architecture(member) for member in model.members]
    return (model.blocks, list(model.widths), model.block) if isinstance(model, ResNet) else None


def _shape(part: Part) -> tuple[int, list[int], str]:
    if part.widen is not None:
        return wide_resnet_blocks(part.depth), [width * part.widen for width in WIDTHS], "basic"
    blocks, block = resnet_blocks(part.depth, "bottleneck" if part.bottleneck else None)
    return blocks, list(WIDTHS), block


def parse_name(name: str) -> list[Part]:
    """Return the parts of a model's name; a name we cannot build gets near matches."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a string such as 'en5_resnet20', found {checks.brief(name)}")
    return [_parse_part(term, name) for term in re.split(r"[+&]", name)]


def _parse_part(term: str, name: str) -> Part:
    term = re.sub(r"\$_\{?([0-9]+)\}?\$", r"\1", term.strip()).lower()  # En$_5$ResNet20
    where = f"unknown model {checks.brief(term)}"
    where += f" in {checks.brief(name)}" if term != name else ""
    match = _PART.fullmatch(term)
    if match is None:
        raise ValueError(
            f"{where}: a name is [enK_]BASE[+...] with BASE resnetD or wrnD_K"
            + checks.did_you_mean(term, _NEAR_NAMES)
        )
    try:
        members = None
        if match["members"] is not None:
            members = checks.integer("the number of members", int(match["members"]), low=1)
        if match["wide"]:
            depth, widen = int(match["wide_depth"]), int(match["widen"])
            checks.integer("the width", widen, low=1)
            wide_resnet_blocks(depth)
            return Part(members, depth, widen, bottleneck=False)
        depth = int(match["depth"])
        _, block = resnet_blocks(depth, "bottleneck" if match["bottleneck"] else None)
        return Part(members, depth, None, bottleneck=block == "bottleneck")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None  # it names the nearest that there are


def _network(part: Part, noise: float, options: dict[str, Any]) -> ResNet:
    noise = 0.0 if part.members is None else noise
    if part.widen is not None:
        return wide_resnet(part.depth, part.widen, noise=noise, **options)
    block = "bottleneck" if part.bottleneck else "basic"
    return resnet(part.depth, block=block, noise=noise, **options)


def _paper_spelling(part: Part) -> str:
    prefix = "" if part.members is None else f"En{part.members}"
    if part.widen is None:
        return f"{prefix}ResNet{part.depth}"
    wide = "WRN-" if part.members is None else "WideResNet"
    return f"{prefix}{wide}{part.depth}-{part.widen}"


_BASES = ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110", "wrn14_2", "wrn34_10")
_NEAR_NAMES = tuple(
    prefix + base for base in _BASES for prefix in ("", *(f"en{k}_" for k in range(1, 11)))
)
