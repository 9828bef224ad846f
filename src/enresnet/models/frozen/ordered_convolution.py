r"""A convolution with its weights in the order that oneDNN wants, and the gradient of its input.

torch hands weights over as they are, and oneDNN puts them in its own order in every call. Here that
is done once, and a ReLU is applied in the same pass. The gradient of the input,

.. math:: \frac{\partial L}{\partial x_i} = \sum_{s o + k = i + p} w_k\, g_o,

is a convolution too: with stride s = 1 one of g with the kernels turned round. With a larger
stride, the pixels i = s m + r of each phase r see kernels of their own, so one convolution with
s x s times the channels gives all phases, which are then put side by side (pixel shuffle). oneDNN's
own way is faster where the input has many channels, and twice as slow where it has three.

On planes of few pixels most places of a kernel see padding alone, which oneDNN multiplies all the
same: of a 3 x 3 kernel on 1 x 1 pixels eight places of nine. There the convolution is a product
with the matrix from all input pixels to all output pixels, which is smaller.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from enresnet.models.frozen.fold import Convolution

LANES = 16  # channels that the library computes at once
_ONE = [1, 1]
_HAS_FUSED = hasattr(torch.ops.mkldnn, "_convolution_pointwise")


def computes_in(dtype: torch.dtype) -> bool:
    """Return whether the library's fused convolution is there for this type on this CPU."""
    return bool(
        _HAS_FUSED
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and dtype in (torch.float32, torch.bfloat16)
        and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class OrderedConvolution:
    """A convolution, by the library's fused operation where it has channels enough.

    Args:
        layer: The weights, and how they are applied.
        matrices: Whether planes of few pixels are multiplied by a matrix.
    """

    def __init__(self, layer: Convolution, *, matrices: bool = False) -> None:
        self.layer, self._matrices = layer, matrices
        self._padding, self._stride = list(layer.padding), list(layer.stride)
        out_channels, in_channels, *kernel = layer.weight.shape
        self._fused = in_channels % LANES == 0 and out_channels % LANES == 0
        keeps_size = self._stride == _ONE and kernel == [2 * p + 1 for p in self._padding]
        self._turns = self._fused and keeps_size
        self._shuffles = in_channels < LANES and self._stride[0] == self._stride[1] > 1
        self._ordered: dict[str, tuple[torch.Size, Tensor]] = {}
        self._matrix: tuple[torch.Size, Tensor, Tensor | None] | None = None

    def __call__(self, x: Tensor, then: str = "none") -> Tensor:
        """Return the convolution of ``x``, followed by ``then``: none or relu."""
        if self._is_matrix(x):
            out = self._multiplied(x)
            return out if then == "none" else out.relu_()
        if not self._fused:
            return self.layer(x) if then == "none" else self.layer(x).relu_()
        return self._convolved("forward", x, self.layer.bias, self._stride, then)

    def back(self, g: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of the input ``x`` from that of the output."""
        if self._is_matrix(x):
            matrix, _ = self._matrix_for(x.shape[2:])
            out = _empty(x, x.shape[1], x.shape[2:])
            torch.mm(_as_rows(g), matrix, out=_as_rows(out))
            return out
        if self._turns:
            return self._convolved("back", g, None, _ONE, "none")
        if self._shuffles:
            return self._shuffled(g, x)
        grad_input: Tensor = torch.ops.aten.convolution_backward(
            g,
            x,
            self.layer.weight,
            None,
            self._stride,
            self._padding,
            _ONE,
            False,
            [0, 0],
            1,
            [True, False, False],
        )[0]
        return grad_input

    def _convolved(
        self, way: str, x: Tensor, bias: Tensor | None, stride: list[int], then: str
    ) -> Tensor:
        shape, weight = self._ordered.get(way, (None, x))
        if shape != x.shape[1:]:  # the order is the same for any number of images
            weight = self.layer.weight if way == "forward" else self._turned
            weight = torch.ops.mkldnn._reorder_convolution_weight(
                weight, self._padding, stride, _ONE, 1, list(x.shape)
            )
            self._ordered[way] = (x.shape[1:], weight)
        out: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, weight, bias, self._padding, stride, _ONE, 1, then, [], ""
        )
        return out

    @property
    def _turned(self) -> Tensor:
        turned = self.layer.weight.transpose(0, 1).flip(2, 3)
        return turned.contiguous(memory_format=torch.channels_last)

    def _is_matrix(self, x: Tensor) -> bool:
        """Return whether the matrix is less than half of what the kernel would multiply."""
        kernel, plane = self.layer.weight.shape[2:], x.shape[2:]
        return self._matrices and 2 * plane.numel() <= kernel.numel()

    def _multiplied(self, x: Tensor) -> Tensor:
        matrix, bias = self._matrix_for(x.shape[2:])
        sides = [_outputs(*side) for side in self._sides(x.shape[2:])]
        out = _empty(x, len(self.layer.weight), sides)
        if bias is None:
            torch.mm(_as_rows(x), matrix.t(), out=_as_rows(out))
        else:
            torch.addmm(bias, _as_rows(x), matrix.t(), out=_as_rows(out))
        return out

    def _sides(self, plane: torch.Size) -> list[tuple[int, int, int, int]]:
        """Return size, kernel, padding and stride of each side."""
        kernel = self.layer.weight.shape[2:]
        return list(zip(plane, kernel, self._padding, self._stride, strict=True))

    def _matrix_for(self, plane: torch.Size) -> tuple[Tensor, Tensor | None]:
        """Return the matrix from all pixels and channels in to all out, and the bias."""
        if self._matrix is None or self._matrix[0] != plane:
            self._matrix = (plane, *self._build_matrix(plane))
        return self._matrix[1:]

    def _build_matrix(self, plane: torch.Size) -> tuple[Tensor, Tensor | None]:
        weight, sides = self.layer.weight, self._sides(plane)
        out_channels, in_channels = weight.shape[:2]
        rows, columns = (_outputs(*side) for side in sides)
        matrix = weight.new_zeros(rows, columns, out_channels, *plane, in_channels)
        above, beside = (_seen(*side) for side in sides)
        for i, k, a in above:
            for j, m, b in beside:
                matrix[i, j, :, k, m] = weight[:, :, a, b]
        bias = None if self.layer.bias is None else self.layer.bias.repeat(rows * columns)
        return matrix.view(rows * columns * out_channels, plane.numel() * in_channels), bias

    def _shuffled(self, g: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of the input ``x``, phase by phase in one convolution."""
        step = self._stride[0]
        kernels, ranges = self._phases
        padding = []
        for (first, last), size, out in zip(ranges, x.shape[2:], g.shape[2:], strict=True):
            places = -(-size // step)
            padding.append([-first, places - 1 + last - (out - 1)])
        g = functional.pad(g, [*padding[1], *padding[0]])  # the last dimension comes first
        whole = functional.pixel_shuffle(functional.conv2d(g, kernels), step)
        return whole[:, :, : x.shape[2], : x.shape[3]]

    @functools.cached_property
    def _phases(self) -> tuple[Tensor, list[tuple[int, int]]]:
        """Return the kernels of all phases, and from which to which place of g each side sees.

        The pixel s m + r sees g at m + d through the kernel's place r + p - s d.
        """
        weight, step = self.layer.weight, self._stride[0]
        out_channels, in_channels, *kernel = weight.shape
        sides = list(zip(kernel, self._padding, strict=True))
        ranges = [(math.ceil((p - k + 1) / step), (step - 1 + p) // step) for k, p in sides]
        sizes = [last - first + 1 for first, last in ranges]
        kernels = weight.new_zeros(in_channels, step, step, out_channels, *sizes)
        seen = [
            [
                (r, d - first, r + p - step * d)
                for r in range(step)
                for d in range(first, last + 1)
                if 0 <= r + p - step * d < k
            ]
            for (k, p), (first, last) in zip(sides, ranges, strict=True)
        ]
        for r, i, row in seen[0]:
            for q, j, column in seen[1]:
                kernels[:, r, q, :, i, j] = weight[:, :, row, column].t()
        kernels = kernels.flatten(0, 2)
        return kernels.contiguous(memory_format=torch.channels_last), ranges


def _outputs(size: int, kernel: int, padding: int, stride: int) -> int:
    """Return how many places a side of the result has."""
    return (size + 2 * padding - kernel) // stride + 1


def _seen(size: int, kernel: int, padding: int, stride: int) -> list[tuple[int, int, int]]:
    """Return which output sees which input through which place of the kernel, along a side."""
    return [
        (out, place, place + padding - stride * out)
        for out in range(_outputs(size, kernel, padding, stride))
        for place in range(size)
        if 0 <= place + padding - stride * out < kernel
    ]


def _as_rows(x: Tensor) -> Tensor:
    """Return each image as a row, channels last: a view where the memory is in that order."""
    return x.permute(0, 2, 3, 1).flatten(1)


def _empty(x: Tensor, channels: int, plane: Sequence[int]) -> Tensor:
    """Return a tensor like ``x``, channels last, to be filled: no view, which autograd minds."""
    return torch.empty(
        (len(x), channels, *plane),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )
