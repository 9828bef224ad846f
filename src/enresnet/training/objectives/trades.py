r"""TRADES (Zhang et al., 2019): natural accuracy traded for the boundary's distance.

.. math:: \mathrm{CE}(p(x), y) + \beta \max_{\|x' - x\|_\infty \le \epsilon}
          \mathrm{KL}(p(x) \| p(x')), \qquad \beta = 6
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.attacks import PGD
from enresnet.attacks.batch import Batch
from enresnet.attacks.geometry import BALLS
from enresnet.attacks.ifgsm import climb
from enresnet.training.objectives.base import Objective, divergence
from enresnet.training.recipe import Recipe

BETA = 6.0
START = 0.001  # standard deviation of the attack's start around the image


class TRADES(Objective):
    """Cross-entropy on clean images, and consistency with images that break it most."""

    passes = 2

    def __init__(self, recipe: Recipe, generator: torch.Generator) -> None:
        super().__init__(recipe, generator)
        self.attack = DivergencePGD(
            epsilon=recipe.epsilon,
            step_size=recipe.step_size,
            steps=recipe.steps,
            eot=1,
            generator=generator,
        )

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the images whose prediction is farthest from that of the clean ones."""
        return self._attacked(self.attack, model, images, labels)

    def loss(
        self, model: nn.Module, images: Tensor, crafted: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the logits of the crafted images."""
        clean, attacked = model(images), model(crafted)
        distance = divergence(clean.log_softmax(dim=1), attacked.log_softmax(dim=1)).mean()
        beta = BETA if self.recipe.beta is None else self.recipe.beta
        return self.cross_entropy(clean, labels) + beta * distance, attacked


class DivergencePGD(PGD):
    """PGD that raises KL(p(x) || p(x')) from x + 0.001 N(0, I); p(x) is computed once."""

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs."""
        return super().forward_passes() + 1

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        ball = BALLS[self.norm](batch.images, self.epsilon)
        with torch.no_grad():
            log_p = batch.logits(batch.images).log_softmax(dim=1)

        def distance(logits: Tensor) -> Tensor:
            return divergence(log_p, logits.log_softmax(dim=1))

        start = ball.gaussian_point(batch.seeds, START)
        return climb(batch, ball, start, steps=self.steps, step_size=self.step_size, loss=distance)
