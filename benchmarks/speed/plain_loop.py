"""A PGD-10 training step written plainly, in the order of the authors' scripts.

float32, ``torch.randn_like`` and ``torch.std``, BatchNorm in training mode in the attack as in the
update, autograd with parameters that want gradients. What a good programmer writes at first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class PlainBlock(nn.Module):
    """A noisy pre-activation block."""

    def __init__(self, before: int, width: int, stride: int, noise: float) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(before), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = None
        if stride != 1 or before != width:
            self.shortcut = nn.Conv2d(before, width, 1, stride, bias=False)
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        """Return x + F(x) + noise * std * N(0, I)."""
        out = functional.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(functional.relu(self.bn2(out)))
        out = out + skip
        return out + self.noise * torch.std(out) * torch.randn_like(out)


class PlainNetwork(nn.Module):
    """A noisy ResNet20."""

    def __init__(self, noise: float = 0.1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        before, blocks = 16, []
        for width in (16, 32, 64):
            for position in range(3):
                stride = 2 if width > 16 and position == 0 else 1
                blocks.append(PlainBlock(before, width, stride, noise))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.bn, self.linear = nn.BatchNorm2d(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        out = functional.relu(self.bn(self.blocks(self.conv(x))))
        return self.linear(functional.avg_pool2d(out, out.shape[-1]).flatten(1))


class PlainEnsemble(nn.Module):
    """The mean of several."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(PlainNetwork() for _ in range(members))

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean logits."""
        total = 0
        for member in self.members:
            total = total + member(x)
        return total / len(self.members)


class PlainLoop:
    """Trains a plain ensemble; the attack in training mode as the authors', or in evaluation's."""

    def __init__(self, members: int, *, attack_mode: str = "train") -> None:
        self.attack_mode = attack_mode
        self.model = PlainEnsemble(members).train()
        self.optimiser = torch.optim.SGD(
            self.model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        )

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Attack the images by PGD-10 and update once."""
        self.model.train(self.attack_mode == "train")
        x = images + torch.zeros_like(images).uniform_(-8 / 255, 8 / 255)
        for _ in range(10):
            x.requires_grad_()
            loss = functional.cross_entropy(self.model(x), labels, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, [x])
            x = x.detach() + 2 / 255 * torch.sign(gradient.detach())
            x = torch.min(torch.max(x, images - 8 / 255), images + 8 / 255)
            x = torch.clamp(x, 0, 1)
        self.model.train()
        self.optimiser.zero_grad()
        loss = functional.cross_entropy(self.model(x), labels)
        loss.backward()
        self.optimiser.step()
        loss.item()
