r"""Robust soft labels (RSLAD; Zi et al., 2021): a student learns what a robust teacher answers.

.. math:: \frac16\, \mathrm{KL}(T(x) \| S(x)) + \frac56\, \mathrm{KL}(T(x) \| S(x')), \qquad
          x' = \arg\max_{\|x' - x\|_\infty \le \epsilon} \mathrm{KL}(T(x) \| S(x'))

The teacher T is asked about clean images alone, so its answers are computed once, before training.
``rslad_one_step`` finds x' by the one noisy step of N-FGSM instead of PGD.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from enresnet.attacks import PGD
from enresnet.attacks.batch import Batch, Loss
from enresnet.attacks.geometry import BALLS
from enresnet.attacks.ifgsm import climb
from enresnet.training.objectives.base import Objective, divergence
from enresnet.training.objectives.n_fgsm import NoisyStep
from enresnet.training.objectives.trades import START

ATTACKED = 5 / 6  # of the loss


class RSLAD(Objective):
    """Divergence from the teacher's answers, on clean images and on those that raise it most."""

    passes = 2
    needs_teacher = True
    several_steps = "rslad"

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the images whose prediction is farthest from the teacher's."""
        attack = TeacherPGD(
            self._answers(images),
            epsilon=self.recipe.epsilon,
            step_size=self.recipe.step_size,
            steps=self.recipe.steps,
            eot=1,
            generator=self.generator,
        )
        return self._attacked(attack, model, images, labels)

    def loss(
        self, model: nn.Module, images: Tensor, crafted: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the logits of the crafted images."""
        del labels  # the teacher knows better
        wanted = self._answers(images)
        clean, attacked = model(images), model(crafted)
        on_clean = divergence(wanted, clean.log_softmax(dim=1)).mean()
        on_attacked = divergence(wanted, attacked.log_softmax(dim=1)).mean()
        return (1 - ATTACKED) * on_clean + ATTACKED * on_attacked, attacked

    def _answers(self, images: Tensor) -> Tensor:
        """Return the teacher's log-probabilities for the batch at hand."""
        if self.answers is None or len(self.answers) != len(images):
            raise ValueError("answers must be the teacher's, one row an image of the batch")
        return self.answers


class OneStepRSLAD(RSLAD):
    """The same with one noisy step: three passes a step instead of twelve."""

    one_step = True

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the images after noise and a step away from the teacher's answers."""
        attack = TeacherStep(
            self._answers(images),
            epsilon=self.recipe.epsilon,
            steps=1,
            eot=1,
            generator=self.generator,
        )
        return self._attacked(attack, model, images, labels)


def _away_from(answers: Tensor) -> Loss:
    return lambda logits: divergence(answers, logits.log_softmax(dim=1))


class TeacherPGD(PGD):
    """PGD that raises KL(T(x) || S(x')) from x + 0.001 N(0, I)."""

    def __init__(self, answers: Tensor, **options: Any) -> None:
        super().__init__(**options)
        self._answers = answers

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        ball = BALLS[self.norm](batch.images, self.epsilon)
        start = ball.gaussian_point(batch.seeds, START)
        loss = _away_from(self._answers)
        return climb(batch, ball, start, steps=self.steps, step_size=self.step_size, loss=loss)


class TeacherStep(NoisyStep):
    """N-FGSM's step, in the direction that raises KL(T(x) || S(x'))."""

    def __init__(self, answers: Tensor, **options: Any) -> None:
        super().__init__(**options)
        self._answers = answers

    def _raised(self, batch: Batch) -> Loss:
        del batch
        return _away_from(self._answers)
