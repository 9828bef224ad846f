r"""Projected gradient descent (Madry et al., 2018): IFGSM from a random point of the ball.

.. math:: x^{(0)} \sim U(B_\epsilon(x)), \qquad x^{(m)} \text{ as in IFGSM}

The attack inside Algorithm 1 is this one with ten steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from enresnet.attacks.batch import Batch
from enresnet.attacks.geometry import BALLS
from enresnet.attacks.ifgsm import IFGSM, with_suffixes
from enresnet.common import checks


class PGD(IFGSM):
    """IFGSM from random starts, of which the worst result for each example is kept.

    Worst is what fools the model in the largest share of ``eot`` draws, and among equals what has
    the highest mean loss; what fools a network of ours that has no noise is not started again. The
    first start does not depend on the number of restarts, so more of them, from the same generator,
    never give a weaker attack on a deterministic model. Starts come from ``generator``, or from the
    system's entropy, never from torch's global generator.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        step_size: float | None = None,
        steps: int = 20,
        restarts: int = 1,
        norm: str = "linf",
        eot: int | None = 1,
        goal: str = "untargeted",
        targets: str | None = None,
        precision: str = "auto",
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

    def _passes(self) -> int:
        judged = self.draws if self.restarts > 1 else 0
        return self.restarts * (super()._passes() + judged)

    def _draw_seeds(self, count: int) -> Tensor:
        generator = self.generator
        return torch.randint(2**62, (count,), generator=generator, device=generator.device)

    def _perturb(self, batch: Batch) -> Tensor:
        ball = BALLS[self.norm](batch.images, self.epsilon)
        worst = self._climb(ball, batch, ball.random_point(batch.seeds))
        if self.restarts == 1:
            return worst
        most_fooled, highest_loss = batch.judge(worst)
        cost = self._passes() // self.restarts
        for restart in range(1, self.restarts):
            # A deterministic model that is fooled stays fooled: only the others are tried again.
            again = most_fooled < 1 if batch.deterministic else torch.ones_like(most_fooled)
            rows = again.nonzero().squeeze(1)
            batch.classifier.skip(cost * (len(worst) - len(rows)))
            if not len(rows):
                continue
            part = batch.rows(rows)
            ball = BALLS[self.norm](part.images, self.epsilon)
            point = self._climb(ball, part, ball.random_point(part.seeds + restart))
            fooled, loss = part.judge(point)
            best, known = most_fooled[rows], highest_loss[rows]
            worse = (fooled > best) | ((fooled == best) & (loss > known))
            chosen = rows[worse]
            worst[chosen.to(worst.device)] = point[worse.to(point.device)]
            most_fooled[chosen], highest_loss[chosen] = fooled[worse], loss[worse]
        return worst
