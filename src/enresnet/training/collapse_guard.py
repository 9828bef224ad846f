"""A guard against catastrophic overfitting: robust to the one-step attack of training alone.

After each epoch the accuracy under PGD-5 on a fixed batch of validation images is compared with
the best so far. If it drops to less than half, training returns to the last good state and
continues with PGD-2, which does not collapse.

The network is judged by what it is trained for at that time: at the epsilon and the image size of
the epoch. While epsilon grows the task gets harder, so the accuracy is compared with that of the
epoch before, not with the best.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from enresnet.attacks import PGD
from enresnet.common.randomness import named_generator
from enresnet.data import Images
from enresnet.evaluation import score
from enresnet.training.curriculum import halved
from enresnet.training.engine import Engine
from enresnet.training.metrics import COLLAPSED
from enresnet.training.objectives import OBJECTIVES
from enresnet.training.recipe import Recipe
from enresnet.training.state import GuardState, NetworkState

IMAGES = 256
CLIFF = 0.5  # of the best accuracy so far
GOOD = 0.75  # of the best: a state worth going back to
ERRORS = 3.0  # standard errors that a fall must have: few images say little
STEPS = 5


class CollapseGuard:
    """Watches one training for collapse."""

    def __init__(self, validation: Images, recipe: Recipe, seed: int) -> None:
        self._images, self._labels = validation.batch(slice(IMAGES))
        self._recipe, self._seed = recipe, seed
        # Below this accuracy the network has learned too little to collapse.
        self._floor = min(0.25, 1.5 / len(validation.classes))
        self.best = 0.0
        self.good = NetworkState()  # the last good one
        self._is_good = True

    def collapsed(
        self, model: nn.Module, engine: Engine, *, epsilon: float, halve: bool
    ) -> str | None:
        """Return what happened if the accuracy collapsed, and otherwise None.

        ``epsilon`` is that of training now; ``halve`` says whether its images have half the side.
        """
        accuracy = self._accuracy(model, engine, epsilon, halve)
        error = math.sqrt(self.best * (1 - self.best) / len(self._labels))
        fall = self.best - accuracy
        if self.best >= self._floor and fall > max((1 - CLIFF) * self.best, ERRORS * error):
            return (
                f"{COLLAPSED}PGD-{STEPS} accuracy fell from {100 * self.best:.1f} % to "
                f"{100 * accuracy:.1f} %"
            )
        growing = epsilon < self._recipe.epsilon
        self.best = accuracy if growing else max(self.best, accuracy)
        self._is_good = accuracy >= GOOD * self.best
        return None

    def keep(self, network: NetworkState) -> None:
        """Remember a network, if it was found to be good."""
        if self._is_good or not self.good.model:
            self.good = network.copied()

    @property
    def state(self) -> GuardState:
        """What it has seen."""
        return GuardState(self.best, self.good)

    def restore(self, state: GuardState) -> None:
        """Continue from where :attr:`state` was taken."""
        self.best, self.good = state.best, state.good

    def safer_recipe(self) -> Recipe:
        """Return the recipe to continue with."""
        step = 0.75 * self._recipe.epsilon
        objective = OBJECTIVES[self._recipe.objective].several_steps
        return replace(self._recipe, objective=objective, steps=2, step_size=step)

    def _accuracy(self, model: nn.Module, engine: Engine, epsilon: float, halve: bool) -> float:
        """Return the accuracy; each process scores its part of the images."""
        attack = PGD(
            epsilon=epsilon,
            steps=STEPS,
            eot=1,
            generator=named_generator(self._seed, f"collapse guard {engine.rank}"),
        )
        own = engine.share_of(len(self._labels))
        images, labels = self._images[own].to(engine.device), self._labels[own].to(engine.device)
        images = halved(images) if halve else images
        right = torch.zeros((), device=engine.device)  # few images: float32 counts them exactly
        if len(labels):
            attacked = attack(model, images, labels, progress=False)
            right += score(model, attacked, labels).sum()
        return engine.sum_over_processes(right).item() / len(self._labels)
