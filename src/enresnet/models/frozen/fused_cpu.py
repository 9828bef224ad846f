r"""Forward and backward of a folded network on the CPU, written out.

Autograd knows nothing of the network but its ends: what lies between is convolutions, the ReLU in
the same pass, and one loop in C a seam (ordered_convolution.py has the convolutions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enresnet import native
from enresnet.models.first_order_only import LOOPS, first_only
from enresnet.models.frozen.fold import Affine, Block, Convolution, FoldedNetwork
from enresnet.models.frozen.ordered_convolution import LANES, OrderedConvolution, computes_in
from enresnet.models.noise import NoiseInjection

WIDEST = 4096  # channels: the loops in C take multiples of LANES, up to here


def works_for(network: FoldedNetwork, x: Tensor) -> bool:
    """Return whether a pass of ``x`` through the network can be written out."""
    return bool(
        native.supports(x)
        and computes_in(x.dtype)
        and len(x) > 0
        and all(_suits(len(scale)) for scale, _ in network.affines)
        and all(b.noise.noise == 0 or b.noise.std_over == "example" for b in network.blocks)
        and all(len({*b.shortcut.stride}) == 1 for b in network.blocks if b.shortcut is not None)
    )


def _suits(channels: int) -> bool:
    return channels % LANES == 0 and channels <= WIDEST


class FusedNetwork:
    """The two parts of a folded network, up to its first noise and from there on."""

    def __init__(self, network: FoldedNetwork) -> None:
        self._stem = OrderedConvolution(network.stem)
        self._blocks = [_Block.of(block) for block in network.blocks]
        self._affines = network.affines  # the first opens the first block, the last the head
        self._head = network.head

    def before_noise(self, x: Tensor) -> Tensor:
        """Return the sum that the first noise is added to, of images that are channels last."""
        result: Tensor = _Pass.apply(x, self._open, self._open_back)  # type: ignore[no-untyped-call]
        return result

    def after_noise(self, z: Tensor) -> Tensor:
        """Return the logits."""
        z = z.contiguous(memory_format=torch.channels_last)
        result: Tensor = _Pass.apply(z, self._rest, self._rest_back)  # type: ignore[no-untyped-call]
        return result

    def _open(self, x: Tensor) -> tuple[Tensor, list[Any]]:
        # one input channel leaves torch the choice of layout
        out = self._stem(x).contiguous(memory_format=torch.channels_last)
        seam = Seam(out, None, self._affines[0], None)
        residual, skip, between = self._blocks[0].forward(seam)
        return residual + skip, [x, seam, between]

    def _open_back(self, kept: list[Any], g: Tensor) -> Tensor:
        x, seam, between = kept
        return self._stem.back(seam.back(*self._blocks[0].back(seam, between, g)), x)

    def _rest(self, z: Tensor) -> tuple[Tensor, list[Any]]:
        seam = Seam(z, None, self._affines[1], self._blocks[0].noise)
        kept: list[Any] = [seam]
        for block, affine in zip(self._blocks[1:], self._affines[2:], strict=True):
            residual, skip, between = block.forward(seam)
            seam = Seam(residual, skip, affine, block.noise)
            kept += [between, seam]
        weight, bias = self._head
        features = seam.active.mean(dim=(2, 3), dtype=torch.float32).to(weight.dtype)
        return torch.addmm(bias, features, weight.t()), kept

    def _rest_back(self, kept: list[Any], g: Tensor) -> Tensor:
        seam = kept[-1]
        area = seam.active.shape[2] * seam.active.shape[3]
        pooled = (g @ self._head[0] / area).to(seam.active.dtype)
        g_active: Tensor = torch.empty_like(seam.active).copy_(pooled[:, :, None, None])
        g_y: Tensor | None = None
        for place in range(len(self._blocks) - 1, 0, -1):
            between, after, before = kept[2 * place - 1], kept[2 * place], kept[2 * place - 2]
            g_y, g_active = self._blocks[place].back(before, between, after.back(g_y, g_active))
        first: Seam = kept[0]
        return first.back(g_y, g_active)


class _Pass(torch.autograd.Function):
    """A pair of functions, forward and backward, as one operation of autograd's."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        forward: Callable[[Tensor], tuple[Tensor, list[Any]]],
        back: Callable[[list[Any], Tensor], Tensor],
    ) -> Tensor:
        out, kept = forward(x)
        if ctx.needs_input_grad[0]:
            ctx.kept, ctx.back, ctx.stride = kept, back, out.stride()
        return out

    @staticmethod
    @first_only(LOOPS)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if gradient.stride() != ctx.stride:
            gradient = gradient.new_empty_strided(gradient.shape, ctx.stride).copy_(gradient)
        return ctx.back(ctx.kept, gradient), None, None


class _Shortcut:
    """A 1 x 1 convolution that skips pixels: of the pixels it sees, with stride 1."""

    def __init__(self, layer: Convolution) -> None:
        self._step, _ = layer.stride  # the same both ways
        self._layer = OrderedConvolution(layer.dense())

    def __call__(self, x: Tensor) -> Tensor:
        if self._step == 1:
            return self._layer(x)
        shape = x[:, :, :: self._step, :: self._step].shape
        seen = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        native.call("take", x, x, seen, *self._size(x), self._step)
        return self._layer(seen)

    def add_back(self, g: Tensor, total: Tensor) -> None:
        """Add the gradient of the input to ``total``."""
        own = self._layer.back(g, g)
        native.call("give", own, own, total, *self._size(total), self._step)

    @staticmethod
    def _size(x: Tensor) -> tuple[int, int, int, int]:
        rows, channels, height, width = x.shape
        return rows, height, width, channels


@dataclass(frozen=True)
class _Block:
    """What lies between two seams."""

    first: list[OrderedConvolution]
    last: OrderedConvolution
    shortcut: _Shortcut | None
    noise: NoiseInjection

    @classmethod
    def of(cls, block: Block) -> _Block:
        shortcut = None if block.shortcut is None else _Shortcut(block.shortcut)
        first = [OrderedConvolution(layer) for layer in block.first]
        return cls(first, OrderedConvolution(block.last), shortcut, block.noise)

    def forward(self, seam: Seam) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the residual, the skip, and what the way back needs."""
        x, between = seam.active, []
        for layer in self.first:
            x = layer(x, "relu")
            between.append(x)
        return (
            self.last(x),
            seam.y if self.shortcut is None else self.shortcut(seam.active),
            between,
        )

    def back(self, seam: Seam, between: list[Tensor], g: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of the seam's y and active from that of residual and skip."""
        inputs = [seam.active, *between]
        h = self.last.back(g, inputs[-1])
        for layer, x, out in zip(self.first[::-1], inputs[-2::-1], between[::-1], strict=True):
            native.call("mask", h, h, out, out.numel())  # in place: h was made here
            h = layer.back(h, x)
        if self.shortcut is None:
            return g, h
        self.shortcut.add_back(g, h)
        return None, h


class Seam:
    """Sum, noise and activation in one loop: z = residual + skip, y = z + sigma n, relu(B y)."""

    def __init__(
        self, residual: Tensor, skip: Tensor | None, after: Affine, noise: NoiseInjection | None
    ) -> None:
        rows, self._channels, height, width = residual.shape
        self._count = self._channels * height * width
        self._scale, shift = after
        self._noise = 0.0 if noise is None else noise.noise
        key = 0 if noise is None or self._noise == 0 else noise.stream.key()
        self.z = residual if skip is None else torch.empty_like(residual)
        self.y = torch.empty_like(residual) if self._noise > 0 else self.z
        self.active = torch.empty_like(residual)
        self._moments = torch.empty(2, rows, dtype=torch.float32, device="cpu")
        native.call(
            "seam",
            residual,
            residual,
            skip,
            self._scale,
            shift,
            self.z,
            self.y,
            self.active,
            rows,
            self._count,
            self._channels,
            self._noise,
            key,
            self._moments,
        )

    def back(self, g_y: Tensor | None, g_active: Tensor) -> Tensor:
        """Return the gradient of residual and of skip, which is the same."""
        result = torch.empty_like(self.z)
        native.call(
            "seam_backward",
            self.z,
            g_y,
            g_active,
            self._scale,
            self.z,
            self.y,
            self.active,
            result,
            len(self.z),
            self._count,
            self._channels,
            self._noise,
            self._moments,
        )
        return result
