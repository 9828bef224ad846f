"""A network's answer to example images, or to random ones of a size that it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.models.conversion.candidates import name_blocks
from enresnet.models.conversion.draws import seeded
from enresnet.models.interface import logits_of

SIDES = (32, 64, 224)  # of example images, where none are given


def answer(
    model: nn.Module, example: Tensor | None, seen: dict[Any, Any] | None = None
) -> tuple[Any, Tensor]:
    """Return a network's answer, and the images; gradients with respect to them can be taken.

    Where it draws from global generators, the draws are always the same ones, and the generators
    are put back. What hooks and probes have ``seen`` of images that it does not take is forgotten.

    Raises:
        ValueError: It takes no such images.
    """
    sizes = _random_images(model) if example is None else [example]
    for number, images in enumerate(sizes, 1):
        if seen is not None:
            seen.clear()
        try:
            images = images.detach().clone().requires_grad_()
            return _logits(model, images), images
        except Exception as error:
            if number == len(sizes):
                raise ValueError(
                    f"model fails on the example images {tuple(images.shape)}: {error}; give it "
                    "others: example=..."
                ) from error
    raise AssertionError("there is at least one size")


def answer_repeatably(model: nn.Module, images: Tensor) -> Any:
    """Return a network's answer with all generators that it reaches put back, not only global ones.

    In training mode a network may draw from any of them.
    """
    with seeded(model), torch.enable_grad():
        return logits_of(model(images))


def answer_of_copy(
    copied: nn.Module,
    images: Tensor,
    model: nn.Module,
    answer_to: Callable[[nn.Module, Tensor], Any] | None = None,
) -> Any:
    """Return the answer of a copy whose blocks were traced to images that the network takes.

    Args:
        copied: The copy.
        images: The images.
        model: The network, for messages.
        answer_to: How the answer is computed, if not as by :func:`answer`.

    Raises:
        ValueError: The copy fails, so it is not the images that are at fault.
    """
    try:
        return (answer_to or _logits)(copied, images)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"model cannot be converted: {type(model).__name__} takes the example images, but "
            f"fails once the forward of its blocks is traced ({reason}); {name_blocks(model)}"
        ) from error


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a network.

    Raises:
        ValueError: It cannot be copied.
    """
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"model cannot be copied ({reason}), and members are copies of it. For weights that "
            "old hooks compute (torch.nn.utils.weight_norm) take torch.nn.utils.parametrizations "
            "or remove_weight_norm; clear activations that a module keeps"
        ) from error


def agree(one: Any, two: Any, tolerance: float = 1e-4) -> bool:
    """Return whether two answers are the same, but for rounding."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor) or one.shape != two.shape:
        return False
    scale = float(one.detach().abs().max()) if one.numel() else 0.0
    return torch.allclose(one, two, rtol=0.0, atol=tolerance * scale)  # logits may be small


def fill_zeros(model: nn.Module) -> None:
    """Fill weights of 0, as of a new head: they would hide what comes before them."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and not parameter.any():
            draws = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
            parameter.data.copy_(0.1 * draws)


def _logits(model: nn.Module, images: Tensor) -> Any:
    with seeded(), torch.enable_grad():
        return logits_of(model(images))


def _random_images(model: nn.Module) -> list[Tensor]:
    parameter = next(model.parameters(), None)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = 3 if first is None else first.in_channels
    like = torch.empty(0) if parameter is None else parameter
    return [
        torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0)).to(like)
        for side in SIDES
    ]
