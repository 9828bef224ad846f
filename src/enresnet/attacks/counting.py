"""A frozen model as an attack calls it: every pass is checked, counted and shown as progress."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from enresnet.attacks.failures import ModelFailedError, naming_model
from enresnet.attacks.inputs import FLOATS
from enresnet.models.interface import Model, wrong_logits


class Classifier:
    """A model whose output must be N x classes, enough for the labels, and whose passes count.

    Args:
        model: The model as the user gave it.
        call: The way to call it, as :func:`~enresnet.models.frozen.frozen` yields it.
        largest_label: The largest class number that must be among its classes.
        advance: Called with the number of passes just done, counted in images.
        worth: Passes that one of ours stands for in the progress.
    """

    def __init__(
        self,
        model: Model,
        call: Callable[[Tensor], Any],
        largest_label: int,
        advance: Callable[[int], None] = lambda _: None,
        *,
        worth: float = 1,
    ) -> None:
        self.model, self.call = model, call
        self._largest_label = largest_label
        self.advance = advance
        self.worth = worth
        self._watched = True  # the first answer about a batch is looked at for overflow
        self.gradients = self.evaluations = 0  # of single images, so far
        self.bad_gradients = self.overflows = 0
        self.claims: list[Tensor] = []  # images that a package says it could not break

    def __call__(self, images: Tensor, *, stands_for: float = 1) -> Tensor:
        """Return the model's logits.

        ``stands_for`` is how many images of the batch each of these stands for in the progress: an
        attack that goes on with some of them has no work left on the others.
        """
        with naming_model(self.model, images):
            # clone: a model that works in place must not reach our images
            logits = self.call(images.clone())
        return self.checked(logits, len(images), stands_for=stands_for)

    def checked(self, logits: object, count: int, *, stands_for: float = 1) -> Tensor:
        """Return what the model said of ``count`` images, if it is what it should be."""
        self.advance(round(self.worth * stands_for * count))
        self.evaluations += count
        if wrong := wrong_logits(logits, count):
            raise ModelFailedError(wrong)
        assert isinstance(logits, Tensor)
        if logits.dtype not in FLOATS or logits.shape[1] < 2:
            raise ModelFailedError(
                "model must return floating-point logits (float16, bfloat16, float32 or float64) "
                f"for at least 2 classes, found {logits.dtype} {tuple(logits.shape)}"
            )
        if self._largest_label >= logits.shape[1]:
            raise ModelFailedError(
                f"labels and targets must be below the model's {logits.shape[1]} classes, found "
                f"{self._largest_label}; are these the labels of another data set?"
            )
        if self._watched:  # not in every step: what overflows does so on the clean images
            self._watched = False
            infinite = (logits.detach() == torch.inf).any(dim=1)
            self.overflows += int(infinite.sum())
        return logits

    def new_batch(self) -> None:
        """Look at the next answer again."""
        self._watched = True

    def surrogate(self, model: Model, call: Callable[[Tensor], Any], cost: float) -> Classifier:
        """Return another model in the place of this one, with counts of its own.

        ``cost`` is that of one of its passes, in passes of this model.
        """
        worth = self.worth * cost
        return Classifier(model, call, self._largest_label, self.advance, worth=worth)

    def recounted(self) -> Classifier:
        """Return the same model with counts of its own."""
        return self.surrogate(self.model, self.call, 1)

    def count(self, other: Classifier, cost: float = 1) -> None:
        """Add what another has counted; ``cost`` is that of its model in units of this one's."""
        self.gradients += round(other.gradients * cost)
        self.evaluations += round(other.evaluations * cost)
        self.bad_gradients += other.bad_gradients

    def warn_of_bad_numbers(self) -> None:
        """Say when logits or gradients were not finite: such an attack proves nothing."""
        if self.overflows:
            warnings.warn(
                f"the model overflows: logits of {self.overflows} images are infinite, and the "
                "attack cannot tell them apart; scale the logits down, or compute in float64",
                stacklevel=4,
            )
        if self.bad_gradients:
            warnings.warn(
                f"the model's gradient was not finite in {self.bad_gradients} evaluations of an "
                "image: it overflows, or divides by 0. There the attack could not move, and its "
                "result says nothing of robustness",
                stacklevel=4,
            )
