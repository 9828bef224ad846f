r"""The noise as torch operators, which ``torch.compile`` and ``torch.export`` see through.

``draw_key`` takes the next number of a stream, ``inject_noise`` adds the noise that this number
stands for, by the loops in C where they are there:

.. math:: y = x + a\,\mathrm{std}(x)\, n(\text{key}), \qquad n \sim N(0, I)

A key is a tensor, so that a compiled graph draws anew in every call. Outside of compiled code the
noise takes a shorter way (``noise.py``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from enresnet import native

_WEYL = -0x61C8864680B583EB  # the golden ratio's, as in splitmix64: keys of a stream do not repeat


@torch.library.custom_op("enresnet::draw_key", mutates_args=("state",))
def draw_key(state: Tensor) -> Tensor:
    """Return the next key of a stream, int64 on the CPU, and move the stream on."""
    key = state.clone()
    state.add_(_WEYL)  # int64 wraps
    return key


@draw_key.register_fake
def _(state: Tensor) -> Tensor:
    return torch.empty_like(state)


@torch.library.custom_op("enresnet::inject_noise", mutates_args=())
def inject(x: Tensor, key: Tensor, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return x + noise * std(x) * N(0, I), and each example's mean and standard deviation."""
    x = in_one_piece(x)
    mean, deviation = _moments(x)
    seed = int(key) & (2**63 - 1)
    if native.supports(x):
        y = torch.empty_like(x)
        native.call("inject", x, x, y, *_size(x), noise, seed, mean, deviation)
        return y, mean, deviation
    dims = tuple(range(1, x.ndim))
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centre = wide.mean(dims, keepdim=True)
    std = (wide - centre).square().mean(dims, keepdim=True).sqrt()
    draws = torch.empty_like(wide).normal_(generator=torch.Generator(x.device).manual_seed(seed))
    mean.copy_(centre.view(-1))
    deviation.copy_(std.view(-1))
    return torch.addcmul(wide, std, draws, value=noise).to(x.dtype), mean, deviation


@inject.register_fake
def _(x: Tensor, key: Tensor, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    del key, noise
    return torch.empty_like(in_one_piece(x)), *_moments(x)


@torch.library.custom_op("enresnet::inject_noise_backward", mutates_args=())
def inject_backward(
    gradient: Tensor, x: Tensor, y: Tensor, mean: Tensor, deviation: Tensor
) -> Tensor:
    """Return the gradient of x from that of y; it flows through the standard deviation too."""
    x = in_one_piece(x)
    result = torch.empty_like(x)
    if native.supports(x):
        if gradient.stride() != x.stride():
            gradient = torch.empty_like(x).copy_(gradient)
        native.call("inject_backward", x, gradient, x, y, result, *_size(x), mean, deviation)
        return result
    wide = torch.promote_types(x.dtype, torch.float32)
    shape, dims = (-1, *[1] * (x.ndim - 1)), tuple(range(1, x.ndim))
    variance, centre = deviation.to(wide).view(shape).square(), mean.to(wide).view(shape)
    along = (gradient.to(wide) * (y.to(wide) - x.to(wide))).sum(dims, keepdim=True)
    flat = variance == 0  # where all numbers are the same
    slope = (along / (variance.masked_fill(flat, 1) * math.prod(x.shape[1:]))).masked_fill(flat, 0)
    return result.copy_(gradient.to(wide) + slope * (x.to(wide) - centre))


@inject_backward.register_fake
def _(gradient: Tensor, x: Tensor, y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    del gradient, y, mean, deviation
    return torch.empty_like(in_one_piece(x))


def in_one_piece(x: Tensor) -> Tensor:
    """Return ``x`` with examples that lie one after the other, each in one piece."""
    return x if is_dense(x) else x.contiguous()


def is_dense(x: Tensor) -> bool:
    """Return whether examples lie one after the other, each in one piece."""
    if x.is_contiguous():
        return True
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0],)
    return x.new_empty(shape, dtype=torch.float32), x.new_empty(shape, dtype=torch.float32)


def _size(x: Tensor) -> tuple[int, int]:
    return len(x), x[0].numel() if len(x) else 0


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], *output)
    ctx.set_materialize_grads(False)


def _back(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
    if gradient is None:
        return None, None, None
    return inject_backward(gradient, *ctx.saved_tensors), None, None


inject.register_autograd(_back, setup_context=_keep)
