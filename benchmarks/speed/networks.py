"""Networks that are not ours, as others write them, for benchmarks on somebody else's model.

``enresnet train --model speed.networks:plain_cnn ...`` in the folder benchmarks trains them.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def plain_cnn(num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Return a convolutional network without shortcuts and without normalisation."""
    widths = (in_channels, 32, 64, 128)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, stride=2, padding=1),
            nn.ReLU(),
        ]
    layers += [nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, num_classes)]
    return _initialised(nn.Sequential(*layers))


def _initialised(network: nn.Module) -> nn.Module:
    """Draw weights that keep the size of what passes through, since no normalisation does."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(F(x) + x)."""
        return torch.relu(self.conv2(torch.relu(self.conv1(x))) + self.shortcut(x))


class ResNetWithoutBatchNorm(nn.Module):
    """A residual network without BatchNorm, as those whose robustness is proved are."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, 32, 3, 1, 1)
        self.blocks = nn.Sequential(
            _Block(32, 32, 1),
            _Block(32, 64, 2),
            _Block(64, 64, 1),
            _Block(64, 128, 2),
            _Block(128, 128, 1),
        )
        self.head = nn.Linear(128, num_classes)
        _initialised(self)
        for block in self.blocks:
            nn.init.zeros_(block.conv2.weight)  # it starts as the shortcut alone

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        features: Tensor = self.blocks(torch.relu(self.stem(images)))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits
