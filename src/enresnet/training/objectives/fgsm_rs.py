r"""FGSM with a random start (Wong et al., 2020): one step of 1.25 epsilon, projected.

.. math:: x' = \mathrm{Clip}_{x,\epsilon}\{x + \eta + 1.25\,\epsilon\,
          \mathrm{sign}(\nabla_x L(x + \eta, y))\}, \qquad \eta \sim U(-\epsilon, \epsilon)

Cheap, and liable to collapse: the network may learn to withstand this very step and no other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.attacks import PGD
from enresnet.training.objectives.base import Objective
from enresnet.training.recipe import Recipe

OVERSHOOT = 1.25


class FGSMRS(Objective):
    """Cross-entropy on images moved by one long step from a random start."""

    one_step = True

    def __init__(self, recipe: Recipe, generator: torch.Generator) -> None:
        super().__init__(recipe, generator)
        step = OVERSHOOT * recipe.epsilon
        self.attack = PGD(
            epsilon=recipe.epsilon, step_size=step, steps=1, eot=1, generator=generator
        )

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the images after the step."""
        return self._attacked(self.attack, model, images, labels)
