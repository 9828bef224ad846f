r"""Projected gradient descent (Madry et al., 2018): IFGSM from a random point of the ball.

.. math:: x^{(0)} \sim U(B_\epsilon(x)), \qquad x^{(m)} \text{ as in IFGSM}

The attack inside Algorithm 1 is this one with ten steps.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from enresnet.attacks.batch import Batch
from enresnet.attacks.geometry import BALLS, Norm
from enresnet.attacks.ifgsm import IFGSM, with_suffixes
from enresnet.attacks.targets import ChosenTargets, Goal
from enresnet.attacks.worst_so_far import worst_of
from enresnet.common import checks
from enresnet.common.precision import Precision


class PGD(IFGSM):
    """Runs IFGSM from random points of the ball and keeps the worst result of each example.

    The worst result fools the model in the largest share of ``eot`` draws; among equals it has the
    highest mean loss. A model that is known to be deterministic, and to treat each image alone, is
    not attacked again on images that it gets wrong. The first start does not depend on the number
    of restarts: with the same seed, more restarts never weaken the attack on such a model.

    Args:
        epsilon: The radius of the ball, in units of the image's range [0, 1]; 8/255 in linf and 0.5
            in l2 by default.
        step_size: The length of a step, in the same unit; a quarter of epsilon by default.
        steps: The number of steps from each start; 20 by default.
        restarts: The number of random starts; 1 by default.
        norm: The ball: ``"linf"`` (the default) or ``"l2"``.
        eot: Draws of the model's noise that every gradient averages; by default the model decides:
            5 if it is randomised, else 1.
        goal: What counts as success: ``"untargeted"`` (the default), ``"targeted"`` or
            ``"runner_up"``; see :class:`Attack`.
        targets: How targets of a targeted attack are chosen; see :class:`Attack`.
        precision: Of the gradients: ``"32"``, ``"bf16"``, or ``"auto"`` (the default), which is
            bfloat16, on hardware that computes in it, for networks of this package and for others
            that torch.fx can follow and that answer the same in it.
        early_stop: True leaves an image as soon as the model gets it wrong, if it is known to be
            deterministic and to treat each image of a batch alone: faster, with no higher accuracy.
            The image has a lower loss than after all steps, and so transfers less. False by
            default.
        generator: Draws the starts and random targets. By default it starts from the system's
            entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown, or ``epsilon`` is above 1 in linf.

    Example::

        from enresnet.attacks import PGD

        attacked = PGD(steps=50, restarts=5)(model, images, labels)
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
        eot: int | None = None,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        precision: Precision = "auto",
        early_stop: bool = False,
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
            early_stop=early_stop,
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
        return self._climb(batch, ball, start)
