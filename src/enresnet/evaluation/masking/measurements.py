"""The model under diagnosis: its accuracy under one attack after another, each measured once."""

from __future__ import annotations

from typing import Any

import torch

from enresnet.attacks import IFGSM, PGD, Attack
from enresnet.common.randomness import named_generator
from enresnet.data import Images
from enresnet.evaluation.journal import Journals
from enresnet.evaluation.measure import transfer
from enresnet.evaluation.result import Accuracy, Evaluation
from enresnet.models.interface import Model


class Measurements:
    """The model, the images, and what was measured already."""

    def __init__(
        self,
        model: Model,
        data: Images,
        epsilon: float,
        eot: int,
        draws: int,
        batch_size: int,
        seed: int,
        journal: Journals | None,
    ) -> None:
        self.model, self.data, self.epsilon, self.eot = model, data, epsilon, eot
        self._journal = journal
        self.options: dict[str, Any] = {
            "draws": draws,
            "batch_size": batch_size,
            "seed": seed,
            "progress": False,
        }
        self.draws, self.seed = draws, seed
        self.advance: Any = lambda _: None
        self.natural: Accuracy | None = None
        self._known: dict[str, Accuracy] = {}

    def under(self, attack: Attack, oracle: Model | None = None) -> Accuracy:
        """Return the accuracy under an attack, measured once."""
        key = f"{attack!r} of {id(oracle)}"
        if key not in self._known:
            result = self.measured(self.model if oracle is None else oracle, self.model, attack)
            self._known[key] = result.robust[attack.name]
        return self._known[key]

    def measured(self, oracle: Model, target: Model, attack: Attack) -> Evaluation:
        """Return what an attack on one model does to another."""
        own = None
        if self._journal is not None:
            # Two oracles may be alike in all that a header tells.
            place = (oracle is self.model, target is self.model, len(self._known))
            own = self._journal.within(repr(place))
        result = transfer(
            oracle, target, self.data, [attack], journal=own, warn=False, **self.options
        )
        if self.natural is None and target is self.model:
            self.natural = result.natural
        self.advance(1)
        return result

    def iterative(self, steps: int, size: float | None = None) -> Accuracy:
        """Return the accuracy under IFGSM; a few steps are long enough to cross the ball."""
        radius = self.epsilon if size is None else size
        return self.under(
            IFGSM(
                epsilon=radius, step_size=max(radius / 4, radius / steps), steps=steps, eot=self.eot
            )
        )

    def restarted(self, number: int) -> Accuracy:
        """Return the accuracy under PGD from so many random starts."""
        return self.under(
            PGD(
                epsilon=self.epsilon,
                restarts=number,
                eot=self.eot,
                generator=self.generator("restarts"),
            )
        )

    def generator(self, name: str) -> torch.Generator:
        """Return a stream for one purpose."""
        return named_generator(self.seed, name)
