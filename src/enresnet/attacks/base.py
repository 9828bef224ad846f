"""What every attack shares: batches, progress, an untouched model."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from enresnet import checks
from enresnet.attacks.batch import Batch
from enresnet.attacks.gate import Classifier, check_model_and_images, device_of
from enresnet.attacks.gradient import Model, frozen
from enresnet.attacks.precision import is_deterministic, keeps_apart, wants_bfloat16
from enresnet.progress import counted, progress_bar

GOALS = ("untargeted", "targeted", "runner_up")


class Attack(ABC):
    """A way to change images so that a model gets them wrong.

    An attack sees nothing but a callable from images in [0, 1] to logits, which it runs in
    evaluation mode and leaves as it was. ``eot`` is the number of draws of the model's own noise
    over which every gradient and every judgement is averaged: 1 suits a deterministic model, the
    paper uses 5 for its ensembles. ``goal`` says what counts as success: ``"untargeted"``, any
    class but the label; ``"targeted"``, the class given in the label's place; ``"runner_up"``, the
    class that comes first on the clean image if the label is left out.
    """

    precision = "32"  # of gradients; see precision.py
    spent = (0, 0)  # gradients and evaluations of single images, in the last call
    claimed: Tensor | None = None  # which images it says it could not break; only others' say so

    def __init__(self, *, eot: int = 1, goal: str = "untargeted") -> None:
        self.eot = checks.integer("eot", eot, low=1)
        self.goal = checks.choice("goal", goal, GOALS)

    def __call__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        batch_size: int | None = None,
        evaluating: bool = True,
        progress: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return the attacked images, a new tensor.

        ``batch_size`` bounds how many images meet the model at once, for data larger than its
        memory; images are moved to a module's device and back. ``evaluating=False`` leaves the
        model's mode alone: one in training then moves its BatchNorm statistics, as the paper's
        released code lets it. ``progress=None`` shows a bar on a terminal when the call takes long;
        ``advance`` is told of passes, images times steps, as they are done, in place of a bar.
        """
        check_model_and_images(model, images, labels)
        if batch_size is None:
            batch_size = max(len(images), 1)
        checks.integer("batch_size", batch_size, low=1)
        images, labels = images.detach(), labels.detach()
        device = device_of(model, default=images.device)
        seeds = self._draw_seeds(len(images))
        work = len(images) * self.passes
        bar = progress_bar(self.name, work, show=progress if advance is None else False)
        with (
            bar as move,
            counted(move if advance is None else lambda n, _="": advance(n), work) as passed,
            frozen(model, evaluating=evaluating),
        ):
            largest = int(labels.max()) if len(labels) else 0
            # Of a model that always answers the same one draw is as good as many.
            same = is_deterministic(model)
            eot = 1 if same else self.eot
            classifier = Classifier(model, largest, passed, worth=self.eot // eot)
            result = torch.empty_like(images)
            for start in range(0, len(images), batch_size):
                rows = slice(start, start + batch_size)
                classifier.new_batch()
                batch = Batch(
                    # clone: a tensor made in inference mode could not carry a gradient
                    images=images[rows].to(device).clone(),
                    labels=labels[rows].to(device, torch.int64).clone(),
                    seeds=seeds[rows],
                    classifier=classifier,
                    eot=eot,
                    reduced=wants_bfloat16(model, images[:0].to(device), self.precision),
                    apart=keeps_apart(model),
                    deterministic=same,
                )
                result[rows] = self._perturb(batch.aimed(self.goal))
        self.spent = (classifier.gradients, classifier.evaluations)
        classifier.warn_of_bad_numbers()
        return result

    @property
    @abstractmethod
    def name(self) -> str:
        """The name on the command line and in results, such as ifgsm20."""

    @property
    def passes(self) -> int:
        """How many forward passes one image costs."""
        return self._passes() + (self.eot if self.goal == "runner_up" else 0)

    @abstractmethod
    def _passes(self) -> int:
        """How many forward passes the perturbation of one image costs."""

    @abstractmethod
    def _perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""

    def _draw_seeds(self, count: int) -> Tensor:
        """Return a seed for each example, where the attack is random."""
        return torch.zeros(count, dtype=torch.int64)

    def settings(self) -> dict[str, Any]:
        """Return the hyper-parameters, to the last digit, and the kind of attack."""
        values = {name: getattr(self, name) for name in self._options()}
        plain = {
            name: value if isinstance(value, int | float | str | None) else repr(value)
            for name, value in values.items()
        }
        return {"kind": type(self).__name__, **plain}

    def _options(self) -> list[str]:
        return [name for name in inspect.signature(type(self)).parameters if name != "generator"]

    def __repr__(self) -> str:
        words = [f"{name}={brief(getattr(self, name))}" for name in self._options()]
        return f"{type(self).__name__}({', '.join(words)})"


def brief(value: object) -> str:
    """Return ``value`` as one would type it: 8/255 rather than 0.03137254901960784."""
    if not isinstance(value, float):
        return repr(value)
    levels = round(255 * value)
    short = value == round(value, 4) or value != levels / 255
    return f"{value:.4g}" if short else f"{levels}/255"
