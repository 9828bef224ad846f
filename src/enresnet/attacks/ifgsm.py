r"""Iterative fast gradient sign method (Eq. 16; Kurakin et al., 2017).

.. math:: x^{(m)} = \mathrm{Clip}_{x,\epsilon}\{x^{(m-1)}
          + \alpha\,\mathrm{sign}(\nabla_x L(x^{(m-1)}, y))\}, \qquad x^{(0)} = x
"""

from __future__ import annotations

import torch
from torch import Tensor

from enresnet.attacks.base import Attack
from enresnet.attacks.batch import Batch, Loss
from enresnet.attacks.geometry import BALLS, Ball, Norm
from enresnet.attacks.targets import ChosenTargets, Goal
from enresnet.common import checks
from enresnet.common.precision import PRECISIONS, Precision

LONGEST = 1e15  # a length whose square float32 still holds; no image is as large
DEFAULT_EPSILON = {"linf": 8 / 255, "l2": 0.5}


class IFGSM(Attack):
    """Takes steps along the gradient inside the epsilon ball, from the image itself.

    In linf a step follows the gradient's sign, in l2 the normalised gradient.

    Args:
        epsilon: The radius of the ball, in units of the image's range [0, 1]; 8/255 in linf and 0.5
            in l2 by default.
        step_size: The length of a step, in the same unit; a quarter of epsilon by default, which is
            the paper's 2/255 at 8/255.
        steps: The number of steps; 20 by default.
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
        generator: Draws random targets. By default it starts from the system's entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown, or ``epsilon`` is above 1 in linf.

    Example::

        from enresnet.attacks import IFGSM

        attacked = IFGSM(epsilon=8 / 255, steps=20, eot=5)(model, images, labels)
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        step_size: float | None = None,
        steps: int = 20,
        norm: Norm = "linf",
        eot: int | None = None,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        precision: Precision = "auto",
        early_stop: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=eot, goal=goal, targets=targets, generator=generator)
        checks.choice("precision", precision, PRECISIONS)
        self.precision = precision
        self.early_stop = checks.boolean("early_stop", early_stop)
        self.epsilon = check_epsilon(epsilon, norm)
        self.norm = norm
        if step_size is None:
            step_size = self.epsilon / 4
        self.step_size = check_length("step_size", step_size)
        self.steps = checks.integer("steps", steps, low=1)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return with_suffixes(f"ifgsm{self.steps}", self.norm, self)

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs."""
        return self.steps * self.draws

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        ball = BALLS[self.norm](batch.images, self.epsilon)
        return self._climb(batch, ball, ball.centre)

    def _climb(self, batch: Batch, ball: Ball, start: Tensor) -> Tensor:
        until_lost = self.early_stop and batch.retires
        walk = climb_until_lost if until_lost else climb
        return walk(batch, ball, start, steps=self.steps, step_size=self.step_size)


def climb(
    batch: Batch,
    ball: Ball,
    point: Tensor,
    *,
    steps: int,
    step_size: float,
    loss: Loss | None = None,
) -> Tensor:
    """Return where so many steps along the gradient lead from ``point``, inside the ball.

    ``loss`` is what they raise, by default the cross-entropy.
    """
    for _ in range(steps):
        gradient = batch.gradient(loss or batch.loss, point)
        point = ball.ascend(point, gradient, step_size)
    return ball.settle(point)


def climb_until_lost(
    batch: Batch, ball: Ball, point: Tensor, *, steps: int, step_size: float
) -> Tensor:
    """Return what :func:`climb` does, but leave each image where the model first gets it wrong."""
    result, rows, whole = point.clone(), torch.arange(len(point)), ball
    for _ in range(steps):
        seen: list[Tensor] = []

        def loss(logits: Tensor, batch: Batch = batch, seen: list[Tensor] = seen) -> Tensor:
            seen.append(batch.fooled(logits))
            return batch.loss(logits)

        gradient = batch.gradient(loss, point)
        lost = batch.surely(seen[0], point)
        if lost.any():
            result[rows[lost].to(result.device)] = point[lost.to(point.device)]
            left = (~lost).nonzero().squeeze(1)
            here = left.to(point.device)
            rows, batch, ball = rows[left], batch.rows(left), ball.rows(left)
            point, gradient = point[here], gradient[here]
            if not len(rows):
                break
        point = ball.ascend(point, gradient, step_size)
    result[rows.to(result.device)] = point
    return whole.settle(result)


def check_epsilon(epsilon: float | None, norm: str, name: str = "epsilon") -> float:
    """Return the radius, by default that of the norm; refuse what can only be a unit mistaken."""
    checks.choice("norm", norm, BALLS)
    if epsilon is None:
        return DEFAULT_EPSILON[norm]
    radius = check_length(name, epsilon)
    if norm == "linf" and radius > 1:
        raise ValueError(
            f"{name} must be at most 1 because images lie in [0, 1], found {radius:g}; "
            "8 grey levels are 8/255"
        )
    return radius


def check_length(name: str, value: float) -> float:
    """Return a length; refuse one whose square float32 does not hold."""
    length = checks.number(name, value, low=0)
    if length > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST:g}, found {length:g}")
    return length


def with_suffixes(name: str, norm: str, attack: Attack) -> str:
    """Return an attack's name with what differs from the paper's setting."""
    words = [name] + ([] if norm == "linf" else [norm])
    words += [] if attack.goal == "untargeted" else [attack.goal]
    words += [] if attack.chosen_targets is None else [attack.chosen_targets]
    return "_".join(words)
