r"""Square (Andriushchenko et al., 2020): random search that needs no gradient.

.. math:: x' = x + \delta, \quad \delta \in \{-\epsilon, \epsilon\}^d; \qquad
          \text{a random square of } \delta \text{ is drawn anew and kept if the margin falls}

A black box: what gradients cannot find it may. The squares shrink as the search goes on. Against a
randomised model, the old point and the new are judged on the mean over draws of its noise, fresh
in each step and the same for both: a point once lucky is not kept for it, and what tells the two
apart is not drowned.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from enresnet.attacks.base import Attack
from enresnet.attacks.batch import Batch
from enresnet.attacks.common_random_numbers import CommonRandomNumbers
from enresnet.attacks.geometry import Linf
from enresnet.attacks.ifgsm import check_epsilon, with_suffixes
from enresnet.attacks.targets import ChosenTargets, Goal
from enresnet.common import checks

# The share of pixels of a square is halved at these shares of the search (of 10,000 steps).
HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
RETIRE = 20  # draws in which an example of a randomised model must fail before it is left
# Where that is asked for, an example is given up if its margin, as a share of the clean image's, is
# above 0.55 times the share of the search that is left. A test on a network trained with one step,
# on which Square finds what gradients do not, sees that no image is given up that it would break.
HEADWAY = 0.55
LOOKS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Square(Attack):
    """Searches at random, without gradients, over squares of pixels changed by epsilon, in linf.

    The search of an example ends when it fools the model in all ``eot`` draws, and a randomised
    model in 20 fresh draws as well. Images must be N x C x H x W.

    Args:
        epsilon: The largest change of a pixel, in units of the image's range [0, 1]; 8/255 by
            default.
        steps: The number of squares tried; 1000 by default.
        share: The share of an image's pixels in the first squares, from 0 to 1; 0.8 by default. It
            is halved nine times during the search.
        eot: Draws of the model's noise that every comparison averages; by default the model
            decides: 5 if it is randomised, else 1.
        goal: What counts as success: ``"untargeted"`` (the default), ``"targeted"`` or
            ``"runner_up"``; see :class:`Attack`.
        targets: How targets of a targeted attack are chosen; see :class:`Attack`.
        generator: Draws the squares and random targets. By default it starts from the system's
            entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown, or ``epsilon`` is above 1 in linf.

    Example::

        from enresnet.attacks import Square

        attacked = Square(steps=200)(model, images, labels)
    """

    random = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        steps: int = 1000,
        share: float = 0.8,
        eot: int | None = None,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=eot, goal=goal, targets=targets, generator=generator)
        self.epsilon = check_epsilon(epsilon, "linf")
        self.steps = checks.integer("steps", steps, low=1)
        self.share = checks.number("share", share, low=0, high=1)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return with_suffixes(
            "square" if self.steps == 1000 else f"square{self.steps}", "linf", self
        )

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs."""
        watched = 1
        return watched + 2 * (self.steps + 1) * self.draws + RETIRE

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        return self.search(batch)

    @torch.no_grad()
    def search(self, batch: Batch, *, give_up: Tensor | None = None) -> Tensor:
        """Return the worst points found; examples in ``give_up`` are left where hope is small."""
        if batch.images.ndim != 4:
            raise ValueError(
                "square needs images N x channels x height x width, found shape "
                f"{tuple(batch.images.shape)}"
            )
        ball = Linf(batch.images, self.epsilon)
        draws = Draws(batch.seeds, 2 + batch.images.shape[1])
        point = self._stripes(ball, draws)
        noise = CommonRandomNumbers(int(batch.seeds[0]))
        if not batch.deterministic:
            noise.watch(partial(batch.logits, point))
        fooled, margin = self._judge(batch, point)  # first of all calls: errors name the batch
        batch = batch.with_separable_known()
        lost = self._lost(batch, point, fooled, torch.zeros_like(fooled, dtype=torch.bool))
        looks, clean = {}, margin
        if give_up is not None:
            looks = {round(share * self.steps): HEADWAY * (1 - share) for share in LOOKS}
            _, clean = self._judge(batch, batch.images)
        for step in range(self.steps):
            if give_up is not None and step in looks:
                lost = lost | (give_up & (margin > looks[step] * clean))
            if lost.all():
                break
            # Where images meet, those that are lost stay: without them the others' answers differ.
            rows = (~lost if batch.separable else torch.ones_like(lost)).nonzero().squeeze(1)
            part = batch.rows(rows)
            side = self._side(step, point.shape[-2:])
            tried = self._with_squares(ball, point, rows, side, draws)
            if batch.deterministic:
                new_fooled, new_margin = self._judge(part, tried)
            else:
                (new_fooled, new_margin), old = noise.under_the_same_noise(
                    partial(self._judge, part, tried), partial(self._judge, part, point[rows])
                )
                fooled[rows], margin[rows] = old
            # Few draws tell margins apart better than they tell shares apart.
            better = new_margin < margin[rows]
            if batch.deterministic:
                better = (new_fooled > fooled[rows]) | ((new_fooled == fooled[rows]) & better)
            chosen = rows[better]
            point[chosen] = tried[better]
            fooled[chosen], margin[chosen] = new_fooled[better], new_margin[better]
            lost = self._lost(batch, point, fooled, lost)
        return ball.settle(point)

    def _lost(self, batch: Batch, point: Tensor, fooled: Tensor, known: Tensor) -> Tensor:
        """Return the examples that need no more search.

        Those of a randomised model must be wrong in ``RETIRE`` fresh draws too: of few draws all
        are wrong by chance soon.
        """
        lost = known | (fooled == 1)
        new = (lost & ~known).nonzero().squeeze(1)
        if not batch.deterministic and len(new):
            part = batch.rows(new)
            wrong = torch.ones(len(new), dtype=torch.bool)
            for _ in range(RETIRE):
                still = wrong.nonzero().squeeze(1)
                if not len(still):
                    break
                if not batch.separable:
                    wrong &= batch.fooled(batch.logits(point)).cpu()[new]
                    continue
                few = part.rows(still)
                wrong[still] = few.fooled(few.logits(point[new[still]])).cpu()
            lost[new] = wrong
        return lost

    def _judge(self, batch: Batch, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share of draws that each point fools, and its mean margin."""
        fooled, margin = torch.zeros(len(point)), torch.zeros(len(point), dtype=torch.float64)
        for _ in range(batch.eot):
            logits = batch.logits(point)
            fooled += batch.fooled(logits).cpu()
            margin += batch.margin(logits).double().cpu()
        return fooled / batch.eot, margin / batch.eot

    def _stripes(self, ball: Linf, draws: Draws) -> Tensor:
        """Return the start: vertical stripes, one pixel wide, of either sign."""
        _, channels, _, width = ball.centre.shape
        signs = draws.signs((channels, 1, width))
        return ball.nearest(ball.centre + self.epsilon * signs.to(ball.centre))

    def _side(self, step: int, shape: torch.Size) -> int:
        share = self.share
        for halving in HALVINGS:
            if step >= halving * self.steps:
                share /= 2
        height, width = shape
        side = round(math.sqrt(share * height * width))
        return max(1, min(side, height, width))

    def _with_squares(
        self, ball: Linf, point: Tensor, rows: Tensor, side: int, draws: Draws
    ) -> Tensor:
        """Return the points with a square of each drawn anew."""
        channels, height, width = point.shape[1:]
        drawn = draws.next(rows)  # an example: top, left, a sign for each channel
        top, left = drawn[:, 0] % (height - side + 1), drawn[:, 1] % (width - side + 1)
        signs = _signs(drawn[:, 2:]).view(-1, channels, 1, 1).to(point)
        inside = _between(top, side, height)[:, :, None] & _between(left, side, width)[:, None]
        centre = ball.centre[rows]
        moved = (centre + self.epsilon * signs).clamp_(ball.low[rows], ball.high[rows])
        return torch.where(inside[:, None].to(point.device), moved, point[rows])


class Draws:
    """Random words for every example, from a stream of its own.

    numpy's generator hands them out many at a time. They are those of a torch.Generator with the
    same seed, which yields them one by one.
    """

    AHEAD = 64  # steps

    def __init__(self, seeds: Tensor, numbers: int) -> None:
        words = 2**32
        self._streams = [np.random.RandomState(seed % words) for seed in seeds.tolist()]
        self._block = np.empty((len(seeds), self.AHEAD, numbers), dtype=np.uint32)
        self._step = self.AHEAD

    def next(self, rows: Tensor) -> Tensor:
        """Return the words of the next step, for some of the examples."""
        if self._step == self.AHEAD:
            for row in rows.tolist():  # an example that is left out once does not come back
                self._block[row] = self._words(row, self._block.shape[1:])
            self._step = 0
        self._step += 1
        return torch.from_numpy(self._block[rows.numpy(), self._step - 1].astype(np.int64))

    def signs(self, shape: tuple[int, ...]) -> Tensor:
        """Return random signs, -1 or 1, of this shape for each example."""
        words = np.stack([self._words(row, shape) for row in range(len(self._streams))])
        return _signs(torch.from_numpy(words.astype(np.int64)))

    def _words(self, row: int, shape: tuple[int, ...]) -> np.ndarray:
        return self._streams[row].randint(0, 2**32, shape, dtype=np.uint32)


def _signs(words: Tensor) -> Tensor:
    return 2.0 * (words % 2) - 1


def _between(first: Tensor, side: int, size: int) -> Tensor:
    """Return N x size: which places lie in the ``side`` places from ``first`` on."""
    places = torch.arange(size)
    return (places >= first[:, None]) & (places < first[:, None] + side)
