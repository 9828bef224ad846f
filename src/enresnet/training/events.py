"""What a training reports after each step and each epoch, and its progress within an epoch."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from enresnet.common import checks

Found = TypeVar("Found")


@dataclass(frozen=True)
class Step:
    """What a training reports after a step, over all processes; see :meth:`Callback.step`.

    Attributes:
        epoch: The number of the epoch, from 1.
        step: The number of the step within the epoch, from 1.
        steps: The number of steps of the epoch.
        images: The number of images of this step.
        loss: The mean loss of the step.
        learning_rate: The learning rate of the step.
        natural: The accuracy on clean images, in [0, 1], on the last batch where it was measured:
            every batch for a natural objective, every 20th for a robust one. None before that.
        robust: The accuracy on the attacked images of this batch, in [0, 1]; None for a natural
            objective.
        stop: The number of the signal that asked some process to end; 0 if none did.

    Example::

        from enresnet.training import Callback, Step

        class Losses(Callback):
            def step(self, step: Step):
                print(step.epoch, step.step, step.loss)
    """

    epoch: int
    step: int
    steps: int
    images: int
    loss: float
    learning_rate: float
    natural: float | None
    robust: float | None
    stop: int = 0

    @property
    def closes_epoch(self) -> bool:
        """Whether this is the last step of its epoch."""
        return self.step == self.steps


@dataclass(frozen=True)
class Epoch:
    """What a training reports after an epoch: one row of metrics.csv.

    Attributes:
        epoch: The number of the epoch, from 1.
        learning_rate: The learning rate at its end.
        train_loss: The mean loss over its images.
        train_natural: The accuracy on clean training images, in [0, 1]; for a robust objective on
            every 20th batch.
        train_robust: The accuracy on the attacked training images, in [0, 1]; None for a natural
            objective.
        validation_natural: The accuracy on clean validation images, in [0, 1]; None if this epoch
            was not validated.
        validation_robust: The accuracy on attacked validation images, in [0, 1]; None for a
            natural objective too.
        images_per_second: Training images per second, without validation.
        seconds: The time of the epoch, with validation.
        weights: The learned weights of the parts, separated by spaces; "" if they are not learned.
        note: What else happened, such as a collapse; "" if nothing did.
        kept: Why the network of this epoch is the run's best; "" if it is not.

    Raises:
        TypeError: A field has the wrong type.

    Example::

        from enresnet.training import Trainer

        data = enresnet.load_data("digits", limit=100)
        recipe = enresnet.load_recipe("natural", epochs=1)
        trainer = Trainer(enresnet.create_model("resnet8", in_channels=1), data, recipe)
        for epoch in trainer.epochs():
            print(epoch.epoch, epoch.train_loss, epoch.validation_natural)
    """

    epoch: int
    learning_rate: float
    train_loss: float
    train_natural: float | None
    train_robust: float | None
    validation_natural: float | None
    validation_robust: float | None
    images_per_second: float
    seconds: float
    weights: str = ""
    note: str = ""
    kept: str = ""

    def __post_init__(self) -> None:
        _check_types(self)

    @property
    def score(self) -> float | None:
        """The accuracy that a network is selected by; None if it was not validated."""
        return selecting(self.validation_natural, self.validation_robust)


def selecting(natural: Found, robust: Found | None) -> Found:
    """Return what networks are selected by: robust accuracy wherever it was measured."""
    return natural if robust is None else robust


@dataclass
class Progress:
    """How far the loop is, and its sums over the current epoch."""

    epoch: int = 0  # whole epochs done
    step: int = 0  # steps done of the current one
    seconds: float = 0.0
    loss: float = 0.0
    right: float = 0.0
    images: float = 0.0
    natural_right: float = 0.0
    natural_images: float = 0.0

    def __post_init__(self) -> None:
        _check_types(self)


_KINDS: dict[str, Any] = {"int": numbers.Integral, "float": numbers.Real, "str": str}


def _check_types(values: Step | Epoch | Progress) -> None:
    """Raise unless every field is of its type: a checkpoint may say anything."""
    for spec in fields(values):
        name, _, optional = str(spec.type).partition(" | ")
        value = getattr(values, spec.name)
        fits = isinstance(value, _KINDS[name]) and type(value) is not bool
        if not fits and not (optional and value is None):
            raise TypeError(f"{spec.name} must be of type {spec.type}, found {checks.brief(value)}")
