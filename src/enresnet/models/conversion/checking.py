"""Whether a network stays the same function without noise, and noise reaches all it should."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.models.conversion.candidates import name_blocks
from enresnet.models.conversion.example import (
    agree,
    answer,
    answer_of_copy,
    answer_repeatably,
    fill_zeros,
)
from enresnet.models.conversion.noisy import ClonedNoise, with_noise
from enresnet.models.conversion.residuals import Residual, Residuals
from enresnet.models.noise import NoiseInjection, NoiseStream, noise_modules
from enresnet.models.second_pass import OtherNoiseError

_TRIED = 0.3  # the noise with which a conversion is checked


class _InPlaceNoise(NoiseInjection):
    """Noise that overwrites what it is added to: whatever reads that, under any name, sees it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x after x += noise * std(x) * N(0, I)."""
        return x.copy_(super().forward(x.clone()))


def check_conversion(model: nn.Module, residuals: Residuals, example: Tensor | None) -> None:
    """Raise unless noise 0 leaves the network's function, and noise reaches all that it should."""
    before = copy.deepcopy(model).eval()
    fill_zeros(before)
    plain = copy.deepcopy(before)
    after, images = answer(plain, example)

    def converted(noise: float, kind: type[NoiseInjection], *found: Residual) -> nn.Module:
        stream = NoiseStream(torch.Generator().manual_seed(0))
        places = Residuals(found or residuals.found)
        return with_noise(copy.deepcopy(before), places, noise, "example", stream, kind)

    def answer_with(noise: float, kind: type[NoiseInjection], *found: Residual) -> Any:
        return answer_of(converted(noise, kind, *found), kind)

    def answer_of(network: nn.Module, kind: type[NoiseInjection]) -> Any:
        called: set[nn.Module] = set()
        for place in noise_modules(network):
            place.register_forward_hook(lambda module, *_: called.add(module))
        logits = answer_of_copy(network, images, model)
        if any(type(place) is kind and place not in called for place in noise_modules(network)):
            return None
        return logits

    without = converted(0.0, ClonedNoise)
    quiet = answer_of(without, ClonedNoise)
    if not agree(after, quiet):
        raise ValueError(
            f"model cannot be converted: {type(model).__name__} answers otherwise without noise "
            "once the forward of blocks is traced. A module may ask for the exact class of a block "
            "(type(block) is ...), read its code, or rely on a += that changes a tensor it still "
            f"has: {name_blocks(model)}"
        )
    if other := _other_gradient(after, plain, quiet, without, images):
        raise ValueError(
            f"model cannot be converted: the gradient of {other} is another one without noise once "
            f"the forward of blocks is traced; {name_blocks(model)}"
        )
    _check_training(model, before, converted(0.0, ClonedNoise), images)
    noisy = answer_with(_TRIED, ClonedNoise)
    if torch.equal(quiet, noisy):
        raise ValueError(
            "model cannot be converted: its logits do not change with the noise; "
            + name_blocks(model)
        )
    try:
        _gradients(noisy, [images])
    except OtherNoiseError as error:
        raise ValueError(f"model cannot be converted: {error}") from error
    except Exception:  # it has no gradient
        pass
    if not agree(noisy, answer_with(_TRIED, _InPlaceNoise)):
        places = [
            f"{place.module or 'the network itself'} ({place.kind})"
            for place in residuals.found
            if not agree(
                answer_with(_TRIED, ClonedNoise, place), answer_with(_TRIED, _InPlaceNoise, place)
            )
        ]
        raise ValueError(
            "model cannot be converted: its sums are read under other names, which the noise would "
            f"not reach, in {', '.join(places)}; {name_blocks(model)}"
        )


def _check_training(
    model: nn.Module, before: nn.Module, without: nn.Module, images: Tensor
) -> None:
    """Raise where the network in training mode is another function once it is converted.

    A network that fails on these images in training, or that answers twice otherwise from equal
    seeds, cannot be compared.
    """
    first, second = copy.deepcopy(before).train(), copy.deepcopy(before).train()
    try:
        wanted, again = answer_repeatably(first, images), answer_repeatably(second, images)
    except Exception:  # as of normalisation over a batch of one
        return
    if not agree(wanted, again) or _other_buffer(first, second):
        return
    found = answer_of_copy(without.train(), images, model, answer_repeatably)
    if not agree(wanted, found) or _other_buffer(first, without):
        raise ValueError(
            f"model cannot be converted: in training mode {type(model).__name__} "
            f"{'answers' if not agree(wanted, found) else 'changes its buffers'} otherwise without "
            "noise once the forward of blocks is traced. A module may do something in training "
            f"alone that a trace does not see: {name_blocks(model)}"
        )


def _other_buffer(one: nn.Module, two: nn.Module) -> bool:
    """Return whether a buffer of a network has another value in a second one."""
    others = dict(two.named_buffers())
    for name, value in one.named_buffers():
        other = others.get(name, value)
        if not torch.equal(value, other) and not (
            value.is_floating_point()
            and value.shape == other.shape
            and torch.allclose(value, other, rtol=1e-4, equal_nan=True)
        ):
            return True
    return False


def _other_gradient(
    one: Tensor, first: nn.Module, two: Tensor, second: nn.Module, images: Tensor
) -> str:
    """Return a parameter, or the images, with another gradient in a second network; "" if none."""
    if not one.requires_grad:
        return "" if not two.requires_grad else "the images"
    names = {name: p for name, p in first.named_parameters() if p.requires_grad}
    others = dict(second.named_parameters())
    try:
        wanted = _gradients(one, [images, *names.values()])
    except Exception:  # it has no gradient, so there is nothing to compare
        return ""
    found = _gradients(two, [images, *(others[name] for name in names)])
    for name, want, got in zip(["the images", *names], wanted, found, strict=True):
        if (want is None) != (got is None):
            return name
        if want is not None and want.isfinite().all() and not agree(want, got, tolerance=1e-3):
            return name
    return ""


def _gradients(logits: Tensor, of: list[Tensor]) -> tuple[Tensor | None, ...]:
    weights = torch.linspace(-1.0, 1.0, logits.numel()).view(logits.shape).to(logits)
    return torch.autograd.grad((logits * weights).sum(), of, allow_unused=True)
