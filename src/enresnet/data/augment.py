"""The standard augmentation (He et al., 2016): pad, crop at random, mirror at random.

Batched on tensors: one gather for the whole batch, on uint8, so that it costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from enresnet.common import checks


@dataclass(frozen=True)
class Augmentation:
    """Shifts and mirrors each image of a batch at random: the standard augmentation of CIFAR.

    Attributes:
        pad: The largest shift in each direction, in pixels; 4 by default. Zeros fill what a shift
            leaves empty.
        flip: Whether half of the images, chosen at random, are mirrored left to right; True by
            default.

    Shape:
        - pixels: N x C x H x W, of any type
        - result: as pixels

    Raises:
        TypeError: ``pad`` is not an integer.
        ValueError: ``pad`` is negative.

    Example::

        import torch
        from enresnet.data import Augmentation

        augment = Augmentation(pad=4, flip=True)
        augmented = augment(images, torch.Generator().manual_seed(0))
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        checks.integer("pad", self.pad, low=0)

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images, each shifted and mirrored by draws from ``generator``."""
        count, channels, height, width = pixels.shape
        if self.pad == 0 and not self.flip:
            return pixels
        span = 2 * self.pad + 1
        top, left = torch.randint(span, (2, count, 1), generator=generator)
        rows = torch.arange(height) + top  # N x H, into the padded image
        columns = torch.arange(width) + left
        if self.flip:
            mirrored = torch.rand(count, 1, generator=generator) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        padded = torch.nn.functional.pad(pixels, [self.pad] * 4)
        index = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # N x H x W
        index = index.view(count, 1, -1).expand(-1, channels, -1).to(pixels.device)
        return padded.flatten(2).gather(2, index).view(pixels.shape)
