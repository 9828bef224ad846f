r"""An exponential moving average of the weights, BatchNorm's running statistics included.

.. math:: \bar w \leftarrow d_t\, \bar w + (1 - d_t)\, w, \qquad
          d_t = \min\Bigl(d, \frac{1 + t}{10 + t}\Bigr) \quad \text{after step } t

The decay grows at first, so that the weights drawn at random are soon forgotten.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from enresnet.models import Ensemble, seed_noise


class WeightAverage:
    """A second network with the averaged weights of the first."""

    def __init__(self, model: nn.Module, decay: float, generator: torch.Generator) -> None:
        self.model = copy.deepcopy(model)
        self.decay = decay
        seed_noise(self.model, generator)  # a copy would repeat the noise of the original

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Update the average after the ``step``-th step."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, values = self.model.state_dict(), model.state_dict()
        floating = [name for name, value in averages.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [averages[name] for name in floating], [values[name] for name in floating], 1 - decay
        )
        for name in averages.keys() - set(floating):
            averages[name].copy_(values[name])
        self.follow_weights(model)

    @torch.no_grad()
    def follow_weights(self, model: nn.Module) -> None:
        """Copy the weights of an ensemble's parts: they are learned, not averaged."""
        for own, other in zip(self.model.modules(), model.modules(), strict=True):
            if isinstance(own, Ensemble) and isinstance(other, Ensemble):
                own.weights.copy_(other.weights)
