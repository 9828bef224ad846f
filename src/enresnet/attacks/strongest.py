"""The worst of many attacks for each image, made for models that answer differently each time.

APGD with three losses on the model itself and on its surrogates, then Square where no gradient
helped. An image is given up as lost only when it fails in ``RETIRE`` fresh draws without exception;
until then it is attacked on. Whatever challenges the point found so far is judged beside it on
fresh draws, so that none is kept for having been lucky once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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

RETIRE = 20  # draws in which an image must fail
JUDGE = 5  # draws for a point and for its challenger


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
    Stage("itself", "ce", 0.25),
    Stage("itself", "dlr", 0.2),
    Stage("itself", "targeted_dlr", 0.35, targets=3, warm=True),
    Stage("averaged output", "dlr", 0.2, warm=True),
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
                contest.challenge(rows, found)
        if len(rows := contest.standing):
            contest.challenge(rows, self._square(batch.rows(rows)))
        done = batch.classifier.evaluations - before
        batch.classifier.skip(max(0, self._passes() * len(batch.images) - done))
        return contest.point

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
    ) -> Tensor:
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
                    return contest.point[rows]
                aim = ranked[rank]
            if stage.warm:
                start, size = contest.point[rows], self.epsilon / 2
            else:
                ball = BALLS["linf"](batch.images, self.epsilon)
                start, size = ball.random_point(batch.seeds + number), 2 * self.epsilon
            point, _, _ = attack.search(part, aim, start, size)
        outer = batch.classifier
        outer.gradients += round(own.gradients * surrogate.cost)
        outer.evaluations += round(own.evaluations * surrogate.cost)
        outer.bad_gradients += own.bad_gradients
        return point

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


class _Contest:
    """The worst point of each image so far, and in how many draws it was wrong."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.point = batch.images.clone()
        self.draws = 1 if batch.deterministic else JUDGE
        self.retire = 1 if batch.deterministic else RETIRE
        count = len(batch.images)
        self._wrong, self._margin = torch.zeros(count), torch.zeros(count, dtype=torch.float64)
        self._seen = torch.zeros(count)
        self._lost = torch.zeros(count, dtype=torch.bool)
        rows = torch.arange(count)
        self._rejudge(rows)
        self._settle(rows)
        self.rivals = likeliest(replace(batch, eot=self.draws), 9)

    @property
    def standing(self) -> Tensor:
        """The images that are not lost."""
        return (~self._lost).nonzero().squeeze(1)

    def challenge(self, rows: Tensor, found: Tensor) -> None:
        """Take the points found for these images where they are worse than what is held."""
        if not self.batch.deterministic:
            self._rejudge(rows)
        wrong, margin = self._judge(rows, found, self.draws)
        share, held = wrong / self.draws, self._wrong[rows] / self._seen[rows]
        lower = margin / self.draws < self._margin[rows] / self._seen[rows]
        better = (share > held) | ((share == held) & lower)
        chosen = rows[better]
        self.point[chosen] = found[better.to(found.device)]
        self._wrong[chosen], self._margin[chosen] = wrong[better], margin[better]
        self._seen[chosen] = self.draws
        self._settle(rows)

    def _settle(self, rows: Tensor) -> None:
        """Give up those that fail in draw after draw."""
        never_right = rows[(self._wrong[rows] == self._seen[rows])]
        short = self.retire - int(self.draws)
        if short > 0 and len(never_right):
            self._rejudge(never_right, short)
        self._lost[rows] = (self._wrong[rows] == self._seen[rows]) & (
            self._seen[rows] >= self.retire
        )

    def _rejudge(self, rows: Tensor, draws: int | None = None) -> None:
        draws = draws or self.draws
        wrong, margin = self._judge(rows, self.point[rows.to(self.point.device)], draws)
        self._wrong[rows] += wrong
        self._margin[rows] += margin
        self._seen[rows] += draws

    @torch.no_grad()
    def _judge(self, rows: Tensor, point: Tensor, draws: int) -> tuple[Tensor, Tensor]:
        part = self.batch.rows(rows)
        wrong, margin = torch.zeros(len(rows)), torch.zeros(len(rows), dtype=torch.float64)
        for _ in range(draws):
            logits = part.logits(point)
            wrong += part.fooled(logits).cpu()
            margin += part.margin(logits).double().cpu()
        return wrong, margin
