"""What tells a folded copy from its network: answers, gradients, and whether weights changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def weight_sums(network: nn.Module) -> Tensor:
    """Return the sum of each parameter and buffer: another one where its values have changed."""
    values = [value.detach() for value in (*network.parameters(), *network.buffers())]
    sums = [_sum(value) for value in values]
    return torch.stack([each.to(sums[0]) for each in sums]).cpu()


def _sum(value: Tensor) -> Tensor:
    if value.is_quantized:
        value = value.dequantize()
    elif value.is_complex():
        value = value.abs()
    widest = torch.float32 if value.device.type == "mps" else torch.float64
    return value.sum(dtype=widest)


def gradient_at_images(logits: Tensor, leaf: Tensor) -> Tensor:
    """Return the gradient at the images of a sum in which each logit has a weight of its own.

    With the same weights for all images, the sum would be constant where logits are normalised over
    the batch.
    """
    logits = logits.float()
    images, classes = logits.shape
    weights = torch.outer(torch.linspace(1, 2, images), torch.linspace(1, -1, classes)).to(logits)
    if not logits.requires_grad:
        return torch.zeros_like(leaf)
    found = torch.autograd.grad((logits * weights).sum(), leaf, allow_unused=True)[0]
    return torch.zeros_like(leaf) if found is None else found


def distance(one: Tensor, two: Tensor) -> float:
    """Return by how much answers differ, over how much they differ between classes."""
    one, two = one.detach(), two.detach()
    spread = (one - one.mean(dim=1, keepdim=True)).abs().mean().clamp_min(1e-12)
    return float((one - two).abs().mean() / spread)
