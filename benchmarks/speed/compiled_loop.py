"""A PGD-10 training step as a good PyTorch user writes it.

bfloat16 autocast, channels last, BatchNorm in evaluation mode in the attack, parameters frozen
during it, a fused optimiser, and ``torch.compile`` around the network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from speed.turns import MissingError


class CompiledLoop:
    """Trains a network; the first step compiles it, which takes a minute or more."""

    def __init__(self, model: nn.Module, *, compiler: str) -> None:
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        try:
            self.compiled = torch.compile(self.model, backend=compiler)
        except RuntimeError as error:
            raise MissingError(f"torch.compile does not work here: {error}") from error
        self.optimiser = torch.optim.SGD(
            model.parameters(),
            lr=0.1,
            momentum=0.9,
            nesterov=True,
            weight_decay=5e-4,
            fused=True,
        )

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Attack the images by PGD-10 and update once."""
        x = self._attacked(images.contiguous(memory_format=torch.channels_last), labels)
        self.model.train()
        self.optimiser.zero_grad()
        loss = functional.cross_entropy(self._logits(x), labels)
        loss.backward()
        self.optimiser.step()
        loss.item()

    def _attacked(self, images: Tensor, labels: Tensor) -> Tensor:
        self.model.eval()
        self.model.requires_grad_(False)
        x = images + torch.zeros_like(images).uniform_(-8 / 255, 8 / 255)
        for _ in range(10):
            x.requires_grad_()
            loss = functional.cross_entropy(self._logits(x), labels, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, [x])
            x = x.detach() + 2 / 255 * gradient.sign()
            x = torch.clamp(torch.clamp(x, images - 8 / 255, images + 8 / 255), 0, 1)
        self.model.requires_grad_(True)
        return x.detach()

    def _logits(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = self.compiled(x)
        return logits.float()
