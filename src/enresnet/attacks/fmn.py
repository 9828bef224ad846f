r"""Fast minimum-norm attack (Pintor, Roli, Brendel and Biggio, 2021): the smallest perturbation.

.. math:: \min_\delta \|\delta\|_p \quad \text{so that } m(x + \delta) < 0, \; x + \delta \in
          [0, 1]^d, \qquad m(x) = Z(x)_y - \max_{i \ne y} Z(x)_i

A step lowers the margin m as fast as the norm allows: along the gradient's sign in linf, along the
gradient in l2. Then the point is projected to a ball whose radius adapts:

.. math:: \epsilon_{k+1} = \begin{cases}
          \min\{(1 - \gamma_k)\,\epsilon_k, \|\delta^*\|_p\} & x + \delta_k \text{ adversarial} \\
          (1 + \gamma_k)\,\epsilon_k & \text{not, but a } \delta^* \text{ is known} \\
          \|\delta_k\|_p + |m| / \|\nabla m\|_q & \text{none is known: a linear estimate}
          \end{cases}

with q dual to p and :math:`\delta^*` the smallest adversarial perturbation so far. Step size and
gamma fall along a cosine. We differ from the paper in two points, and find smaller perturbations
for it (``benchmarks/optimality.py``). Its steps have a length in l2, in linf too; ours are a share
of the radius, in the norm itself, so that they fit images of any size. And while no adversarial
point is known, the radius grows by at least gamma, so that no search stays in a local minimum. A
largest norm binds the result, not the search: from outside the search finds more.

A smallest point is one that barely succeeds, so it is where luck counts most. Against a randomised
model a point must lead in the mean margin over ``eot`` draws and fool most of them, and then most
of 20 fresh draws; a point that fails there counts as not adversarial.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from enresnet.attacks.base import Attack
from enresnet.attacks.batch import Batch
from enresnet.attacks.determinism import ASKED, NEAR
from enresnet.attacks.geometry import BALLS, HAIR, Norm, norms_between
from enresnet.attacks.ifgsm import check_epsilon, check_length, with_suffixes
from enresnet.attacks.losses import widened
from enresnet.attacks.targets import ChosenTargets, Goal
from enresnet.common import checks
from enresnet.common.precision import PRECISIONS, Precision

FRESH = 20  # draws of a randomised model, most of which a smallest point must fool
ROUNDING = 16  # units in the last place by which logits may differ
LAST_STEP = 1 / 100  # the last step as a share of the first
LAST_GAMMA = 1e-3
DUALS = {"linf": 1.0, "l2": 2.0}


class FMN(Attack):
    """Searches for the smallest perturbation that fools the model, in linf or l2.

    There is no epsilon: each image has a radius of its own, which shrinks where the point is
    adversarial and grows where it is not. The result is the smallest adversarial point that was
    found for each image. Where none was found, it is the point of the smallest margin. One run
    gives accuracy against epsilon as a whole: the share of images whose perturbation is larger.

    Args:
        max_epsilon: The largest norm of a perturbation; None, the default, for no bound.
        steps: The number of steps; 100 by default.
        step_size: The length of the first step, as a share of the radius; 1 by default. The last is
            a hundredth of it.
        gamma: By which share the radius changes in the first step, from 0 to 1; 0.05 by default. In
            the last it is 0.001.
        norm: What is minimised: ``"linf"`` (the default) or ``"l2"``.
        eot: Draws of the model's noise behind every gradient and judgement; by default the model
            decides: 5 if it is randomised, else 1.
        goal: What counts as success: ``"untargeted"`` (the default), ``"targeted"`` or
            ``"runner_up"``; see :class:`Attack`.
        targets: How targets of a targeted attack are chosen; see :class:`Attack`. Of ``"all"`` the
            nearest class counts.
        precision: Of the gradients: ``"32"`` (the default), ``"bf16"``, or ``"auto"``, which is
            bfloat16 where the hardware computes in it. Success is judged in float32.
        generator: Draws random targets. By default it starts from the system's entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown, or ``max_epsilon`` is above 1 in linf.

    Example::

        from enresnet.attacks import FMN

        attacked = FMN(steps=100)(model, images, labels)
        sizes = (attacked - images).abs().flatten(1).amax(dim=1)  # of each image
    """

    minimal = True

    def __init__(
        self,
        *,
        max_epsilon: float | None = None,
        steps: int = 100,
        step_size: float = 1.0,
        gamma: float = 0.05,
        norm: Norm = "linf",
        eot: int | None = None,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        precision: Precision = "32",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=eot, goal=goal, targets=targets, generator=generator)
        checks.choice("precision", precision, PRECISIONS)
        checks.choice("norm", norm, BALLS)
        self.precision = precision
        self.norm = norm
        self.max_epsilon = (
            None if max_epsilon is None else check_epsilon(max_epsilon, norm, "max_epsilon")
        )
        self.steps = checks.integer("steps", steps, low=1)
        self.step_size = check_length("step_size", step_size)
        self.gamma = checks.number("gamma", gamma, low=0, high=1)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return with_suffixes(f"fmn{self.steps}", self.norm, self)

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs, at most."""
        asked = 0 if self.draws > 1 else 5 + ASKED[1]  # whether it is deterministic
        return asked + (self.steps + 2) * (self.draws + FRESH)

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        return self.search(batch).points()

    def search(self, batch: Batch) -> Smallest:
        """Return the smallest adversarial perturbations of one batch, as far as they were found."""
        certain = batch.deterministic or (batch.eot == 1 and batch.answers_alike(NEAR))
        if certain:  # no fresh draws are taken: in the progress each pass counts for them too
            share = (self.draws + FRESH) / self.draws
            batch = replace(batch, whole=round(batch.whole * share))
        found = Smallest(batch.images, self.norm, self.max_epsilon)
        start = self._look(batch, found, batch.images, certain=certain)
        rows = torch.arange(len(batch.images), device=batch.images.device)
        if certain and batch.independent:  # nothing is smaller than no change
            rows = (found.norm > 0).nonzero().squeeze(1)
        if len(rows):
            part = found.only(rows)
            self._walk(batch.rows(rows), part, start.only(rows), certain=certain)
            found.put(rows, part)
        if self.max_epsilon is not None:
            outer = BALLS[self.norm](batch.images, self.max_epsilon)
            inside = outer.settle(outer.nearest(_wide(found.point)))
            self._look(batch, found, inside, certain=certain, gradient=False)
        return found

    def _walk(self, batch: Batch, found: Smallest, at: _Look, *, certain: bool) -> None:
        """Take all steps from the images, at which the first look was taken already."""
        ball = _Ball(batch.images, self.norm)
        point, radius = ball.centre, torch.full_like(found.norm, torch.inf)
        for step in range(self.steps):
            annealed = (1 + math.cos(math.pi * step / self.steps)) / 2
            gamma = LAST_GAMMA + (self.gamma - LAST_GAMMA) * annealed
            size = self.step_size * (LAST_STEP + (1 - LAST_STEP) * annealed)
            radius = ball.bounded(self._next_radius(radius, found, at, gamma))
            point = ball.project(ball.moved(point, at.gradient, size * radius), radius)
            last = step + 1 == self.steps
            seen = point.to(batch.images.dtype)
            at = self._look(batch, found, seen, certain=certain, gradient=not last)

    def _next_radius(self, radius: Tensor, found: Smallest, at: _Look, gamma: float) -> Tensor:
        slope = torch.linalg.vector_norm(
            widened(at.gradient).flatten(1), ord=DUALS[self.norm], dim=1
        )
        linear = at.norm + (at.margin.abs() / slope).nan_to_num(nan=torch.inf)
        grown = radius * (1 + gamma)
        blind = (found.norm == torch.inf) & ~(grown > linear)
        grown = torch.where(blind | (radius == torch.inf), linear, grown)
        return torch.where(at.adversarial, (radius * (1 - gamma)).minimum(found.norm), grown)

    def _look(
        self,
        batch: Batch,
        found: Smallest,
        point: Tensor,
        *,
        certain: bool,
        gradient: bool = True,
    ) -> _Look:
        """Return what is to be seen at a point, in the images' type, and offer it."""
        margins: list[Tensor] = []
        fooled: list[Tensor] = []

        def loss(logits: Tensor) -> Tensor:
            margin = batch.margin(logits)
            margins.append(widened(margin.detach()))
            fooled.append(_fooled(batch, logits))
            return -margin

        seen = _wide(point)
        slope = torch.zeros_like(seen)
        if gradient:
            slope = batch.gradient(loss, seen)
        else:
            with torch.no_grad():
                for _ in range(batch.eot):
                    loss(batch.logits(point))
        margin = torch.stack(margins).mean(dim=0)
        most = torch.stack(fooled).to(margin.dtype).mean(dim=0) > 0.5
        adversarial = most & ~(margin > 0)
        norm = norms_between(point, batch.images, self.norm)
        candidates = adversarial & (norm < found.norm)
        sure = candidates
        if not certain:
            sure = _fools_most(batch, point, candidates, draws=FRESH)
        elif batch.reduced and gradient:  # who is lost is not for bfloat16 to say
            sure = _fools_most(batch, point, candidates, draws=1)
        adversarial &= sure | ~candidates
        found.offer(point, norm, margin, sure)
        return _Look(slope, margin, norm, adversarial)

    def _towards_all(self, batch: Batch) -> Tensor:
        """Aim at every other class in turn, and keep the nearest of them."""
        found, classes = Smallest(batch.images, self.norm, self.max_epsilon), batch.classes()
        for offset in range(1, classes):
            aim = (batch.labels + offset) % classes
            found.merge(self.search(replace(batch, labels=aim, targeted=True)))
        return found.points()


@dataclass(frozen=True)
class _Look:
    """What was seen at a point, an example each."""

    gradient: Tensor  # that lowers the margin
    margin: Tensor  # in the mean over the draws
    norm: Tensor
    adversarial: Tensor

    def only(self, rows: Tensor) -> _Look:
        return _Look(
            self.gradient[rows], self.margin[rows], self.norm[rows], self.adversarial[rows]
        )


class Smallest:
    """Each example's smallest adversarial point so far, and its point of the smallest margin.

    The latter is no larger than ``largest``, where that is given.
    """

    def __init__(self, images: Tensor, norm: Norm, largest: float | None) -> None:
        self.point, self._near = images.clone(), images.clone()
        self.norm = torch.full_like(norms_between(images, images, norm), torch.inf)
        self._margin = torch.full_like(self.norm, torch.inf)
        # A hair less: of float64 images the norm itself is rounded.
        self._largest = math.inf if largest is None else largest * (1 - HAIR)

    def points(self) -> Tensor:
        """Return the adversarial points; where there is none, those of the smallest margin."""
        there = (self.norm < torch.inf) & (self.norm <= self._largest)
        return torch.where(_column(there, self.point), self.point, self._near)

    def offer(self, point: Tensor, norm: Tensor, margin: Tensor, adversarial: Tensor) -> None:
        """Take each example's point if it is better, as one or as the other."""
        near = margin.masked_fill(~(norm <= self._largest), torch.inf)
        self._take(point, norm, point, near, adversarial & (norm < self.norm))

    def merge(self, other: Smallest) -> None:
        """Take what another search of the same examples has found, where it is better."""
        smaller = other.norm < self.norm
        self._take(other.point, other.norm, other._near, other._margin, smaller)

    def _take(
        self, point: Tensor, norm: Tensor, near: Tensor, margin: Tensor, smaller: Tensor
    ) -> None:
        self.point = torch.where(_column(smaller, point), point, self.point)
        self.norm = torch.where(smaller, norm, self.norm)
        lower = margin < self._margin
        self._near = torch.where(_column(lower, near), near, self._near)
        self._margin = torch.where(lower, margin, self._margin)

    def only(self, rows: Tensor) -> Smallest:
        """Return some of the examples."""
        part = copy.copy(self)
        part.point, part._near = self.point[rows], self._near[rows]
        part.norm, part._margin = self.norm[rows], self._margin[rows]
        return part

    def put(self, rows: Tensor, part: Smallest) -> None:
        """Write down what was found of some of the examples."""
        self.point[rows], self._near[rows] = part.point, part._near
        self.norm[rows], self._margin[rows] = part.norm, part._margin


class _Ball:
    """A ball around each image, each with a radius of its own, cut to [0, 1]."""

    def __init__(self, images: Tensor, norm: Norm) -> None:
        self.centre, self._norm = _wide(images), norm
        self._unit = BALLS[norm](images, 1.0)  # for directions alone
        corner = torch.where(images > 0.5, 0.0, 1.0).to(images.dtype)  # the farthest of the box
        self._farthest = norms_between(corner, images, norm)

    def bounded(self, radius: Tensor) -> Tensor:
        """Return radii that are no larger than the box."""
        return radius.minimum(self._farthest)

    def moved(self, point: Tensor, gradient: Tensor, sizes: Tensor) -> Tensor:
        """Return where the steepest steps of these lengths lead."""
        return point + self._unit.steepest(gradient) * _column(sizes, point).to(point.dtype)

    def project(self, point: Tensor, radius: Tensor) -> Tensor:
        """Return the nearest point of the balls of these radii, clipped to [0, 1]."""
        change, bound = point - self.centre, _column(radius, point).to(point.dtype)
        if self._norm == "linf":
            change = change.clamp(-bound, bound)
        else:
            length = _column(torch.linalg.vector_norm(widened(change).flatten(1), dim=1), point)
            shrinkage = torch.where(length > bound, bound / length, 1.0)
            change = change * shrinkage.to(change.dtype)
        return (self.centre + change).clamp_(0, 1)


@torch.no_grad()
def _fools_most(batch: Batch, point: Tensor, candidates: Tensor, *, draws: int) -> Tensor:
    """Return which of the candidates fool the model in most of so many fresh draws.

    An example is asked about no longer than until that is certain.
    """
    rows = candidates.nonzero().squeeze(1)
    hits, misses = (torch.zeros(len(rows), dtype=torch.int64, device=rows.device) for _ in "hm")
    part, at = batch.rows(rows), point[rows]
    for _ in range(draws):
        open_ = ((2 * hits <= draws) & (2 * misses < draws)).nonzero().squeeze(1)
        if not len(open_):
            break
        few = part.rows(open_)
        fooled = _fooled(few, few.logits(at[open_]))
        hits[open_] += fooled
        misses[open_] += ~fooled
    sure = torch.zeros_like(candidates)
    sure[rows] = 2 * hits > draws
    return sure


def _fooled(batch: Batch, logits: Tensor) -> Tensor:
    """Return who is fooled by more than what rounding does to logits.

    A smallest point lies on the boundary. The model in another batch, or not folded, rounds
    otherwise, and must be fooled too.
    """
    size = logits.detach().abs().nan_to_num(nan=0.0, posinf=0.0).amax(dim=1)
    hair = ROUNDING * torch.finfo(logits.dtype).eps * size
    return batch.fooled(logits) & ~(batch.margin(logits) > -hair)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
