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


def difference_of_logits_ratio(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the DLR loss (Croce and Hein, 2020), an example each.

    .. math:: -\frac{z_y - \max_{i \ne y} z_i}{z_{\pi_1} - z_{\pi_3}}

    It does not change when all logits are multiplied, so no scale of them can hide the gradient.
    With two classes there is no third logit, and the margin alone is left.
    """
    if logits.shape[1] < 3:
        return -margin(logits, labels)
    first, _, third = logits.topk(3, dim=1).values.unbind(dim=1)
    return -margin(logits, labels) / (first - third + 1e-12)


def targeted_ratio(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    r"""Return the targeted DLR loss (Croce and Hein, 2020), an example each.

    .. math:: -\frac{z_y - z_t}{z_{\pi_1} - (z_{\pi_3} + z_{\pi_4}) / 2}

    With fewer than four classes the difference alone is left.
    """
    own, other = (logits.gather(1, which[:, None]).squeeze(1) for which in (labels, targets))
    if logits.shape[1] < 4:
        return other - own
    first, _, third, fourth = logits.topk(4, dim=1).values.unbind(dim=1)
    return (other - own) / (first - (third + fourth) / 2 + 1e-12)


def rivals(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits with each example's label at minus infinity, so that it never wins."""
    return logits.scatter(1, labels[:, None], -torch.inf)


def widened(x: Tensor) -> Tensor:
    """Return x in float64, or in float32 on devices that have no float64."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)
