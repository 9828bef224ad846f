r"""Empirical risk minimisation (Eq. 2).

.. math:: \min_w \frac1n \sum_i L(f(x_i, w), y_i)
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from enresnet.training.objectives.base import Objective


class Natural(Objective):
    """Cross-entropy on clean images."""

    robust = False

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits on the images as they are."""
        logits = model(images)
        return functional.cross_entropy(logits, labels), logits
