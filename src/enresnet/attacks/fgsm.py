r"""Fast gradient sign method (Eq. 16; Goodfellow et al., 2015).

.. math:: x' = x + \epsilon\,\mathrm{sign}(\nabla_x L(x, y))
"""

from __future__ import annotations

import torch

from enresnet.attacks.base import ChosenTargets, Goal
from enresnet.attacks.geometry import Norm
from enresnet.attacks.ifgsm import IFGSM, check_epsilon, with_suffixes
from enresnet.attacks.precision import Precision


class FGSM(IFGSM):
    """One step of full length along the sign of the gradient, in l2 along its direction."""

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        norm: Norm = "linf",
        eot: int | None = 1,
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
