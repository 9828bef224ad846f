r"""PGD adversarial training (Eq. 1, Algorithm 1; Madry et al., 2018).

.. math:: \min_w \frac1n \sum_i \max_{\|x_i' - x_i\|_\infty \le \epsilon} L(f(x_i', w), y_i)

The inner maximum is found by PGD on the network in evaluation mode, so that the attack's passes
do not move the BatchNorm statistics; noise is on in both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from enresnet.attacks import PGD
from enresnet.training.objectives.base import Objective
from enresnet.training.recipe import Recipe


class AdversarialPGD(Objective):
    """Cross-entropy on images attacked by PGD."""

    robust = True

    def __init__(self, recipe: Recipe, generator: torch.Generator) -> None:
        super().__init__(recipe, generator)
        self.attack = training_attack(recipe, generator)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits on attacked images."""
        logits = model(self.attack(model, images, labels, progress=False))
        return functional.cross_entropy(logits, labels), logits


def training_attack(recipe: Recipe, generator: torch.Generator) -> PGD:
    """Return the attack of training and validation."""
    return PGD(
        epsilon=recipe.epsilon,
        step_size=recipe.step_size,
        steps=recipe.steps,
        generator=generator,
    )
