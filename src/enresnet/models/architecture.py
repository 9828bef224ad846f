"""The shape of a residual network, known without building it: its blocks, widths and parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from enresnet.common import checks

Block = Literal["basic", "bottleneck"]
"""The kind of a residual block: two 3 x 3 convolutions, or 1 x 1, 3 x 3 and 1 x 1."""

StdOver = Literal["example", "batch"]
"""What the standard deviation is taken over that noise scales with."""

BLOCK_KINDS: tuple[Block, ...] = get_args(Block)
STD_OVER: tuple[StdOver, ...] = get_args(StdOver)
STEM_WIDTH = 16
WIDTHS = (16, 32, 64)  # of the three stages
EXPANSION: dict[Block, int] = {"basic": 1, "bottleneck": 4}  # output channels over block width


@dataclass(frozen=True)
class Architecture:
    """A stem, stages of ``blocks`` residual blocks each, and a classifier."""

    blocks: int
    widths: tuple[int, ...] = WIDTHS
    block: Block = "basic"

    def parameters(self, *, num_classes: int = 10, in_channels: int = 3) -> int:
        """Return how many numbers training changes in such a network."""
        total, width = 9 * in_channels * STEM_WIDTH, STEM_WIDTH
        for stage, inner in enumerate(self.widths):
            outer = EXPANSION[self.block] * inner
            if stage > 0 or width != outer:  # the first block's shortcut is a convolution
                total += width * outer
            total += self._mapping(width, inner) + (self.blocks - 1) * self._mapping(outer, inner)
            width = outer
        return total + 2 * width + (width + 1) * num_classes

    def _mapping(self, width: int, inner: int) -> int:
        """Return those of a residual mapping: convolutions, and two a channel of BatchNorm."""
        if self.block == "basic":
            return 2 * width + 9 * width * inner + 2 * inner + 9 * inner**2
        return 2 * width + width * inner + 2 * inner + 9 * inner**2 + 2 * inner + 4 * inner**2


def resnet_blocks(depth: int, block: Block | None = None) -> tuple[int, Block]:
    """Return the number of blocks a stage, and their kind, for a ResNet of ``depth`` layers."""
    checks.integer("depth", depth, low=1)
    if block is not None:
        checks.choice("block", block, BLOCK_KINDS)
    layers_of: dict[Block, int] = {"basic": 6, "bottleneck": 9}
    for kind, layers in layers_of.items():
        if block in (None, kind) and depth > 2 and depth % layers == 2:
            return depth // layers, kind
    layers, rule = (9, "9n+2") if block == "bottleneck" else (6, "6n+2")
    below = max(1, (depth - 2) // layers) * layers + 2
    also = "" if block else ", or 9n+2 with bottlenecks"
    raise ValueError(
        f"depth must be {rule}{also}, found {depth}; the nearest are {below} and {below + layers}"
    )


def wide_resnet_blocks(depth: int) -> int:
    """Return the number of blocks a stage for a WideResNet of ``depth`` layers.

    The paper's WRN-14-2 has two: alone of its kind, it counts 6n+2 layers.
    """
    checks.integer("depth", depth, low=1)
    if depth == 14:
        return 2
    if depth < 10 or depth % 6 != 4:
        raise ValueError(f"depth must be 6n+4, or 14 as in the paper's WRN-14-2; found {depth}")
    return depth // 6
