"""What attacks raise or lower: one number for each example, computed precisely."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log p(label), an example each.

    In float64: where the softmax saturates, float32 rounds 1 - p(label) to zero and with it the
    label's share of the gradient.
    """
    return functional.cross_entropy(widened(logits), labels, reduction="none")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return Z_label - max over the others of Z_i, an example each; below 0 is misclassified."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    return own - rivals(logits, labels).amax(dim=1)


def rivals(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits with each example's label at minus infinity, so that it never wins."""
    return logits.scatter(1, labels[:, None], -torch.inf)


def widened(x: Tensor) -> Tensor:
    """Return x in float64, or in float32 on devices that have no float64."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)
