r"""Auto-PGD (Croce and Hein, 2020): PGD with momentum and a step that halves where it stalls.

.. math:: z = P(x^{(k)} + \eta\,\mathrm{dir}(\nabla L)), \qquad
          x^{(k+1)} = P\bigl(x^{(k)} + 0.75\,(z - x^{(k)}) + 0.25\,(x^{(k)} - x^{(k-1)})\bigr)

The step starts at twice the radius. At checkpoints that come closer and closer it is halved, and
the search goes back to the best point, for every example whose loss rose in fewer than three of
four steps, or whose best loss has not changed since the last one.

Made for randomised models: loss, best point and success are means over the ``eot`` draws that the
gradient took anyway, never a lucky single one.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from enresnet.attacks.base import Attack
from enresnet.attacks.batch import Batch
from enresnet.attacks.geometry import BALLS, Ball, Norm
from enresnet.attacks.ifgsm import check_epsilon, with_suffixes
from enresnet.attacks.losses import difference_of_logits_ratio, rivals, targeted_ratio
from enresnet.attacks.worst_so_far import WorstSoFar
from enresnet.common import checks
from enresnet.common.precision import PRECISIONS, Precision

APGDLoss = Literal["ce", "dlr", "targeted_dlr"]
LOSSES: tuple[APGDLoss, ...] = get_args(APGDLoss)
MOMENTUM = 0.75
PATIENCE = 0.75  # the share of steps that must raise the loss


class APGD(Attack):
    """PGD with momentum whose step size adapts: it starts at twice epsilon and halves on stalls.

    Losses and successes are means over the ``eot`` draws of each gradient. The result is the point
    of the search that fools the model in the largest share of draws, and among equals has the
    highest mean loss.

    Args:
        epsilon: The radius of the ball, in units of the image's range [0, 1]; 8/255 in linf and 0.5
            in l2 by default.
        steps: The number of steps from each start; 100 by default.
        loss: What is raised: ``"ce"``, cross-entropy (the default); ``"dlr"``, the
            difference-of-logits ratio; or ``"targeted_dlr"``, which is raised towards each of the
            likeliest other classes in turn and keeps the worst result.
        targets: The number of those classes, for ``"targeted_dlr"``; 9 by default.
        restarts: The number of random starts, for each class; 1 by default.
        norm: The ball: ``"linf"`` (the default) or ``"l2"``.
        eot: Draws of the model's noise that every gradient averages; by default the model decides:
            5 if it is randomised, else 1.
        precision: Of the gradients: ``"32"``, ``"bf16"``, or ``"auto"`` (the default), which is
            bfloat16, on hardware that computes in it, for networks of this package and for others
            that torch.fx can follow and that answer the same in it.
        early_stop: True leaves an image as soon as the model gets it wrong, if it is known to be
            deterministic and to treat each image of a batch alone: faster, with the same accuracy.
            The image has a lower loss than after all steps, and so transfers less. False by
            default.
        generator: Draws the starts. By default it starts from the system's entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown, or ``epsilon`` is above 1 in linf.

    Example::

        from enresnet.attacks import APGD

        attacked = APGD(steps=100, loss="dlr")(model, images, labels)
    """

    random = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        steps: int = 100,
        loss: APGDLoss = "ce",
        targets: int = 9,
        restarts: int = 1,
        norm: Norm = "linf",
        eot: int | None = None,
        precision: Precision = "auto",
        early_stop: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=eot, generator=generator)
        checks.choice("precision", precision, PRECISIONS)
        self.precision = precision
        self.early_stop = checks.boolean("early_stop", early_stop)
        self.epsilon = check_epsilon(epsilon, norm)
        self.norm = norm
        self.steps = checks.integer("steps", steps, low=1)
        self.restarts = checks.integer("restarts", restarts, low=1)
        self.loss = checks.choice("loss", loss, LOSSES)
        self.targets = checks.integer("targets", targets, low=1)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        suffix = {"ce": "", "dlr": "_dlr", "targeted_dlr": "_t"}[self.loss]
        return with_suffixes(f"apgd{self.steps}{suffix}", self.norm, self)

    def _tries(self) -> int:
        return self.restarts * (self.targets if self.loss == "targeted_dlr" else 1)

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs."""
        ranked = self.draws if self.loss == "targeted_dlr" else 0
        return self._tries() * (self.steps + 2) * self.draws + ranked

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        goals: list[Tensor | None] = [None]
        if self.loss == "targeted_dlr":
            goals = list(likeliest(batch, self.targets))
        worst, number = WorstSoFar(batch.images), 0
        for goal in goals:
            for _ in range(self.restarts):
                rows = worst.rows_to_try(retire=batch.retires)
                if len(rows):
                    part = batch.rows(rows)
                    aim = None if goal is None else goal[rows.to(goal.device)]
                    ball = BALLS[self.norm](part.images, self.epsilon)
                    start = ball.random_point(part.seeds + number)
                    found = self.search(part, aim, start, 2 * self.epsilon)
                    fooled, loss = found.fooled, found.loss
                    if batch.reduced:  # who is lost is not for bfloat16 to say
                        fooled, loss = part.judge(found.worst)
                    worst.offer(rows, found.worst, fooled, loss)
                number += 1
        return worst.points

    def search(self, batch: Batch, aim: Tensor | None, point: Tensor, first_step: float) -> Found:
        """Return each example's best points.

        The search starts at ``point``; ``aim`` is the class to reach, where there is one. With
        ``early_stop`` examples leave it where they are lost, if those of the model may.
        """
        until_lost = self.early_stop and batch.retires
        whole = BALLS[self.norm](batch.images, self.epsilon)
        found = Found(point.clone(), torch.zeros(len(point)), torch.zeros(len(point)))
        found = found.to(point.device)
        rows, ball = torch.arange(len(point), device=point.device), whole
        at = _Searched(
            point, point, torch.full((len(point),), first_step), *self._look(batch, point, aim)
        )
        marks = checkpoints(self.steps)
        for step in range(self.steps):
            if until_lost:
                lost = batch.surely(at.best.fooled == 1, at.best.worst_point).to(point.device)
                if lost.any():
                    found.put(rows[lost], at.best, lost)
                    left = ~lost
                    rows, batch, ball = (
                        rows[left],
                        batch.rows(left.nonzero()[:, 0]),
                        ball.rows(left),
                    )
                    aim = None if aim is None else aim[left]
                    at = at.only(left)
                    if not len(rows):
                        break
            moved = self._move(ball, at.point, at.before, at.gradient, at.size, first=step == 0)
            at.go_to(moved, *self._look(batch, moved, aim))
            if step + 1 in marks:
                at.look_back()
        found.put(rows, at.best, torch.ones_like(rows, dtype=torch.bool))
        return replace(found, worst=whole.settle(found.worst))

    def _move(
        self,
        ball: Ball,
        point: Tensor,
        before: Tensor,
        gradient: Tensor,
        size: Tensor,
        *,
        first: bool,
    ) -> Tensor:
        straight = ball.ascend_by(point, gradient, size)
        if first:
            return straight
        mixed = point + MOMENTUM * (straight - point) + (1 - MOMENTUM) * (point - before)
        return ball.nearest(mixed)

    def _look(
        self, batch: Batch, point: Tensor, aim: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradient at ``point``, the mean loss and the share of draws it fools."""
        losses, fooled = [], []

        def loss(logits: Tensor) -> Tensor:
            if aim is not None:
                value = targeted_ratio(logits, batch.labels, aim)
            elif self.loss == "dlr":
                value = difference_of_logits_ratio(logits, batch.labels)
            else:
                value = batch.loss(logits)
            losses.append(value.detach())
            fooled.append(batch.fooled(logits))
            return value

        gradient = batch.gradient(loss, point)
        return (
            gradient,
            torch.stack(losses).mean(dim=0),
            torch.stack(fooled).to(torch.float32).mean(dim=0),
        )


@dataclass(frozen=True)
class Found:
    """Where a search came to: each an example's point."""

    worst: Tensor  # fools in the largest share of its draws, with the highest loss among those
    fooled: Tensor  # that share
    loss: Tensor  # and its mean loss

    def to(self, device: torch.device) -> Found:
        """Return the same on a device."""
        return Found(self.worst.to(device), self.fooled.to(device), self.loss.to(device))

    def put(self, rows: Tensor, best: _Track, chosen: Tensor) -> None:
        """Write down the best points of some examples, which are these rows of the batch."""
        self.worst[rows] = best.worst_point[chosen]
        self.fooled[rows] = best.fooled[chosen]
        self.loss[rows] = best.worst_loss[chosen].to(self.loss.dtype)


class _Searched:
    """Where a search stands, for every example."""

    def __init__(
        self,
        point: Tensor,
        before: Tensor,
        size: Tensor,
        gradient: Tensor,
        loss: Tensor,
        fooled: Tensor,
    ) -> None:
        self.point, self.before, self.gradient, self.loss = point, before, gradient, loss
        self.size = size.to(point.device)
        self.best = _Track(point, gradient, loss, fooled)
        self.rises, self.since = torch.zeros_like(self.size), 0
        self.halved = torch.ones_like(self.size, dtype=torch.bool)
        self.best_then = loss.clone()

    def only(self, rows: Tensor) -> _Searched:
        """Return some of the examples."""
        other = copy.copy(self)
        for name in ("point", "before", "gradient", "loss", "size", "rises", "halved", "best_then"):
            setattr(other, name, getattr(self, name)[rows])
        other.best = self.best.only(rows)
        return other

    def go_to(self, point: Tensor, gradient: Tensor, loss: Tensor, fooled: Tensor) -> None:
        """Take a step."""
        self.before, self.point, self.gradient = self.point, point, gradient
        self.rises += loss > self.loss
        self.loss = loss
        self.best.offer(point, gradient, loss, fooled)
        self.since += 1

    def look_back(self) -> None:
        """Halve the step of the examples that do not get on; they go on from their best point."""
        best = self.best
        stalled = self.rises < PATIENCE * self.since
        stalled |= ~self.halved & (best.loss <= self.best_then)
        self.size = torch.where(stalled, self.size / 2, self.size)
        chosen = _like(stalled, self.point)
        self.point = torch.where(chosen, best.point, self.point)
        self.before = torch.where(chosen, best.point, self.before)
        self.gradient = torch.where(chosen, best.gradient, self.gradient)
        self.loss = torch.where(stalled, best.loss, self.loss)
        self.halved, self.best_then = stalled, best.loss.clone()
        self.rises, self.since = torch.zeros_like(self.rises), 0


class _Track:
    """The point of the highest loss, to go back to, and the one that fools most, to return."""

    def __init__(self, point: Tensor, gradient: Tensor, loss: Tensor, fooled: Tensor) -> None:
        self.point, self.gradient, self.loss = point.clone(), gradient.clone(), loss.clone()
        self.worst_point, self.worst_loss = point.clone(), loss.clone()
        self.fooled = fooled.clone()

    def only(self, rows: Tensor) -> _Track:
        """Return some of the examples."""
        other = copy.copy(self)
        for name in ("point", "gradient", "loss", "worst_point", "worst_loss", "fooled"):
            setattr(other, name, getattr(self, name)[rows])
        return other

    def offer(self, point: Tensor, gradient: Tensor, loss: Tensor, fooled: Tensor) -> None:
        """Take each example's point if it is better."""
        higher = loss > self.loss
        chosen = _like(higher, point)
        self.point = torch.where(chosen, point, self.point)
        self.gradient = torch.where(chosen, gradient, self.gradient)
        self.loss = torch.where(higher, loss, self.loss)
        worse = (fooled > self.fooled) | ((fooled == self.fooled) & (loss > self.worst_loss))
        self.worst_point = torch.where(_like(worse, point), point, self.worst_point)
        self.worst_loss = torch.where(worse, loss, self.worst_loss)
        self.fooled = torch.where(worse, fooled, self.fooled)


def likeliest(batch: Batch, most: int) -> Tensor:
    """Return the other classes that come first on the clean images: a row a rank."""
    with torch.no_grad():
        logits = sum(batch.logits(batch.images) for _ in range(batch.eot))
    assert isinstance(logits, Tensor)
    order = rivals(logits, batch.labels).argsort(dim=1, descending=True)
    return order[:, : min(most, order.shape[1] - 1)].T


def checkpoints(steps: int) -> set[int]:
    """Return the steps at which the step size is looked at."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    # A hair less: 0.57 of 100 is a little more than 57 in floating point.
    return {math.ceil(share * steps - 1e-9) for share in shares[1:] if share <= 1}


def _like(mask: Tensor, point: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (point.ndim - 1))
