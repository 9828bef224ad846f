r"""Random noise: the floor that every attack worth its name lies below.

.. math:: x' \sim U(B_\epsilon(x))
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from enresnet.attacks.base import Attack
from enresnet.attacks.batch import Batch
from enresnet.attacks.geometry import BALLS, Norm
from enresnet.attacks.ifgsm import check_epsilon, with_suffixes
from enresnet.attacks.targets import ChosenTargets, Goal
from enresnet.attacks.worst_so_far import worst_of
from enresnet.common import checks


class RandomNoise(Attack):
    """Returns a random point of the ball, or the worst of several, without gradients.

    Every other attack should do better than this.

    Args:
        epsilon: The radius of the ball, in units of the image's range [0, 1]; 8/255 in linf and 0.5
            in l2 by default.
        restarts: The number of points, of which the worst is kept; 1 by default.
        norm: The ball: ``"linf"`` (the default) or ``"l2"``.
        eot: Draws of the model's noise that the judgement of a point averages; by default the model
            decides: 5 if it is randomised, else 1.
        goal: What counts as success: ``"untargeted"`` (the default), ``"targeted"`` or
            ``"runner_up"``; see :class:`Attack`.
        targets: How targets of a targeted attack are chosen; see :class:`Attack`.
        generator: Draws the points and random targets. By default it starts from the system's
            entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown, or ``epsilon`` is above 1 in linf.

    Example::

        from enresnet.attacks import RandomNoise

        attacked = RandomNoise(epsilon=8 / 255, restarts=10)(model, images, labels)
    """

    random = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        restarts: int = 1,
        norm: Norm = "linf",
        eot: int | None = None,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=eot, goal=goal, targets=targets, generator=generator)
        self.epsilon = check_epsilon(epsilon, norm)
        self.norm = norm
        self.restarts = checks.integer("restarts", restarts, low=1)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return with_suffixes("noise", self.norm, self)

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs."""
        return self.restarts * self.draws

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        if self.restarts == 1:
            batch.judge(batch.images)  # a wrong model or label is an error here too
            return self._point(batch, number=0)
        draws = range(self.restarts)
        return worst_of(batch, [partial(self._point, number=number) for number in draws])

    def _point(self, batch: Batch, *, number: int) -> Tensor:
        ball = BALLS[self.norm](batch.images, self.epsilon)
        return ball.settle(ball.random_point(batch.seeds + number))
