r"""Fast gradient sign method (Eq. 15; Goodfellow et al., 2015).

.. math:: x' = x + \epsilon\,\mathrm{sign}(\nabla_x L(x, y))
"""

from __future__ import annotations

import torch

from enresnet.attacks.geometry import Norm
from enresnet.attacks.ifgsm import IFGSM, check_epsilon, with_suffixes
from enresnet.attacks.targets import ChosenTargets, Goal
from enresnet.common.precision import Precision


class FGSM(IFGSM):
    """Takes one step of length epsilon: along the gradient's sign in linf, its direction in l2.

    Args:
        epsilon: The radius of the ball, in units of the image's range [0, 1]; 8/255 in linf and 0.5
            in l2 by default.
        norm: The ball: ``"linf"`` (the default) or ``"l2"``.
        eot: Draws of the model's noise that every gradient averages; by default the model decides:
            5 if it is randomised, else 1.
        goal: What counts as success: ``"untargeted"`` (the default), ``"targeted"`` or
            ``"runner_up"``; see :class:`Attack`.
        targets: How targets of a targeted attack are chosen; see :class:`Attack`.
        precision: Of the gradients: ``"32"``, ``"bf16"``, or ``"auto"`` (the default), which is
            bfloat16, on hardware that computes in it, for networks of this package and for others
            that torch.fx can follow and that answer the same in it.
        generator: Draws random targets. By default it starts from the system's entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown, or ``epsilon`` is above 1 in linf.

    Example::

        from enresnet.attacks import FGSM

        attacked = FGSM(epsilon=8 / 255)(model, images, labels)
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        norm: Norm = "linf",
        eot: int | None = None,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        precision: Precision = "auto",
        generator: torch.Generator | None = None,
    ) -> None:
        epsilon = check_epsilon(epsilon, norm)
        super().__init__(
            epsilon=epsilon,
            step_size=epsilon,
            steps=1,
            norm=norm,
            eot=eot,
            goal=goal,
            targets=targets,
            precision=precision,
            generator=generator,
        )

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return with_suffixes("fgsm", self.norm, self)
