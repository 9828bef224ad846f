"""The worst of several attempts on each image, as far as a few draws tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from enresnet.attacks.batch import Batch

Attempt = Callable[[Batch], Tensor]
"""From some examples of a batch to a point for each."""


class WorstSoFar:
    """For each image the point that fools the model in most draws.

    Among equals it is that of the highest mean loss. What is offered first stays until something
    is worse.
    """

    def __init__(self, images: Tensor) -> None:
        self.points = images.clone()
        self._fooled = torch.full((len(images),), -1.0)
        self._loss = torch.full((len(images),), -math.inf, dtype=torch.float64)

    def rows_to_try(self, *, retire: bool) -> Tensor:
        """Return the examples worth another attempt.

        With ``retire`` a model that is fooled stays fooled, whoever else is in the batch; against
        any other all are tried again.
        """
        left = self._fooled < 1 if retire else torch.ones_like(self._fooled)
        return left.nonzero().squeeze(1)

    def offer(self, rows: Tensor, points: Tensor, fooled: Tensor, loss: Tensor) -> None:
        """Take each of these examples' points if it is worse.

        Args:
            rows: Which examples, on the CPU.
            points: A point for each.
            fooled: The share of draws in which it fools the model.
            loss: Its mean loss over them.
        """
        fooled, loss = fooled.cpu(), loss.cpu().double()
        known = self._fooled[rows]
        worse = (fooled > known) | ((fooled == known) & (loss > self._loss[rows]))
        chosen = rows[worse]
        self.points[chosen.to(self.points.device)] = points[worse.to(points.device)]
        self._fooled[chosen], self._loss[chosen] = fooled[worse], loss[worse]


def worst_of(batch: Batch, attempts: Iterable[Attempt]) -> Tensor:
    """Return the worst point of each example over several attempts, each judged by the model."""
    worst = WorstSoFar(batch.images)
    for attempt in attempts:
        rows = worst.rows_to_try(retire=batch.retires)
        if not len(rows):
            break
        part = batch.rows(rows)
        points = attempt(part)
        worst.offer(rows, points, *part.judge(points))
    return worst.points
