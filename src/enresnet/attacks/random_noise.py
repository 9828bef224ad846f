r"""Random noise: the floor that every attack worth its name lies below.

.. math:: x' \sim U(B_\epsilon(x))
"""

from __future__ import annotations

import torch
from torch import Tensor

from enresnet.attacks.batch import Batch, Loss
from enresnet.attacks.geometry import Ball
from enresnet.attacks.ifgsm import with_suffixes
from enresnet.attacks.pgd import PGD


class RandomNoise(PGD):
    """A random point of the ball, the worst of several draws, without any gradient."""

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        restarts: int = 1,
        norm: str = "linf",
        eot: int | None = 1,
        goal: str = "untargeted",
        targets: str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            restarts=restarts,
            norm=norm,
            eot=eot,
            goal=goal,
            targets=targets,
            generator=generator,
        )

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return with_suffixes("noise", self.norm, self)

    def _passes(self) -> int:
        return self.restarts * self.draws

    def _perturb(self, batch: Batch) -> Tensor:
        if self.restarts == 1:
            batch.judge(batch.images)  # the gate: a wrong model or label is an error here too
        return super()._perturb(batch)

    def _climb(
        self,
        ball: Ball,
        batch: Batch,  # noqa: ARG002
        point: Tensor,
        loss: Loss | None = None,  # noqa: ARG002
    ) -> Tensor:
        return ball.settle(point)
