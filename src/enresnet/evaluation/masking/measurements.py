"""The model under diagnosis: its accuracy under one attack after another, each measured once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from enresnet.attacks import IFGSM, PGD, Attack
from enresnet.common.randomness import named_generator
from enresnet.evaluation.accuracy import Accuracy
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.journal import Journals
from enresnet.evaluation.matrix import OWN
from enresnet.evaluation.session import Session
from enresnet.models.interface import Model


class Measurements:
    """The model, the images, and what was measured already.

    Args:
        session: The model and the images.
        epsilon: Largest change of a pixel.
        eot: Draws of the noise averaged in every gradient.
    """

    def __init__(self, session: Session, epsilon: float, eot: int) -> None:
        self.session, self.epsilon, self.eot = session, epsilon, eot
        self.model, self.data, self.options = session.targets[OWN], session.data, session.options
        self.advance: Any = lambda _: None
        self._natural: Accuracy | None = None
        self._known: dict[str, Accuracy] = {}

    @property
    def natural(self) -> Accuracy:
        """The accuracy on clean images, which the first measurement finds."""
        assert self._natural is not None
        return self._natural

    def under(self, attack: Attack, source: Model | None = None) -> Accuracy:
        """Return the accuracy under an attack, measured once."""
        key = f"{attack!r} of {id(source)}"
        if key not in self._known:
            result = self.measured(self.model if source is None else source, self.model, attack)
            self._known[key] = result.robust[attack.name]
        return self._known[key]

    def measured(self, source: Model, target: Model, attack: Attack) -> Evaluation:
        """Return what an attack on one model does to another."""
        journal = self.options.journal
        if isinstance(journal, Journals):
            # Two sources may be alike in all that a header tells.
            place = (source is self.model, target is self.model, len(self._known))
            journal = journal.within(repr(place))
        options = replace(self.options, journal=journal, warn=False, progress=False)
        result = self.session.of(source, target, options).measure(attack).evaluation()
        if self._natural is None and target is self.model:
            self._natural = result.natural
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
        assert self.options.seed is not None
        return named_generator(self.options.seed, name)
