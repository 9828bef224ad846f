r"""Projected gradient descent (Madry et al., 2018): IFGSM from a random point of the ball.

.. math:: x^{(0)} \sim U(B_\epsilon(x)), \qquad x^{(m)} \text{ as in IFGSM}

The attack inside Algorithm 1 is this one with ten steps.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from enresnet.attacks.base import ChosenTargets, Goal
from enresnet.attacks.batch import Batch
from enresnet.attacks.geometry import BALLS, Norm
from enresnet.attacks.ifgsm import IFGSM, climb, with_suffixes
from enresnet.attacks.precision import Precision
from enresnet.attacks.worst_so_far import worst_of
from enresnet.common import checks


class PGD(IFGSM):
    """IFGSM from random starts, of which the worst result for each example is kept.

    Worst is what fools the model in the largest share of ``eot`` draws, and among equals what has
    the highest mean loss; what fools a network of ours that has no noise is not started again. The
    first start does not depend on the number of restarts, so more of them, from the same generator,
    never give a weaker attack on a deterministic model. Starts come from ``generator``, or from the
    system's entropy, never from torch's global generator.
    """

    random = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        step_size: float | None = None,
        steps: int = 20,
        restarts: int = 1,
        norm: Norm = "linf",
        eot: int | None = 1,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        precision: Precision = "auto",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            step_size=step_size,
            steps=steps,
            norm=norm,
            eot=eot,
            goal=goal,
            targets=targets,
            precision=precision,
            generator=generator,
        )
        self.restarts = checks.integer("restarts", restarts, low=1)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return with_suffixes(f"pgd{self.steps}", self.norm, self)

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs."""
        judged = self.draws if self.restarts > 1 else 0
        return self.restarts * (super().forward_passes() + judged)

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        if self.restarts == 1:
            return self._from_start(batch, number=0)
        starts = range(self.restarts)
        return worst_of(batch, [partial(self._from_start, number=number) for number in starts])

    def _from_start(self, batch: Batch, *, number: int) -> Tensor:
        ball = BALLS[self.norm](batch.images, self.epsilon)
        start = ball.random_point(batch.seeds + number)
        return climb(batch, ball, start, steps=self.steps, step_size=self.step_size)
