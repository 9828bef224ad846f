"""What an attack aims at: any wrong class, or a target class, given or chosen.

An untargeted attack raises the loss of the label. A targeted one lowers the loss of its target,
which the caller gives, or which is chosen from the classes other than the label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from enresnet.attacks.batch import Batch
from enresnet.attacks.inputs import check_classes
from enresnet.attacks.worst_so_far import Attempt, worst_of
from enresnet.common import checks

Goal = Literal["untargeted", "targeted", "runner_up"]
ChosenTargets = Literal["random", "least_likely", "runner_up", "all"]
GOALS: tuple[Goal, ...] = get_args(Goal)
TARGETS: tuple[ChosenTargets, ...] = get_args(ChosenTargets)
OTHER_CLASSES = 9  # for the progress bar, of ten classes; only the model knows how many there are


@dataclass(frozen=True)
class Aim:
    """The goal of an attack, and how it chooses targets; ``Attack`` describes both."""

    goal: Goal
    chosen: ChosenTargets | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "goal", checks.choice("goal", self.goal, GOALS))
        if self.chosen is not None:
            object.__setattr__(self, "chosen", checks.choice("targets", self.chosen, TARGETS))
            if self.goal != "targeted":
                raise ValueError(
                    f"targets={self.chosen!r} is for goal='targeted', found goal={self.goal!r}; "
                    "give both"
                )

    @property
    def ranks_classes(self) -> bool:
        """Whether its targets follow from how the model ranks the classes on the clean image."""
        return self.goal == "runner_up" or self.chosen in ("least_likely", "runner_up")

    def passes(self, each: int, draws: int) -> int:
        """Return how many forward passes one image costs.

        Args:
            each: What one perturbation of the image costs.
            draws: How many draws of the noise a judgement averages.
        """
        if self.chosen == "all":
            return 1 + OTHER_CLASSES * (each + draws)
        if self.chosen == "random":
            return 1 + each
        return each + (draws if self.ranks_classes else 0)

    def check_targets(
        self, targets: object, labels: Tensor, images: Tensor, *, name: str, kind: str
    ) -> Tensor:
        """Return the targets that a call gives; the labels where it needs to give none.

        Args:
            targets: What the call gives.
            labels: The right classes.
            images: The images.
            name: The attack's name, for errors.
            kind: The attack's class, for errors.
        """
        if targets is None:
            if self.goal == "targeted" and self.chosen is None:
                raise ValueError(
                    f"targets must be given to {name}, attack(model, images, labels, "
                    "targets=...), or chosen: targets='random', 'least_likely', 'runner_up' or "
                    f"'all' in {kind}(...)"
                )
            return labels
        if self.goal != "targeted" or self.chosen is not None:
            raise ValueError(
                f"targets are given to {name}, which "
                + (
                    f"chooses its own, {self.chosen!r}; leave out one of the two"
                    if self.chosen
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

    def targeted(self, batch: Batch, given: Tensor) -> Batch:
        """Return the batch with one target for each image in place of its label.

        Args:
            batch: The images and their labels.
            given: The targets of the call, for an attack that does not choose them.
        """
        if self.chosen == "random":
            others = batch.classes() - 1
            chance = (batch.seeds >> 8).to(batch.labels.device)  # their last bits start the search
            given = (batch.labels + 1 + chance % others) % (others + 1)
        elif self.ranks_classes:
            given = batch.ranked(last=self.chosen == "least_likely")
        return replace(batch, labels=given, targeted=True)


def towards_all(batch: Batch, perturb: Attempt) -> Tensor:
    """Aim at every other class in turn; keep what the model gets wrong in most draws."""
    classes = batch.classes()

    def towards(offset: int) -> Attempt:
        def attempt(part: Batch) -> Tensor:
            aim = (part.labels + offset) % classes
            return perturb(replace(part, labels=aim, targeted=True))

        return attempt

    return worst_of(batch, map(towards, range(1, classes)))
