r"""Empirical risk minimisation (Eq. 2).

.. math:: \min_w \frac1n \sum_i L(f(x_i, w), y_i)
"""

from __future__ import annotations

from torch import Tensor, nn

from enresnet.training.objectives.base import Objective


class NaturalTraining(Objective):
    """Cross-entropy on clean images."""

    robust = False

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the images as they are."""
        del model, labels
        return images
