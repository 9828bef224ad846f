r"""A frozen network as attacks call it: BatchNorm folded away, in one type of numbers.

In evaluation BatchNorm is an affine map. That after the first convolution of a block goes into its
weights; that before the block stands before a ReLU and cannot, but is fused with the sum and the
noise that come before it (the seam between two blocks, see fused_cpu.py):

.. math:: z = F(x_l) + x_l, \quad x_{l+1} = z + \sigma N(0, I), \quad
          \mathrm{active} = \mathrm{relu}(w^{B1} \odot x_{l+1})

The folded weights are those of the moment. Only the gradient of the images is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from enresnet.models.noise import NoiseInjection
from enresnet.models.resnet import BasicBlock, Bottleneck, ResNet

Affine = tuple[Tensor, Tensor]
_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)
_PLACES: dict[str, tuple[type[nn.Module], ...]] = {
    "stem": (nn.Conv2d,),
    "stages": (nn.ModuleList,),
    "classifier": (nn.Linear,),
    "conv": (nn.Conv2d,),
    "bn": _NORMS,
    "shortcut": (nn.Conv2d,),
    "noise": (NoiseInjection,),
}
"""The parts of networks and blocks, by name without its number."""


@dataclass(frozen=True)
class Convolution:
    """A convolution with what was folded into it."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the convolution of ``x``."""
        return functional.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def dense(self) -> Convolution:
        """Return the convolution that skips nothing."""
        return replace(self, stride=(1, 1))


@dataclass(frozen=True)
class Block:
    """The convolutions between two seams."""

    first: tuple[Convolution, ...]  # each followed by a ReLU
    last: Convolution
    shortcut: Convolution | None
    noise: NoiseInjection

    def __call__(self, out: Tensor, active: Tensor) -> Tensor:
        """Return the sum of residual and skip."""
        skip = out if self.shortcut is None else self.shortcut(active)
        for convolution in self.first:
            active = convolution(active).relu_()
        return self.last(active) + skip


class FoldedNetwork:
    """The weights of a network, folded, in one type; and its forward pass in torch's operations."""

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, network: ResNet, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        blocks: list[Any] = list(network.all_blocks())
        self.stem = self._convolution(network.stem)
        self.blocks = [self._block(block) for block in blocks]
        # the BatchNorm that each block opens with, and that of the head
        self.affines = [_affine(bn) for bn in (*(block.bn1 for block in blocks), network.bn)]
        # clones: a weight that changes between forward and backward must not reach in here
        self.head = tuple(t.detach().clone() for t in network.classifier.parameters())

    @torch.no_grad()
    def _block(self, block: Any) -> Block:
        # bottlenecks have one more pair than basic blocks
        pairs = [(block.conv1, block.bn2)]
        last = block.conv2
        if hasattr(block, "conv3"):
            pairs.append((block.conv2, block.bn3))
            last = block.conv3
        return Block(
            first=tuple(self._convolution(conv, _affine(bn)) for conv, bn in pairs),
            last=self._convolution(last),
            shortcut=None if block.shortcut is None else self._convolution(block.shortcut),
            noise=block.noise,
        )

    @torch.no_grad()
    def _convolution(self, conv: nn.Conv2d, after: Affine | None = None) -> Convolution:
        weight, bias = conv.weight, None
        if after is not None:
            scale, shift = after
            weight, bias = weight * scale.view(-1, 1, 1, 1), shift.to(self._dtype)
        weight = weight.to(self._dtype, copy=True)
        if self._device.type == "cpu":
            weight = weight.contiguous(memory_format=torch.channels_last)
        padding = conv.padding
        assert not isinstance(padding, str)
        return Convolution(weight.detach(), bias, conv.stride, padding)  # type: ignore[arg-type]

    def before_noise(self, x: Tensor) -> Tensor:
        """Return the sum that the first noise is added to, of images that are normalised."""
        out = self.stem(x)
        return self.blocks[0](out, _activated(out, self.affines[0]))

    def after_noise(self, z: Tensor) -> Tensor:
        """Return the logits, with noise from the first on."""
        out = self.blocks[0].noise(z)
        for block, affine in zip(self.blocks[1:], self.affines[1:], strict=False):
            out = block.noise(block(out, _activated(out, affine)))
        features = _activated(out, self.affines[-1]).mean(dim=(2, 3), dtype=torch.float32)
        return functional.linear(features.to(self.head[0].dtype), *self.head)


def _activated(out: Tensor, affine: Affine) -> Tensor:
    scale, shift = (value.to(out.dtype).view(1, -1, 1, 1) for value in affine)
    return torch.addcmul(shift, out, scale).relu_()


def can_be_folded(network: ResNet) -> bool:
    """Return whether a frozen network is made as we make them, of layers that fold.

    It must be in evaluation mode, without a parameter that wants a gradient.
    """
    if any(
        getattr(torch_module, f"_global_{when}_hooks")
        for when in ("forward", "forward_pre", "backward", "backward_pre")
    ):
        return False
    if not is_as_made(network):
        return False
    for module in network.modules():
        if module.training:
            return False
        if isinstance(module, nn.Conv2d) and not _is_plain_convolution(module):
            return False
        if isinstance(module, _NORMS) and not module.affine:
            return False
        if isinstance(module, nn.Linear) and module._parameters.get("bias") is None:
            return False
    # One made in inference mode cannot be part of a backward pass.
    return not any(p.requires_grad or p.is_inference() for p in network.parameters())


def is_as_made(network: ResNet) -> bool:
    """Return whether each part of a network is in its place, and of the class that we put there.

    A subclass, whatever its name, may do anything, and so may a layer in another's place. BatchNorm
    without statistics takes those of the batch, also in evaluation.
    """
    stages: list[nn.Module] = list(network.stages)
    if any(type(stage) is not nn.Sequential for stage in stages):
        return False
    blocks = [block for stage in stages if isinstance(stage, nn.Sequential) for block in stage]
    if any(type(block) not in (BasicBlock, Bottleneck) for block in blocks):
        return False
    return all(
        type(part) in _PLACES.get(name.rstrip("123"), ())
        for module in (network, *blocks)
        for name, part in module.named_children()
    ) and not any(
        is_listened_to(part) or (isinstance(part, _NORMS) and part.running_mean is None)
        for part in network.modules()
    )


def is_listened_to(module: nn.Module) -> bool:
    """Return whether a module has hooks, or a ``forward`` other than its class's."""
    return bool(
        "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _is_plain_convolution(conv: nn.Conv2d) -> bool:
    return (
        conv.bias is None
        and conv.groups == 1
        and conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
    )


def _affine(bn: nn.BatchNorm2d) -> Affine:
    """Return the scale and shift that BatchNorm amounts to in evaluation, in float32."""
    with torch.no_grad():
        assert bn.running_mean is not None
        assert bn.running_var is not None
        scale = bn.weight.float() * torch.rsqrt(bn.running_var.float() + bn.eps)
        return scale, bn.bias.float() - bn.running_mean.float() * scale
