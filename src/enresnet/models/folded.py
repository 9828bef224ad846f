r"""A frozen network as attacks meet it: BatchNorm folded away, blocks joined by one fused seam.

In evaluation BatchNorm is an affine map. That after the first convolution of a block goes into its
weights; that before the block stands before a ReLU and cannot, but is fused with the sum and the
noise that come before it:

.. math:: z = F(x_l) + x_l, \quad x_{l+1} = z + \sigma N(0, I), \quad
          \mathrm{active} = \mathrm{relu}(w^{B1} \odot x_{l+1})

The folded weights are kept until a weight changes. Only the gradient of the images can be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules import module as torch_module

from enresnet import native
from enresnet.models.noise import NoiseInjection, inject_noise

if TYPE_CHECKING:
    from enresnet.models.resnet import ResNet

LANES = 16  # channels that the loops in C take at a time
Affine = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Convolution:
    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def activated(self, x: Tensor) -> Tensor:
        """Return the convolution followed by a ReLU."""
        if native.supports(x) and _FUSED:
            fused: Tensor = _Activated.apply(  # type: ignore[no-untyped-call]
                x, self.weight, self.bias, self.stride, self.padding
            )
            return fused
        return self(x).relu_()


@dataclass(frozen=True)
class _Block:
    before: Affine  # the BatchNorm that the block opens with
    first: tuple[_Convolution, ...]  # each followed by a ReLU
    last: _Convolution
    shortcut: _Convolution | None
    noise: NoiseInjection


class Folded:
    """The network's forward pass with folded weights, in one type."""

    def __init__(self, network: ResNet, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._stem = self._convolution(network.stem)
        self._blocks = [self._block(block) for block in network.all_blocks()]
        self._after = [block.before for block in self._blocks[1:]] + [_affine(network.bn)]
        self._head = (network.classifier.weight.detach(), network.classifier.bias.detach())

    @torch.no_grad()
    def _block(self, block: Any) -> _Block:
        # bottlenecks have one more pair than basic blocks
        pairs = [(block.conv1, block.bn2)]
        last = block.conv2
        if hasattr(block, "conv3"):
            pairs.append((block.conv2, block.bn3))
            last = block.conv3
        return _Block(
            before=_affine(block.bn1),
            first=tuple(self._convolution(conv, _affine(bn)) for conv, bn in pairs),
            last=self._convolution(last),
            shortcut=None if block.shortcut is None else self._convolution(block.shortcut),
            noise=block.noise,
        )

    @torch.no_grad()
    def _convolution(self, conv: nn.Conv2d, after: Affine | None = None) -> _Convolution:
        weight, bias = conv.weight, None
        if after is not None:
            scale, shift = after
            weight, bias = weight * scale.view(-1, 1, 1, 1), shift.to(self._dtype)
        weight = weight.to(self._dtype)
        if self._device.type == "cpu":
            weight = weight.contiguous(memory_format=torch.channels_last)
        padding = conv.padding
        assert not isinstance(padding, str)
        return _Convolution(weight.detach(), bias, conv.stride, padding)  # type: ignore[arg-type]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of images that are normalised already."""
        return self.after_noise(self.before_noise(x))

    def before_noise(self, x: Tensor) -> Tensor:
        """Return the sum that the first noise is added to: the same for every draw."""
        with torch.autocast(self._device.type, enabled=False):  # the types are chosen here
            x = x.to(self._dtype)
            if self._device.type == "cpu":
                x = x.contiguous(memory_format=torch.channels_last)
            out, active = seam(self._stem(x), None, self._blocks[0].before, None)
            residual, skip = self._residual(self._blocks[0], out, active)
            return residual + skip

    def after_noise(self, z: Tensor) -> Tensor:
        """Return the logits, with noise from the first on."""
        with torch.autocast(self._device.type, enabled=False):
            out, active = seam(z, None, self._after[0], self._blocks[0].noise)
            for block, after in zip(self._blocks[1:], self._after[1:], strict=True):
                out, active = seam(*self._residual(block, out, active), after, block.noise)
            features = active.mean(dim=(2, 3), dtype=torch.float32)
            return functional.linear(features.to(self._head[0].dtype), *self._head)

    def _residual(self, block: _Block, out: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        skip = out if block.shortcut is None else block.shortcut(active)
        for convolution in block.first:
            active = convolution.activated(active)
        return block.last(active), skip


def seam(
    residual: Tensor, skip: Tensor | None, after: Affine, noise: NoiseInjection | None
) -> tuple[Tensor, Tensor]:
    """Return x_{l+1} and what the next block makes of it first."""
    level = 0.0 if noise is None else noise.noise
    fused = (
        native.supports(residual)
        and residual.shape[1] % LANES == 0
        and residual.is_contiguous(memory_format=torch.channels_last)
        and (skip is None or skip.stride() == residual.stride())
        and (level == 0 or (noise is not None and noise.std_over == "example"))
    )
    if fused:
        key = 0 if level == 0 or noise is None else noise.stream.key()
        applied = _Seam.apply(residual, skip, *after, level, key)  # type: ignore[no-untyped-call]
        pair: tuple[Tensor, Tensor] = applied
        return pair
    out = residual if skip is None else residual + skip
    if level > 0 and noise is not None:
        out = inject_noise(out, level, std_over=noise.std_over, generator=noise.stream)
    scale, shift = (value.to(out.dtype).view(1, -1, 1, 1) for value in after)
    return out, torch.addcmul(shift, out, scale).relu_()


_FUSED = hasattr(torch.ops.mkldnn, "_convolution_pointwise")


class _Activated(torch.autograd.Function):
    """A convolution with a ReLU in the same pass, on the CPU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        out: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, weight, bias, padding, stride, [1, 1], 1, "relu", [], ""
        )
        ctx.save_for_backward(x, weight, out)
        ctx.stride, ctx.padding = stride, padding
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, weight, out = ctx.saved_tensors
        if gradient.stride() != out.stride():
            gradient = torch.empty_like(out).copy_(gradient)
        # In place: the gradient was made for this node alone, by the convolution that follows.
        native.call("mask", gradient, gradient, out, out.numel())
        result, _, _ = torch.ops.aten.convolution_backward(
            gradient,
            x,
            weight,
            None,
            ctx.stride,
            ctx.padding,
            [1, 1],
            False,
            [0, 0],
            1,
            [True, False, False],
        )
        return result, None, None, None, None


class _Seam(torch.autograd.Function):
    """The fused seam, channels last."""

    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor,
        skip: Tensor | None,
        scale: Tensor,
        shift: Tensor,
        noise: float,
        key: int,
    ) -> tuple[Tensor, Tensor]:
        rows, channels, height, width = residual.shape
        count = channels * height * width
        z = residual if skip is None else torch.empty_like(residual)
        y = torch.empty_like(residual) if noise > 0 else z
        active = torch.empty_like(residual)
        mean, deviation = torch.empty(2, rows)
        native.call(
            "seam",
            residual,
            residual,
            skip,
            scale,
            shift,
            z,
            y,
            active,
            rows,
            count,
            channels,
            noise,
            key,
            mean,
            deviation,
        )
        ctx.save_for_backward(scale, z, y, active, mean, deviation)
        ctx.noise, ctx.skips = noise, skip is not None
        ctx.set_materialize_grads(False)
        if skip is None and noise == 0:
            y = z.view_as(z)  # an input cannot be an output as well
        return y, active

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_y: Tensor | None, g_active: Tensor | None) -> tuple[Any, ...]:
        scale, z, y, active, mean, deviation = ctx.saved_tensors
        rows, channels, height, width = z.shape
        result = torch.empty_like(z)
        if g_y is not None and g_y.stride() != z.stride():
            g_y = torch.empty_like(z).copy_(g_y)
        if g_active is not None and g_active.stride() != z.stride():
            g_active = torch.empty_like(z).copy_(g_active)
        native.call(
            "seam_backward",
            z,
            g_y,
            g_active,
            scale,
            z,
            y,
            active,
            result,
            rows,
            channels * height * width,
            channels,
            ctx.noise,
            mean,
            deviation,
        )
        return result, result if ctx.skips else None, None, None, None, None


def folded(network: ResNet, x: Tensor) -> Folded | None:
    """Return the folded network if it may stand in for the one given, and otherwise None.

    It may where nothing trains and nobody listens: evaluation mode, no parameter that wants a
    gradient, no hooks on layers, layers of the plain kinds.
    """
    if network.training or not _is_plain(network):
        return None
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return None
    state = (dtype, x.device, *_state(network))
    if network.fold is None or network.fold[0] != state:
        network.fold = (state, Folded(network, dtype, x.device))
    kept: Folded = network.fold[1]
    return kept


def _is_plain(network: ResNet) -> bool:
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return False
    if native.is_traced():
        return False
    for module in network.modules():
        if type(module).__name__ not in _PLAIN or module.training:
            return False
        if module is not network and (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        ):
            return False
    return not any(parameter.requires_grad for parameter in network.parameters())


_PLAIN = {
    "ResNet",
    "ModuleList",
    "Sequential",
    "BasicBlock",
    "Bottleneck",
    "Conv2d",
    "BatchNorm2d",
    "SyncBatchNorm",
    "Linear",
    "NoiseInjection",
}


def _state(network: ResNet) -> Iterator[tuple[int, int]]:
    """Yield what changes when a weight does."""
    for tensor in (*network.parameters(), *network.buffers()):
        yield tensor.data_ptr(), tensor._version


def _affine(bn: nn.BatchNorm2d) -> Affine:
    """Return the scale and shift that BatchNorm amounts to in evaluation, in float32."""
    with torch.no_grad():
        assert bn.running_mean is not None
        assert bn.running_var is not None
        scale = bn.weight.float() * torch.rsqrt(bn.running_var.float() + bn.eps)
        return scale, bn.bias.float() - bn.running_mean.float() * scale
