"""A guard against collapse: a network that withstands its one-step attack and no other.

After each epoch the accuracy under PGD-5 on a fixed batch of validation images is compared with
the best so far. When it falls off a cliff, training goes back to the last good state and goes on
with PGD-2, which does not collapse.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.attacks import PGD
from enresnet.data import Images
from enresnet.evaluation import score
from enresnet.randomness import named_generator
from enresnet.training.recipe import Recipe

IMAGES = 256
CLIFF = 0.5  # of the best accuracy so far
STEPS = 5


class CollapseGuard:
    """Watches one training."""

    def __init__(self, validation: Images, recipe: Recipe, seed: int) -> None:
        self._images, self._labels = validation.batch(slice(IMAGES))
        self._recipe, self._seed = recipe, seed
        self._floor = 1.5 / len(validation.classes)  # below this there is nothing to lose
        self._best = 0.0
        self._good: dict[str, Any] = {}

    def collapsed(self, model: nn.Module) -> str | None:
        """Return what happened if the accuracy fell off a cliff, and otherwise None."""
        accuracy = self._accuracy(model)
        if self._best >= self._floor and accuracy < CLIFF * self._best:
            return (
                f"collapsed: PGD-{STEPS} accuracy fell from {100 * self._best:.1f} % to "
                f"{100 * accuracy:.1f} %"
            )
        self._best = max(self._best, accuracy)
        return None

    def keep(self, parts: Mapping[str, Any]) -> None:
        """Remember a good state of everything with a state_dict."""
        self._good = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Put everything back to the last good state."""
        for name, part in parts.items():
            part.load_state_dict(copy.deepcopy(self._good[name]))

    def safer_recipe(self) -> Recipe:
        """Return the recipe to go on with."""
        step = 0.75 * self._recipe.epsilon
        return replace(self._recipe, objective="pgd", steps=2, step_size=step)

    def _accuracy(self, model: nn.Module) -> float:
        attack = PGD(
            epsilon=self._recipe.epsilon,
            steps=STEPS,
            generator=named_generator(self._seed, "collapse guard"),
        )
        images: Tensor = self._images.to(next(model.parameters()).device)
        attacked = attack(model, images, self._labels, progress=False)
        with torch.no_grad():
            return float(score(model, attacked, self._labels).mean())
