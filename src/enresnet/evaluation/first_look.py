"""What is found out of a model before the work starts, once for each model.

A first answer, about the first batch, shows whether the model fits the data. It is compared with a
second one to see whether the model is deterministic, and if so gives the scores of that batch.
A model that answers twice the same on the first batch, on some images from all over the data and
near to them, and on a few of them many times over, is taken for deterministic and asked once.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from enresnet.attacks import determinism
from enresnet.attacks.determinism import EOT, LOOK
from enresnet.attacks.failures import naming_model
from enresnet.attacks.inputs import check_model_and_images
from enresnet.attacks.known_networks import is_deterministic, our_network
from enresnet.data import Images
from enresnet.evaluation.model_identity import Identity, identify
from enresnet.evaluation.scoring import Answer, answers_alike
from enresnet.evaluation.seeding import own_streams, streams_in
from enresnet.models.interface import Model


class FirstLook:
    """Whether models fit the data, whether they are deterministic, and who they are.

    Args:
        data: The images of the evaluation.
        batch_size: How many of them a model is first asked about.
        seed: Fixes the noise that a model answers with; None leaves it alone.
    """

    def __init__(self, data: Images, *, batch_size: int = 128, seed: int | None = None) -> None:
        self._data, self._seed = data, seed
        self._first, self._labels = data.batch(slice(batch_size))
        # By address; the models are kept, or another could get the address of one.
        self._answers: dict[int, tuple[Model, Answer]] = {}
        self._twins: dict[int, tuple[Model, Model]] = {}  # a copy, and the model it is of
        self._deterministic: dict[int, tuple[Model, bool]] = {}
        self._identities: dict[int, tuple[Model, Identity]] = {}

    def check(self, model: Model) -> None:
        """Raise unless a model takes the images and tells their classes apart."""
        self._check_classes(self._answer(model).logits)

    def answer(self, model: Model, data: Images, rows: slice) -> Answer | None:
        """Return what a model answers about images, where that is known without asking it."""
        model = self._original(model)
        first = data is self._data and rows == slice(0, len(self._first))
        known = self._answers.get(id(model)) if first and self.is_deterministic(model) else None
        return None if known is None else known[1]

    def twin(self, model: Model) -> Model:
        """Return a copy of a model that draws noise of its own; what is found holds for both.

        A model that draws from no stream of ours is its own twin, and so is one that cannot be
        copied.
        """
        if not streams_in([model]):
            return model
        try:
            copy = deepcopy(model)
        except Exception:  # anything may be in a model of somebody's own
            return model
        self._twins[id(copy)] = copy, model
        return copy

    def is_deterministic(self, model: Model) -> bool:
        """Return whether a model always answers the same, as far as can be seen."""
        model = self._original(model)
        if id(model) not in self._deterministic:
            self._deterministic[id(model)] = model, self._answers_alike(model)
        return self._deterministic[id(model)][1]

    def usual_eot(self, model: Model) -> int:
        """Return how many draws a gradient needs: 1 for a model that always answers the same."""
        return 1 if self.is_deterministic(model) else EOT

    def identity(self, model: Model) -> Identity:
        """Return what tells a model from another."""
        model = self._original(model)
        if id(model) not in self._identities:
            found = identify(model, self._first.shape[1:], dtype=self._first.dtype)
            self._identities[id(model)] = model, found
        return self._identities[id(model)][1]

    def _answers_alike(self, model: Model) -> bool:
        if our_network(model) is not None:
            return is_deterministic(model)
        first = self._answer(model).logits
        with own_streams([model], self._seed) as reseed:
            reseed("draws of a gradient")
            with naming_model(model, self._first):
                alike = answers_alike(model, self._first, first)
            return alike and looks_deterministic(model, self._data)

    def _answer(self, model: Model) -> Answer:
        """Return what a model answers about the first batch, asked once."""
        model = self._original(model)
        if id(model) not in self._answers:
            with own_streams([model], self._seed) as reseed:
                reseed("first look")
                check_model_and_images(model, self._first[:1], self._labels[:1])
                with naming_model(model, self._first):
                    self._answers[id(model)] = model, Answer.of(model, self._first)
        return self._answers[id(model)][1]

    def _original(self, model: Model) -> Model:
        return self._twins[id(model)][1] if id(model) in self._twins else model

    def _check_classes(self, logits: Tensor) -> None:
        if logits.isnan().any(dim=1).all():
            raise FloatingPointError("model gives NaN: its weights or the images are not finite")
        classes, names = logits.shape[1], self._data.classes
        named = any(name != str(number) for number, name in enumerate(names))
        if classes < len(names) or (named and classes != len(names)):
            raise ValueError(
                f"the model tells {classes} classes apart, the data has {len(names)} "
                f"({', '.join(names[:3])}, ...): give it the data it was trained for, or wrap "
                "it in a function that returns the logits of these classes"
            )


def looks_deterministic(model: Model, data: Images) -> bool:
    """Return whether a model answers the same, as far as can be seen.

    Twice on some images from the first to the last, and on images near them: noise may show only
    where no clean image is. On a few many times: a call's noise may be the same for all its images.
    """
    if is_deterministic(model):
        return True
    few, _ = data.batch(torch.linspace(0, len(data) - 1, min(LOOK, len(data))).long())
    return determinism.looks_deterministic(model, few)
