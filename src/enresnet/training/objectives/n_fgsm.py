r"""N-FGSM (de Jorge et al., 2022): stronger noise before the step, and no projection after it.

.. math:: x' = \mathrm{Clip}_{[0, 1]}\{x + \eta + \epsilon\,\mathrm{sign}(
          \nabla_x L(x + \eta, y))\}, \qquad \eta \sim U(-2\epsilon, 2\epsilon)

x + eta is clipped to [0, 1] before the gradient is taken. Two passes a step instead of Algorithm
1's eleven, and far less liable to collapse than FGSM-RS.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.attacks import PGD
from enresnet.attacks.batch import Batch, Loss
from enresnet.attacks.geometry import Linf
from enresnet.training.objectives.base import Objective
from enresnet.training.recipe import Recipe

NOISE = 2.0  # in units of epsilon


class NFGSM(Objective):
    """Cross-entropy on images moved by noise and one step."""

    one_step = True

    def __init__(self, recipe: Recipe, generator: torch.Generator) -> None:
        super().__init__(recipe, generator)
        self.attack = NoisyStep(epsilon=recipe.epsilon, steps=1, eot=1, generator=generator)

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the images after noise and step."""
        return self._attacked(self.attack, model, images, labels)


class NoisyStep(PGD):
    """A step of epsilon from a random point of the ball of twice the radius, not projected back."""

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        wide = min(1.0, NOISE * self.epsilon)
        point = Linf(batch.images, wide).random_point(batch.seeds)
        gradient = batch.gradient(self._raised(batch), point)
        moved = point.add(gradient.sign(), alpha=self.epsilon).clamp_(0, 1)
        return moved.to(batch.images.dtype)

    def _raised(self, batch: Batch) -> Loss:
        """Return the loss that the step raises."""
        return batch.loss
