"""What every attack shares: batches, progress, an untouched model."""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from enresnet.attacks.batch import Batch
from enresnet.attacks.determinism import EOT, usual_eot
from enresnet.attacks.gradient import Model, frozen
from enresnet.attacks.inputs import Classifier, check_classes, check_model_and_images, device_of
from enresnet.attacks.precision import is_deterministic, keeps_apart, wants_bfloat16
from enresnet.common import checks
from enresnet.common.progress import counted, progress_bar
from enresnet.common.randomness import checked_generator
from enresnet.common.text import brief

GOALS = ("untargeted", "targeted", "runner_up")
TARGETS = ("random", "least_likely", "runner_up", "all")
OTHERS = 9  # classes but the label, for the progress: how many there are only the model knows


class Attack(ABC):
    """A way to change images so that a model gets them wrong.

    An attack sees nothing but a callable from images in [0, 1] to logits, which it runs in
    evaluation mode and leaves as it was. ``eot`` is the number of draws of the model's own noise
    over which every gradient and every judgement is averaged: 1 suits a deterministic model, the
    paper uses 5 for its ensembles, and None leaves it to the model: 1 for one that always answers
    the same, else 5. ``goal`` says what counts as success: ``"untargeted"``, any class but the
    label; ``"targeted"``, the class given as target; ``"runner_up"``, the class that comes first on
    the clean image if the label is left out.

    The targets of a targeted attack are given in the call, or chosen as ``targets`` says:
    ``"random"``, one of the other classes, drawn from ``generator``; ``"least_likely"`` and
    ``"runner_up"``, the last and the first of them on the clean image; ``"all"``, each in turn, of
    which the worst result for each example is kept.
    """

    precision = "32"  # of gradients; see precision.py
    spent = (0, 0)  # gradients and evaluations of single images, in the last call
    claimed: Tensor | None = None  # which images it says it could not break; only others' say so

    def __init__(
        self,
        *,
        eot: int | None = 1,
        goal: str = "untargeted",
        targets: str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.eot = None if eot is None else checks.integer("eot", eot, low=1)
        self.goal = checks.choice("goal", goal, GOALS)
        self.chosen_targets = (
            None if targets is None else checks.choice("targets", targets, TARGETS)
        )
        if targets is not None and goal != "targeted":
            raise ValueError(
                f"targets={targets!r} is for goal='targeted', found goal={goal!r}; give both"
            )
        self.generator = checked_generator(generator)

    def __call__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        targets: Tensor | None = None,
        batch_size: int | None = None,
        evaluating: bool = True,
        progress: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return the attacked images, a new tensor.

        ``labels`` are the right classes, ``targets`` the classes that a targeted attack is to reach
        where it does not choose them itself; no target may be its image's label.
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
        if self.eot is None:
            decided = self.decided(model, images[:batch_size])
            result = decided(
                model,
                images,
                labels,
                targets=targets,
                batch_size=batch_size,
                evaluating=evaluating,
                progress=progress,
                advance=advance,
            )
            self.spent = decided.spent
            return result
        images, labels = images.detach(), labels.detach()
        given = self._checked_targets(targets, labels, images)
        device = device_of(model, default=images.device)
        seeds = self._draw_seeds(len(images))
        work = len(images) * self.passes
        bar = progress_bar(self.name, work, show=progress if advance is None else False)
        with (
            bar as move,
            counted(move if advance is None else lambda n, _="": advance(n), work) as passed,
            frozen(model, evaluating=evaluating),
        ):
            largest = max(int(classes.max()) if len(labels) else 0 for classes in (labels, given))
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
                result[rows] = self._aimed(batch, given[rows].to(device, torch.int64))
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
        if self.chosen_targets == "all":
            return 1 + OTHERS * (self._passes() + self.draws)
        if self.chosen_targets == "random":
            return 1 + self._passes()
        ranked = self.goal == "runner_up" or self.chosen_targets is not None
        return self._passes() + (self.draws if ranked else 0)

    @property
    def draws(self) -> int:
        """Over how many draws it averages; where the model decides, at most."""
        return EOT if self.eot is None else self.eot

    def decided(self, model: Model, images: Tensor) -> Self:
        """Return the attack with the ``eot`` that suits ``model``, where it was left open.

        A model that is not ours is asked about some of the images whether it always answers the
        same.
        """
        return self if self.eot is not None else self.averaging(usual_eot(model, images))

    def averaging(self, eot: int) -> Self:
        """Return the same attack over another number of draws; both share their generator."""
        attack = copy.copy(self)
        attack.eot = checks.integer("eot", eot, low=1)
        return attack

    def _checked_targets(self, targets: object, labels: Tensor, images: Tensor) -> Tensor:
        """Return the targets that were given; the labels where none are needed."""
        if targets is None:
            if self.goal == "targeted" and self.chosen_targets is None:
                raise ValueError(
                    f"targets must be given to {self.name}, attack(model, images, labels, "
                    "targets=...), or chosen: targets='random', 'least_likely', 'runner_up' or "
                    f"'all' in {type(self).__name__}(...)"
                )
            return labels
        if self.goal != "targeted" or self.chosen_targets is not None:
            raise ValueError(
                f"targets are given to {self.name}, which "
                + (
                    f"chooses its own, {self.chosen_targets!r}; leave out one of the two"
                    if self.chosen_targets
                    else f"has the goal {self.goal!r}; goal='targeted' takes them"
                )
            )
        classes = check_classes("targets", targets, images).detach()
        same = (classes.to(labels.device, torch.int64) == labels).nonzero().flatten()
        if len(same):
            first = int(same[0])
            raise ValueError(
                f"targets must not be the labels: found class {int(labels[first])} as target of "
                f"image {first}, whose label it is; that would help the model"
            )
        return classes

    def _aimed(self, batch: Batch, given: Tensor) -> Tensor:
        """Return the attacked images of a batch, with the labels or targets that the goal means."""
        if self.goal == "untargeted":
            return self._perturb(batch)
        if self.chosen_targets == "all":
            return self._towards_all(batch)
        if self.chosen_targets == "random":
            others = batch.classes() - 1
            chance = (batch.seeds >> 8).to(batch.labels.device)  # their last bits start the search
            given = (batch.labels + 1 + chance % others) % (others + 1)
        elif self.goal == "runner_up" or self.chosen_targets is not None:
            given = batch.ranked(last=self.chosen_targets == "least_likely")
        return self._perturb(replace(batch, labels=given, targeted=True))

    def _towards_all(self, batch: Batch) -> Tensor:
        """Aim at every other class in turn; keep what the model gets wrong in most draws."""
        worst, classes = batch.images.clone(), batch.classes()
        most, highest = (torch.full((len(worst),), -math.inf) for _ in range(2))
        highest = highest.double()
        for offset in range(1, classes):
            # A deterministic model that is fooled stays fooled: only the others are tried again.
            again = most < 1 if batch.deterministic else torch.ones_like(most)
            rows = again.nonzero().squeeze(1)
            batch.classifier.skip((self._passes() + self.draws) * (len(worst) - len(rows)))
            if not len(rows):
                continue
            part = batch.rows(rows)
            aim = (part.labels + offset) % classes
            point = self._perturb(replace(part, labels=aim, targeted=True))
            fooled, loss = part.judge(point)
            known = most[rows]
            worse = (fooled > known) | ((fooled == known) & (loss > highest[rows]))
            chosen = rows[worse]
            worst[chosen.to(worst.device)] = point[worse.to(point.device)]
            most[chosen], highest[chosen] = fooled[worse], loss[worse]
        return worst

    @abstractmethod
    def _passes(self) -> int:
        """How many forward passes the perturbation of one image costs."""

    @abstractmethod
    def _perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""

    def _draw_seeds(self, count: int) -> Tensor:
        """Return a seed for each example, where the attack is random."""
        if self.chosen_targets != "random":
            return torch.zeros(count, dtype=torch.int64)
        generator = self.generator
        return torch.randint(2**62, (count,), generator=generator, device=generator.device)

    def settings(self) -> dict[str, Any]:
        """Return the hyper-parameters, to the last digit, and the kind of attack."""
        values = self._values()
        plain = {
            name: value if isinstance(value, int | float | str | None) else repr(value)
            for name, value in values.items()
        }
        return {"kind": type(self).__name__, **plain}

    def _values(self) -> dict[str, Any]:
        """Return the hyper-parameters by name; targets only where they are chosen."""
        names = [name for name in inspect.signature(type(self)).parameters if name != "generator"]
        values = {name: getattr(self, name, self.chosen_targets) for name in names}
        return {name: v for name, v in values.items() if name != "targets" or v is not None}

    def __repr__(self) -> str:
        words = [f"{name}={brief(value)}" for name, value in self._values().items()]
        return f"{type(self).__name__}({', '.join(words)})"
