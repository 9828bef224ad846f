"""What tells a folded copy from its network: answers, gradients, and whether weights changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.models.storage import content_digest


def weights_digest(network: nn.Module) -> str:
    """Return a digest of all parameters and buffers, to the bit."""
    values = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return content_digest({name: _on_cpu(value) for name, value in values.items()}, "")


def _on_cpu(value: Tensor) -> Tensor:
    value = value.detach()
    if value.is_quantized:
        value = value.dequantize()
    return value.to_dense().resolve_conj().resolve_neg().cpu().contiguous()


def versions(network: nn.Module) -> tuple[int, ...]:
    """Return torch's counters of changes in place, which an optimizer's steps move."""
    return tuple(-1 if p.is_inference() else p._version for p in network.parameters())


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
