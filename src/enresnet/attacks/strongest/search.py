"""The worst of many attacks for each image, made for models that answer differently each time.

APGD with three losses on the model itself and on its surrogates, then Square, for longer where no
gradient helped, or there was none. Where the noise drowns the gradient, fewer steps are taken, over
more draws each.
An image is given up as lost only when it fails in fifty draws without exception; until then it is
attacked on. Which point is the worst, :mod:`enresnet.attacks.strongest.worst_points` decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from enresnet.attacks.apgd import APGD, APGDLoss
from enresnet.attacks.base import Attack
from enresnet.attacks.batch import Batch
from enresnet.attacks.determinism import ASKED, EOT
from enresnet.attacks.geometry import BALLS
from enresnet.attacks.gradient import NoGradientError
from enresnet.attacks.ifgsm import check_epsilon, climb
from enresnet.attacks.known_networks import is_batch_independent, is_deterministic, is_separable
from enresnet.attacks.losses import difference_of_logits_ratio
from enresnet.attacks.square import Square
from enresnet.attacks.strongest.surrogates import Surrogate, surrogates
from enresnet.attacks.strongest.worst_points import RETIRE, AnswersDifferError, WorstPoints
from enresnet.common import checks
from enresnet.common.precision import PRECISIONS, Precision

FEWEST = 10  # steps that a search should have: rather than fewer it averages over fewer draws
DROWNED = 0.8  # cosine of two gradients below which noise has too much of a say in them


@dataclass(frozen=True)
class Stage:
    """A share of the budget for one loss on one surrogate."""

    surrogate: str
    loss: APGDLoss
    share: float
    targets: int = 1
    warm: bool = False  # starts from the worst point so far
    steps: int | None = None  # so many, over as many draws as the share allows; None: the reverse
    plain: bool = False  # steps of one size, and the last point: nothing is judged on the way
    bet: bool = False  # the best one, before anything is known
    exact: bool = False  # never in bfloat16


DETERMINISTIC = (
    Stage("itself", "ce", 0.1),
    Stage("itself", "dlr", 0.1),
    Stage("members' losses", "ce", 0.05),
    Stage("member", "ce", 0.05),
    Stage("itself", "targeted_dlr", 0.6, targets=9),
    Stage("itself", "dlr", 0.1, warm=True, exact=True),
)
NOISE_OFF = (
    Stage("noise off", "ce", 0.1),
    Stage("noise off", "targeted_dlr", 0.3, targets=9),
    Stage("members' losses", "ce", 0.05, warm=True),
    Stage("member", "ce", 0.05),
    Stage("itself", "ce", 0.15, warm=True, bet=True),
    Stage("itself", "dlr", 0.1),
    Stage("itself", "targeted_dlr", 0.15, targets=3, warm=True),
    Stage("averaged output", "dlr", 0.1, warm=True),
)
RANDOM = (
    Stage("itself", "ce", 0.3, bet=True),
    Stage("itself", "dlr", 0.1),
    Stage("itself", "targeted_dlr", 0.2, targets=2, warm=True),
    Stage("averaged output", "dlr", 0.1, warm=True),
    Stage("itself", "ce", 0.3, warm=True),
)
LOUD = (
    Stage("noise off", "ce", 0.1),
    Stage("noise off", "targeted_dlr", 0.1, targets=3),
    Stage("itself", "ce", 0.8, steps=20, plain=True, bet=True),
    Stage("itself", "dlr", 0.2, steps=20, plain=True),
    Stage("itself", "dlr", 0.3),  # cross-entropy hears nothing of draws that are surely right
)


class Strongest(Attack):
    """Runs several attacks on each image and keeps the worst point, in linf.

    The attacks are APGD with three losses, on the model and on surrogates of it (such as the model
    without noise, or one member), and then Square. An image of a randomised model counts as lost,
    and is attacked no more, only when it fails in fifty draws without exception. Other images keep
    the point that is most likely to fail. Where the model gives no gradient, Square alone runs,
    with a warning.

    Args:
        epsilon: The largest change of a pixel, in units of the image's range [0, 1]; 8/255 by
            default.
        budget: The most gradient evaluations an image takes; 1000 by default, at least 100. Square
            takes up to as many steps, without gradients. It stops early on images where it makes
            too little progress, unless gradients are absent or misleading there.
        eot: Draws of the model's noise that a gradient averages; by default the model decides:
            5 if it is randomised, else 1. Fewer where the budget would not last for ten steps.
        precision: Of the gradients: ``"32"``, ``"bf16"``, or ``"auto"`` (the default), which is
            bfloat16, on hardware that computes in it, for networks of this package and for others
            that torch.fx can follow and that answer the same in it.
        generator: Draws starts and squares. By default it starts from the system's entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown, or ``epsilon`` is above 1 in linf.

    Example::

        from enresnet.attacks import Strongest

        result = Strongest(budget=500).run(model, images, labels)
        print(result.gradients / len(images))  # gradient evaluations an image
    """

    random = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        budget: int = 1000,
        eot: int | None = None,
        precision: Precision = "auto",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=eot, generator=generator)
        # Where it finds out that a model only seemed deterministic, it averages after all.
        self._averaged = EOT if eot is None else eot
        checks.choice("precision", precision, PRECISIONS)
        self.precision = precision
        self.epsilon = check_epsilon(epsilon, "linf")
        self.budget = checks.integer("budget", budget, low=100)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return "strongest"

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs, if it survives to the end."""
        # Gradients, then Square, which compares two points where there is noise; and those that ask
        # whether a model is deterministic, and whether an image is lost.
        return (2 if self.draws == 1 else 3) * self.budget + ASKED[1] + RETIRE

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        outer = batch.classifier
        # Its passes do not grow with the draws of a gradient, which share the budget.
        batch = replace(batch, classifier=outer.surrogate(outer.model, outer.call, 1 / outer.worth))
        known = batch.deterministic
        if not known:  # others' models are asked
            batch = replace(batch, deterministic=batch.answers_alike(self.epsilon))
        batch = batch.with_separable_known()
        try:
            worst = self._searched(batch, self.budget, known=known)
        except AnswersDifferError:
            spent = batch.classifier.gradients // max(1, len(batch.images))
            batch = replace(batch, deterministic=False)
            worst = self._searched(batch, max(100, self.budget - spent))
        result = worst.decided()
        outer.count(batch.classifier)
        outer.overflows += batch.classifier.overflows
        return result

    def _searched(self, batch: Batch, budget: int, *, known: bool = False) -> WorstPoints:
        """Return the worst of all points that were found."""
        worst = WorstPoints(batch, known=known)
        try:
            blind = self._by_gradients(worst, budget)
        except NoGradientError:
            if batch.images.ndim != 4:
                raise
            blind = torch.ones(len(batch.images), dtype=torch.bool)
            warnings.warn(
                f"model gives no gradient: strongest is Square alone, over {budget} steps; a copy "
                "of the model in torch operations would be attacked far more strongly",
                stacklevel=5,
            )
        if batch.images.ndim == 4:  # squares need a height and a width
            self._by_squares(worst, blind, budget)
        return worst

    def _by_squares(self, worst: WorstPoints, blind: Tensor, budget: int) -> None:
        """Search without gradients: to the end where they lead nowhere, else where it gets on."""
        batch = worst.batch
        eot = 1 if batch.deterministic else self._averaged
        for members, draws in ((~blind, 1), (blind, eot)):
            rows = worst.not_lost
            rows = rows[members[rows]]
            hurried = ~blind[rows]
            while len(rows):
                found = self._square(batch.rows(rows), budget, draws, hurried)
                ahead = worst.challenge(rows, found)
                # Where blind search does better than gradients did, it is them that are blind.
                more = ahead & ~worst.lost[rows] & hurried
                if not batch.separable:
                    more[:] = more.any()
                rows, draws = rows[more], eot
                hurried = torch.zeros(len(rows), dtype=torch.bool)

    def _by_gradients(self, worst: WorstPoints, budget: int) -> Tensor:
        """Try all that follows a gradient; return the images where there is none to trust."""
        batch = worst.batch
        known = surrogates(
            batch.classifier.model,
            batch.classifier.call,
            min(self._averaged, max(1, budget // 100)),
            deterministic=batch.deterministic,
        )
        groups: list[tuple[Tensor, Sequence[Stage]]]
        groups = [(torch.ones(len(batch.images), dtype=torch.bool), DETERMINISTIC)]
        loud, blind = self._untrusted(worst)
        spent = self._averaged * 2
        if batch.deterministic:
            spent = 1
        else:
            quiet = NOISE_OFF if "noise off" in known else RANDOM
            groups = [(~loud, quiet), (loud, LOUD)]
        for members, stages in groups:
            searches = list(
                searches_of(
                    plan(stages, known),
                    budget=max(0, budget - spent),
                    eot=self._averaged,
                    targets=len(worst.rivals),
                )
            )
            for number, search in enumerate(searches):
                rows = worst.not_lost
                rows = rows[members[rows]]
                if len(rows) == 0:
                    break
                found = self._try(worst, rows, search, number + 1)
                worst.challenge(rows, found, bet=search.bet)
        return blind

    def _untrusted(self, worst: WorstPoints) -> tuple[Tensor, Tensor]:
        """Return the images whose gradient is mostly noise, and those where it leads nowhere.

        Two gradients under different noise then disagree. It leads nowhere where it is 0, and where
        the second half of one long step along it makes the model surer again: so do networks that
        were trained on such steps alone.
        """
        found, blind = torch.zeros(2, len(worst.batch.images), dtype=torch.bool)
        rows = worst.not_lost
        if not len(rows):
            return found, blind
        batch = worst.batch.rows(rows)
        if batch.deterministic:
            batch = replace(batch, eot=1)
        one = batch.gradient(batch.loss, batch.images)
        two = one if batch.deterministic else batch.gradient(batch.loss, batch.images)
        first, second = one.flatten(1), two.flatten(1)
        zero = (first == 0).all(dim=1) & (second == 0).all(dim=1)
        there = (first != 0).any(dim=1) & (second != 0).any(dim=1)
        cosine = torch.cosine_similarity(first.double(), second.double(), eps=1e-300)
        found[rows] = (there & (cosine < DROWNED)).cpu()
        ball = BALLS["linf"](batch.images, self.epsilon)
        half, whole = (
            self._margins(batch, ball.ascend(ball.centre, one + two, share * self.epsilon))
            for share in (0.5, 1)
        )
        # Two standard deviations of what noise does to the difference; 0 where there is none.
        doubt = 2 * ((half.var(0, correction=0) + whole.var(0, correction=0)) / len(half)).sqrt()
        blind[rows] = (zero | (whole.mean(dim=0) - half.mean(dim=0) > doubt)).cpu()
        if not batch.separable:  # images that meet are searched together, as most of them need
            for kind in (found, blind):
                kind[:] = kind.double().mean() > 0.5
        return found, blind

    @torch.no_grad()
    def _margins(self, batch: Batch, point: Tensor) -> Tensor:
        """Return the margins of points, a row a draw."""
        draws = 1 if batch.deterministic else self._averaged
        return torch.stack([batch.margin(batch.logits(point)).double() for _ in range(draws)])

    def _try(self, worst: WorstPoints, rows: Tensor, search: Search, number: int) -> Tensor:
        batch, surrogate = worst.batch.rows(rows), search.surrogate
        ball = BALLS["linf"](batch.images, self.epsilon)
        aim = worst.rivals[search.target, rows] if search.loss == "targeted_dlr" else None
        with surrogate.within():
            own = batch.classifier.surrogate(surrogate.model, surrogate.call, surrogate.cost)
            part = replace(
                batch,
                classifier=own,
                eot=search.draws,
                reduced=batch.reduced and not search.exact,
                independent=is_batch_independent(surrogate.model, surrogate.call),
                deterministic=is_deterministic(surrogate.model, surrogate.call),
                separable=is_separable(surrogate.model, surrogate.call),
            )
            start = worst.worst(rows) if search.warm else ball.random_point(batch.seeds + number)
            if search.plain:
                ratio = partial(difference_of_logits_ratio, labels=batch.labels)
                loss = ratio if search.loss == "dlr" else batch.loss
                size = self.epsilon / 4
                steps = search.steps
                found = climb(part, ball, ball.centre, steps=steps, step_size=size, loss=loss)
            else:
                attack = APGD(
                    epsilon=self.epsilon,
                    steps=search.steps,
                    loss=search.loss,
                    eot=search.draws,
                    early_stop=surrogate.name == "itself",  # what fools another may not fool it
                )
                size = self.epsilon / 2 if search.warm else 2 * self.epsilon
                found = attack.search(part, aim, start, size).worst
        batch.classifier.count(own, surrogate.cost)
        return found

    def _square(self, batch: Batch, steps: int, eot: int, hurried: Tensor) -> Tensor:
        square = Square(epsilon=self.epsilon, steps=steps, eot=eot)
        own = batch.classifier.recounted()
        found = square.search(replace(batch, eot=eot, classifier=own), give_up=hurried)
        batch.classifier.count(own)
        return found


def plan(stages: Sequence[Stage], known: dict[str, Surrogate]) -> list[tuple[Stage, Surrogate]]:
    """Return the stages that a model allows, with the surrogate of each."""
    chosen: list[tuple[Stage, Surrogate]] = []
    for stage in stages:
        own = [known[name] for name in known if name == stage.surrogate]
        if stage.surrogate == "member":
            own = [value for name, value in known.items() if name.startswith("member ")]
        chosen += [(replace(stage, share=stage.share / len(own)), value) for value in own]
    return chosen


@dataclass(frozen=True)
class Search:
    """One run of APGD, or of plain steps, on one surrogate."""

    surrogate: Surrogate
    loss: APGDLoss
    target: int  # its rank among the classes other than the label
    steps: int
    draws: int
    warm: bool = False
    plain: bool = False
    bet: bool = False
    exact: bool = False

    @property
    def gradients(self) -> int:
        """How many the surrogate is asked for."""
        return (self.steps + (not self.plain)) * self.draws


def searches_of(
    planned: Sequence[tuple[Stage, Surrogate]], *, budget: float, eot: int, targets: int
) -> Iterator[Search]:
    """Yield the searches that a budget allows; what one stage leaves goes to those after it."""
    shares = [stage.share for stage, _ in planned]
    for index, (stage, surrogate) in enumerate(planned):
        ranks = min(stage.targets, targets)
        allowed = budget * stage.share / sum(shares[index:]) / ranks / surrogate.cost
        if stage.steps is None or not surrogate.random:
            draws = max(1, min(eot, int(allowed / FEWEST))) if surrogate.random else 1
            steps = int(allowed / draws)
        else:
            draws = max(1, int(allowed / stage.steps))
            steps = min(stage.steps, int(allowed / draws))
        steps -= not stage.plain  # APGD looks at its start too
        if steps < 1:
            continue
        for rank in range(ranks):
            search = Search(
                surrogate,
                stage.loss,
                rank,
                steps,
                draws,
                warm=stage.warm,
                plain=stage.plain,
                bet=stage.bet,
                exact=stage.exact,
            )
            budget -= search.gradients * surrogate.cost
            yield search
