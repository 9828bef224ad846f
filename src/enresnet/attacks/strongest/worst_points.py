"""Which of many points is the worst for each image, where every answer is a draw.

Of a randomised model every figure is an estimate, and the best of many estimates is a lucky one. So
the worst few points are held for each image, and in the end the worst of them is found on draws
that none of them was chosen by. One point, of the search that is the best bet before anything is
drawn, has a place of its own, and another must be worse by more than chance to be preferred to it.
Every image is judged by its own draws alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from enresnet.attacks.apgd import likeliest
from enresnet.attacks.batch import Batch

HELD = 4  # points of an image that stay in the contest, the first of them the best bet
JUDGE = 8  # draws for a point that is found
CAREFUL = 24  # more where they leave a doubt
RETIRE = 50  # draws in all of which an image must fail before it is given up
DECIDE = 50  # fresh draws for each of the points held, in the end
FINAL = 150  # more for the last two, where these leave a doubt
LARGE = 1e9  # stands for a margin that is infinite


class AnswersDifferError(Exception):
    """A model that was taken for deterministic is not."""


class WorstPoints:
    """The worst points of each image of a batch so far.

    A model that is deterministic as far as was seen, but not ``known`` to be, must fail as often as
    any other before an image is given up; where it then answers otherwise the contest is off.
    """

    def __init__(self, batch: Batch, *, known: bool = False) -> None:
        self.batch = batch
        self._draws, self._retire, held = JUDGE, RETIRE, HELD
        if batch.deterministic:
            self._draws = held = 1
            self._retire = 1 if known else RETIRE
        self._own = 1 if held > 1 else 0  # places that only the best bet may have
        count = len(batch.images)
        self._points = batch.images.expand(held, *batch.images.shape).clone()
        self._tally = _Tally(held, count)
        self.lost = torch.zeros(count, dtype=torch.bool)
        self.challenge(torch.arange(count), batch.images)
        self.rivals = likeliest(replace(batch, eot=self._draws), 9)

    @property
    def not_lost(self) -> Tensor:
        """The images that are not lost; where images meet, all of them while one is left."""
        if not self.batch.separable and not self.lost.all():
            return torch.arange(len(self.lost))
        return (~self.lost).nonzero().squeeze(1)

    def worst(self, rows: Tensor) -> Tensor:
        """Return the worst point of these images as far as is known."""
        return self._points[self._tally.badness[:, rows].argmax(dim=0), rows]

    def challenge(self, rows: Tensor, found: Tensor, *, bet: bool = False) -> Tensor:
        """Hold these points where they are worse than one that is held.

        ``bet`` says that they are the best bet. Return where they are worse than all that were
        held, beyond doubt.
        """
        own = _Tally(len(rows))
        everyone = torch.arange(len(rows))
        self._judge(rows, found, self._draws, own, (everyone,))
        known = self._tally.badness[:, rows]
        most = known.amax(dim=0)
        least, places = known[:1].min(dim=0) if bet else known[self._own :].min(dim=0)
        places = places if bet else places + self._own
        if not self.batch.deterministic:
            doubt = _close(own.badness, least, self._draws)
            self._judge(rows[doubt], found[doubt], CAREFUL, own, (everyone[doubt],))
        badness = own.badness
        better = badness > least
        place, chosen = places[better], rows[better]
        self._points[place, chosen] = found[better.to(found.device)]
        self._tally.take((place, chosen), own, better)
        self._settle(rows)
        ahead = badness > most
        if not self.batch.deterministic:
            ahead &= ~_close(badness, most, self._draws)
        return ahead

    def decided(self) -> Tensor:
        """Return the worst point of each image, by draws that it was not chosen by."""
        result = self.worst(torch.arange(len(self.batch.images)))
        if self.batch.deterministic:
            return result
        known = self._tally.seen > 0
        # Where there is a choice: what is lost fails as it is.
        rows = ((known.sum(dim=0) > 1) & ~self.lost).nonzero().squeeze(1)
        if len(rows):
            self._tally = _Tally(*known.shape)
            for place, there in enumerate(known[:, rows]):
                self._rejudge(place, rows[there], DECIDE)
            (best, next_best), (first, second) = self._tally.badness[:, rows].topk(2, dim=0)
            doubt = _close(best, next_best, DECIDE)
            for place in range(HELD):
                again = doubt & ((first == place) | (second == place) | (place == 0))
                self._rejudge(place, rows[again & known[place, rows]], FINAL)
            badness = self._tally.badness[:, rows]
            spread = _spread(badness, badness[:1], self._tally.seen[:, rows])
            spread[0] = 0
            result[rows] = self._points[(badness - spread).argmax(dim=0), rows]
        return result

    def _settle(self, rows: Tensor) -> None:
        """Give up those whose worst point fails in draw after draw."""
        leader = self._tally.badness[:, rows].argmax(dim=0)
        doubtful = self._tally.always_wrong[leader, rows]
        doubtful &= self._tally.seen[leader, rows] < self._retire
        for place in leader[doubtful].unique().tolist():
            self._rejudge(place, rows[doubtful & (leader == place)], self._retire - self._draws)
        if self.batch.deterministic and not self._tally.always_wrong[leader, rows][doubtful].all():
            raise AnswersDifferError
        enough = self._tally.seen[leader, rows] >= self._retire
        self.lost[rows] = self._tally.always_wrong[leader, rows] & enough

    def _rejudge(self, place: int, rows: Tensor, draws: int) -> None:
        self._judge(rows, self._points[place, rows], draws, self._tally, (place, rows))

    @torch.no_grad()
    def _judge(self, rows: Tensor, point: Tensor, draws: int, tally: _Tally, place: Any) -> None:
        if not len(rows):
            return
        part = self.batch.rows(rows)
        asked = part
        if not self.batch.separable and len(rows) < len(self.batch.images):
            asked, others = self.batch, self.worst(torch.arange(len(self.batch.images)))
            others[rows] = point
            point = others
        margins = []
        for _ in range(draws):
            logits = asked.logits(point)
            if asked is not part:
                logits = logits[rows]
            margins.append(_signed(part.margin(logits).double(), part.fooled(logits)).cpu())
        tally.add(place, torch.stack(margins))


class _Tally:
    """The margins of some points in draws of the noise; below 0 the model is wrong."""

    def __init__(self, *shape: int) -> None:
        self._margins = torch.full((0, *shape), math.nan, dtype=torch.float64)
        self.seen = torch.zeros(shape, dtype=torch.int64)  # draws of each point

    def add(self, place: Any, margins: Tensor) -> None:
        """Count more draws, a row each, of the points at ``place``."""
        before = self.seen[place]
        self._reserve(int(before.max()) + len(margins))
        for number, margin in enumerate(margins):
            self._margins[(before + number, *place)] = margin
        self.seen[place] += len(margins)

    def take(self, place: Any, other: _Tally, chosen: Tensor) -> None:
        """Put what another tally knows of its chosen points in the place of what is known."""
        draws = len(other._margins)
        self._reserve(draws)
        self._margins[(slice(None), *place)] = math.nan
        self._margins[(slice(draws), *place)] = other._margins[:, chosen]
        self.seen[place] = other.seen[chosen]

    def _reserve(self, draws: int) -> None:
        missing = draws - len(self._margins)
        if missing > 0:
            more = self._margins.new_full((missing, *self.seen.shape), math.nan)
            self._margins = torch.cat([self._margins, more])

    @property
    def always_wrong(self) -> Tensor:
        """Whether every draw was wrong."""
        return ~(self._margins >= 0).any(dim=0)

    @property
    def badness(self) -> Tensor:
        """How likely each point is to be wrong, and among equals by how much; -inf if unseen.

        The share of draws below 0, each smoothed over a width that falls with their number (a
        kernel estimate of the distribution function): that tells points apart on fewer draws than
        bare counts do, and with many becomes the count. Margins are first bent into [-1, 1] by
        their own scale, so that neither it nor some huge ones matter.
        """
        if not len(self._margins):
            return torch.full(self.seen.shape, -math.inf, dtype=torch.float64)
        count = self.seen.clamp(min=1)
        size = self._margins.abs()
        scale = size.masked_fill(size >= LARGE, math.nan).nanmedian(dim=0).values
        bent = self._margins / (size + scale.nan_to_num(1.0).clamp(min=1e-30))
        mean = bent.nansum(dim=0) / count
        spread = ((bent - mean).square().nansum(dim=0) / count).sqrt()
        low, high = bent.nanquantile(bent.new_tensor([0.25, 0.75]), dim=0)
        width = 1.59 * torch.minimum(spread, (high - low) / 1.349) * count.double() ** (-1 / 3)
        below = torch.where(
            width > 0, torch.special.ndtr(-bent / width.clamp(min=1e-30)), (bent < 0).double()
        )
        share = below.masked_fill(bent.isnan(), 0).sum(dim=0) / count
        depth = (self._margins / (1 + size)).nansum(dim=0) / count
        return torch.where(self.seen > 0, share - 1e-6 * depth, -math.inf)


def _close(one: Tensor, two: Tensor, draws: int) -> Tensor:
    """Return whether chance may decide which of two points is the worse, after so many draws."""
    one, two = one.clamp(0, 1), two.clamp(0, 1)
    near: Tensor = (one - two).abs() <= 3 * _spread(one, two, torch.tensor(draws))
    return near & (torch.maximum(one, two) >= 1 / DECIDE)


def _spread(one: Tensor, two: Tensor, draws: Tensor) -> Tensor:
    """Return the standard deviation of the difference of two shares, after so many draws each."""
    one, two = one.clamp(0, 1), two.clamp(0, 1)
    return ((one * (1 - one) + two * (1 - two)) / draws.clamp(min=1)).sqrt()


def _signed(margin: Tensor, wrong: Tensor) -> Tensor:
    """Return margins that are finite, and below 0 exactly where the answer is wrong."""
    margin = margin.nan_to_num(nan=0.0, posinf=LARGE, neginf=-LARGE).clamp(-LARGE, LARGE)
    return torch.where(wrong, margin.clamp(max=-1e-12), margin.clamp(min=0))
