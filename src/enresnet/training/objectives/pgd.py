r"""PGD adversarial training (Eq. 1, Algorithm 1; Madry et al., 2018).

.. math:: \min_w \frac1n \sum_i \max_{\|x_i' - x_i\|_\infty \le \epsilon} L(f(x_i', w), y_i)

The inner maximum is found by PGD, with the noise on as in the update. BatchNorm is in evaluation
mode during the attack, so that its passes do not move the statistics; ``attack_mode: train`` lets
them, as the authors' released code does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.attacks import PGD
from enresnet.training.objectives.base import Objective
from enresnet.training.recipe import Recipe


class AdversarialPGD(Objective):
    """Cross-entropy on images attacked by PGD."""

    def __init__(self, recipe: Recipe, generator: torch.Generator) -> None:
        super().__init__(recipe, generator)
        self.attack = training_attack(recipe, generator)

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return images attacked by PGD."""
        return self._attacked(self.attack, model, images, labels)


def training_attack(recipe: Recipe, generator: torch.Generator) -> PGD:
    """Return the attack of training and validation."""
    return PGD(
        epsilon=recipe.epsilon,
        step_size=recipe.step_size,
        steps=recipe.steps,
        eot=1,  # as in Algorithm 1: fresh noise in every step
        generator=generator,
    )
