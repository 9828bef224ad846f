"""The gradient of one member at a time: its activations live only while they are needed.

The first pass keeps no graph; when the gradient arrives, the member runs again with the same noise
and gives its share. BatchNorm statistics are counted in the first pass alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.common.randomness import TorchState
from enresnet.models.batchnorm_statistics import statistics_held
from enresnet.models.first_order_only import first_only
from enresnet.models.noise import NoiseStream, streams_of
from enresnet.models.second_pass import same_noise


def lean_call(
    member: nn.Module, images: Tensor, *, call: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return ``member(images)``, whose activations are computed anew for its gradient.

    ``call`` is another way to call the member, such as that of a frozen one.
    """
    output: Tensor = _Lean.apply(  # type: ignore[no-untyped-call]
        member, call or member, images, *member.parameters()
    )
    return output


class _Lean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        member: nn.Module,
        call: Callable[[Tensor], Tensor],
        images: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.member, ctx.call = member, call
        ctx.noise = {stream: stream.get_state() for stream in streams_of(member)}
        ctx.torch_state = TorchState.of(images.device)  # of dropout, in networks that have some
        device = images.device.type
        ctx.autocast = (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        ctx.save_for_backward(images, *parameters)
        return call(images)

    @staticmethod
    @first_only("set_recompute(model, False) lets it keep all activations")
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        images, *parameters = ctx.saved_tensors
        device, enabled, dtype = ctx.autocast
        point = images.detach().requires_grad_(ctx.needs_input_grad[2])
        with (
            torch.enable_grad(),
            torch.autocast(device, dtype, enabled=enabled),
            statistics_held(ctx.member),
            _replayed(ctx.noise),
            ctx.torch_state.replayed(),
        ):
            output = ctx.call(point)
        sources = [point, *parameters]
        wanted = [s for s, need in zip(sources, ctx.needs_input_grad[2:], strict=True) if need]
        found = iter(torch.autograd.grad(output, wanted, gradients, allow_unused=True))
        return None, None, *(next(found) if need else None for need in ctx.needs_input_grad[2:])


@contextmanager
def _replayed(noise: dict[NoiseStream, Any]) -> Iterator[None]:
    """Repeat the draws of the streams from the stored states on; afterwards they continue."""
    now = {stream: stream.get_state() for stream in noise}
    try:
        for stream, state in noise.items():
            stream.set_state(state)
        with same_noise():
            yield
    finally:
        for stream, state in now.items():
            stream.set_state(state)
