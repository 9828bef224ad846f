"""The worst of many attacks for each image, made for models that answer differently each time.

APGD with three losses on the model itself and on its surrogates, then Square where no gradient
helped. An image is given up as lost only when it fails in ``RETIRE`` draws without exception; until
then it is attacked on. The worst few points are held for each image, and in the end the worst of
them is found on draws that none of them was chosen by, so that none wins for having been lucky.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from enresnet import checks
from enresnet.attacks.apgd import APGD, likeliest
from enresnet.attacks.base import Attack, Batch, Classifier
from enresnet.attacks.geometry import BALLS
from enresnet.attacks.ifgsm import check_epsilon
from enresnet.attacks.precision import PRECISIONS, is_deterministic, keeps_apart
from enresnet.attacks.square import Square
from enresnet.attacks.surrogates import Surrogate, surrogates
from enresnet.randomness import checked_generator

HELD = 4  # points of an image that stay in the contest
JUDGE = 8  # draws for a point that is found
RETIRE = 50  # draws in all of which an image must fail before it is given up
DECIDE = 50  # fresh draws for each of the points held, in the end


@dataclass(frozen=True)
class Stage:
    """A share of the budget for one loss on one surrogate."""

    surrogate: str
    loss: str
    share: float
    targets: int = 1
    warm: bool = False  # starts from the worst point so far


DETERMINISTIC = (
    Stage("itself", "ce", 0.1),
    Stage("itself", "dlr", 0.1),
    Stage("members' losses", "ce", 0.05),
    Stage("member", "ce", 0.05),
    Stage("itself", "targeted_dlr", 0.7, targets=9),
)
NOISE_OFF = (
    Stage("noise off", "ce", 0.1),
    Stage("noise off", "targeted_dlr", 0.3, targets=9),
    Stage("members' losses", "ce", 0.05, warm=True),
    Stage("member", "ce", 0.05),
    Stage("itself", "ce", 0.15, warm=True),
    Stage("itself", "dlr", 0.1),
    Stage("itself", "targeted_dlr", 0.15, targets=3, warm=True),
    Stage("averaged output", "dlr", 0.1, warm=True),
)
RANDOM = (
    Stage("itself", "ce", 0.3),
    Stage("itself", "dlr", 0.1),
    Stage("itself", "targeted_dlr", 0.2, targets=2, warm=True),
    Stage("averaged output", "dlr", 0.1, warm=True),
    Stage("itself", "ce", 0.3, warm=True),
)


class Strongest(Attack):
    """The worst case over APGD on all surrogates and Square, in linf.

    ``budget`` is in gradient evaluations an image; those that fail early take less. Square has a
    fifth of it in steps, without gradients.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        budget: int = 1000,
        eot: int = 5,
        precision: str = "auto",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=eot)
        self.precision = checks.choice("precision", precision, PRECISIONS)
        self.epsilon = check_epsilon(epsilon, "linf")
        self.budget = checks.integer("budget", budget, low=100)
        self.generator = checked_generator(generator)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return "strongest"

    def _passes(self) -> int:
        return 2 * self.budget

    def _draw_seeds(self, count: int) -> Tensor:
        generator = self.generator
        return torch.randint(2**62, (count,), generator=generator, device=generator.device)

    def _perturb(self, batch: Batch) -> Tensor:
        before = batch.classifier.evaluations
        if not batch.deterministic:  # not known to be; others' models are asked
            batch = replace(batch, deterministic=batch.answers_twice_the_same())
        contest = _Contest(batch)
        known = surrogates(batch.classifier.model, self.eot, deterministic=batch.deterministic)
        number = 0
        for stage, surrogate in plan(known, deterministic=batch.deterministic):
            steps = self._steps(stage, surrogate)
            for rank in range(stage.targets):
                number += 1
                rows = contest.standing
                if len(rows) == 0 or steps < 1:
                    break
                found = self._try(contest, rows, stage, surrogate, steps, rank, number)
                if found is not None:
                    contest.challenge(rows, found, number)
        if len(rows := contest.standing):
            contest.challenge(rows, self._square(batch.rows(rows)), number + 1)
        done = batch.classifier.evaluations - before
        batch.classifier.skip(max(0, self._passes() * len(batch.images) - done))
        return contest.decided()

    def _steps(self, stage: Stage, surrogate: Surrogate) -> int:
        draws = self.eot if surrogate.random else 1
        return int(stage.share * self.budget / (stage.targets * draws * surrogate.cost)) - 1

    def _try(
        self,
        contest: _Contest,
        rows: Tensor,
        stage: Stage,
        surrogate: Surrogate,
        steps: int,
        rank: int,
        number: int,
    ) -> Tensor | None:
        batch = contest.batch.rows(rows)
        attack = APGD(
            epsilon=self.epsilon,
            steps=steps,
            loss=stage.loss,
            eot=self.eot if surrogate.random else 1,
        )
        with surrogate.within():
            own = Classifier(surrogate.model, int(batch.labels.max()))
            part = replace(
                batch,
                classifier=own,
                eot=attack.eot,
                apart=keeps_apart(surrogate.model),
                deterministic=is_deterministic(surrogate.model),
            )
            aim = None
            if stage.loss == "targeted_dlr":
                ranked = contest.rivals[:, rows]
                if rank >= len(ranked):
                    return None  # so many classes there are not
                aim = ranked[rank]
            if stage.warm:
                start, size = contest.worst(rows), self.epsilon / 2
            else:
                ball = BALLS["linf"](batch.images, self.epsilon)
                start, size = ball.random_point(batch.seeds + number), 2 * self.epsilon
            found = attack.search(part, aim, start, size)
        outer = batch.classifier
        outer.gradients += round(own.gradients * surrogate.cost)
        outer.evaluations += round(own.evaluations * surrogate.cost)
        outer.bad_gradients += own.bad_gradients
        return found.worst

    def _square(self, batch: Batch) -> Tensor:
        eot = 1 if batch.deterministic else min(2, self.eot)
        square = Square(epsilon=self.epsilon, steps=max(1, self.budget // 5), eot=eot)
        return square._perturb(replace(batch, eot=eot))


def plan(known: dict[str, Surrogate], *, deterministic: bool) -> list[tuple[Stage, Surrogate]]:
    """Return the stages that a model allows; the shares of others go to those that remain."""
    stages = DETERMINISTIC if deterministic else NOISE_OFF if "noise off" in known else RANDOM
    chosen: list[tuple[Stage, Surrogate]] = []
    for stage in stages:
        own = [known[name] for name in known if name == stage.surrogate]
        if stage.surrogate == "member":
            own = [value for name, value in known.items() if name.startswith("member ")]
        chosen += [(replace(stage, share=stage.share / len(own)), value) for value in own]
    whole = sum(stage.share for stage, _ in chosen)
    return [(replace(stage, share=stage.share / whole), value) for stage, value in chosen]


class _Tally:
    """What draws of the noise say of some points: how often each was wrong, and by how much."""

    def __init__(self, *shape: int) -> None:
        self._sums = torch.zeros(4, *shape, dtype=torch.float64)  # draws, wrong, margin, its square

    def add(self, place: Any, wrong: Tensor, margin: Tensor) -> None:
        """Count one more draw of the points at ``place``."""
        self._sums[(slice(None), *place)] += torch.stack(
            [torch.ones_like(margin), wrong.double(), margin, margin**2]
        )

    def take(self, place: Any, other: _Tally, chosen: Tensor) -> None:
        """Put what another tally says of its chosen points in the place of what is known."""
        self._sums[(slice(None), *place)] = other._sums[:, chosen]

    def clear(self) -> None:
        """Forget everything."""
        self._sums.zero_()

    @property
    def seen(self) -> Tensor:
        """The number of draws."""
        return self._sums[0]

    @property
    def always_wrong(self) -> Tensor:
        """Whether every draw was wrong."""
        return self._sums[1] == self._sums[0]

    @property
    def badness(self) -> Tensor:
        """How likely each point is to be wrong, and beyond certainty by how much; -inf if unseen.

        The mean of two estimates: the share of draws that were wrong, and what a normal law with
        the mean and variance of the margin gives, which knows more from few draws.
        """
        seen, wrong, total, squares = self._sums
        mean = total / seen.clamp(min=1)
        spread = (squares / seen.clamp(min=1) - mean**2).clamp(min=1e-18).sqrt()
        normal = torch.special.ndtr(-mean / spread)
        found = (wrong / seen.clamp(min=1) + normal) / 2 - 1e-6 * mean.tanh()
        return torch.where(seen > 0, found, -math.inf)


class _Contest:
    """The worst points of each image so far.

    Of a randomised model every figure is an estimate, and the best of many estimates is a lucky
    one. So some points are held for each image, and in the end the worst of them is found on
    draws that none of them was chosen by.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._draws, self._retire, held = JUDGE, RETIRE, HELD
        if batch.deterministic:
            self._draws = self._retire = held = 1
        count = len(batch.images)
        self._points = batch.images.expand(held, *batch.images.shape).clone()
        self._tally = _Tally(held, count)
        self._attack = torch.zeros(held, count, dtype=torch.int64)  # by which each was found
        self._lost = torch.zeros(count, dtype=torch.bool)
        self.challenge(torch.arange(count), batch.images)
        self.rivals = likeliest(replace(batch, eot=self._draws), 9)

    @property
    def standing(self) -> Tensor:
        """The images that are not lost."""
        return (~self._lost).nonzero().squeeze(1)

    def worst(self, rows: Tensor) -> Tensor:
        """Return the worst point of these images as far as is known."""
        return self._points[self._tally.badness[:, rows].argmax(dim=0), rows]

    def challenge(self, rows: Tensor, found: Tensor, attack: int = 0) -> None:
        """Hold the points that an attack found where they are worse than one that is held."""
        own = _Tally(len(rows))
        self._judge(rows, found, self._draws, own, (torch.arange(len(rows)),))
        least, places = self._tally.badness[:, rows].min(dim=0)
        better = own.badness > least
        place, chosen = places[better], rows[better]
        self._points[place, chosen] = found[better.to(found.device)]
        self._tally.take((place, chosen), own, better)
        self._attack[place, chosen] = attack
        self._settle(rows)

    def decided(self) -> Tensor:
        """Return the worst point of each image, by draws that it was not chosen by.

        Where the noise is large these draws tell points apart badly, and what is known of the
        attacks that found them helps: an estimate is drawn towards the mean of its attack by as
        much of its spread as is chance (empirical Bayes).
        """
        rows = torch.arange(len(self.batch.images))
        if self.batch.deterministic:
            return self.worst(rows)
        known = self._tally.seen > 0
        judged = known & (known.sum(dim=0) > 1)  # where there is a choice
        if not judged.any():
            return self.worst(rows)
        self._tally.clear()
        for place, there in enumerate(judged):
            self._rejudge(place, rows[there], DECIDE)
        found = torch.where(judged, self._tally.badness, 0.0)
        own = found - found.sum(dim=0) / judged.sum(dim=0).clamp(min=1)
        expected = torch.zeros_like(own)
        for attack in self._attack[judged].unique():
            there = judged & (self._attack == attack)
            expected[there] = own[there].mean()
        spread = ((own - expected)[judged] ** 2).mean()
        chance = (found * (1 - found)).clamp(min=0)[judged].mean() / DECIDE
        trust = (1 - chance / spread.clamp(min=1e-12)).clamp(0, 1)
        shrunk = torch.where(known, expected + trust * (own - expected), -math.inf)
        return self._points[shrunk.argmax(dim=0), rows]

    def _settle(self, rows: Tensor) -> None:
        """Give up those whose worst point fails in draw after draw."""
        leader = self._tally.badness[:, rows].argmax(dim=0)
        doubtful = self._tally.always_wrong[leader, rows]
        doubtful &= self._tally.seen[leader, rows] < self._retire
        for place in leader[doubtful].unique().tolist():
            self._rejudge(place, rows[doubtful & (leader == place)], self._retire - self._draws)
        enough = self._tally.seen[leader, rows] >= self._retire
        self._lost[rows] = self._tally.always_wrong[leader, rows] & enough

    def _rejudge(self, place: int, rows: Tensor, draws: int) -> None:
        if len(rows):
            self._judge(rows, self._points[place, rows], draws, self._tally, (place, rows))

    @torch.no_grad()
    def _judge(self, rows: Tensor, point: Tensor, draws: int, tally: _Tally, place: Any) -> None:
        part = self.batch.rows(rows)
        for _ in range(draws):
            logits = part.logits(point)
            tally.add(place, part.fooled(logits).cpu(), part.margin(logits).double().cpu())
