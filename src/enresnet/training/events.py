"""Where a training stands: after a step, after an epoch, and in the midst of one."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from enresnet.common import checks

Found = TypeVar("Found")


@dataclass(frozen=True)
class Step:
    """Where training stands after a step, over all processes; accuracies on the last batch."""

    epoch: int
    step: int  # within the epoch, from 1
    steps: int  # of the epoch
    images: int  # of this step
    loss: float
    learning_rate: float
    natural: float | None  # of the last batch that was looked at
    robust: float | None
    stop: int = 0  # the signal by which some process was asked to end

    @property
    def closes_epoch(self) -> bool:
        """Whether a validation comes next."""
        return self.step == self.steps


@dataclass(frozen=True)
class Epoch:
    """What one epoch brought. Accuracies in training are on the images trained on."""

    epoch: int
    learning_rate: float  # at the end
    train_loss: float
    train_natural: float | None  # on every 20th batch, for robust objectives
    train_robust: float | None
    validation_natural: float | None  # None: not validated
    validation_robust: float | None
    images_per_second: float
    seconds: float
    weights: str = ""  # of the parts, where they are learned
    note: str = ""  # what else happened
    kept: str = ""  # why the network of this epoch is the run's best, if it is

    def __post_init__(self) -> None:
        _check_types(self)

    @property
    def score(self) -> float | None:
        """The accuracy that a network is selected by; None: not validated."""
        return selecting(self.validation_natural, self.validation_robust)


def selecting(natural: Found, robust: Found | None) -> Found:
    """Return what networks are selected by: robust accuracy wherever it was measured."""
    return natural if robust is None else robust


@dataclass
class Progress:
    """Where the loop stands, and what it has summed up in the epoch at hand."""

    epoch: int = 0  # whole epochs done
    step: int = 0  # steps done of the next
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
