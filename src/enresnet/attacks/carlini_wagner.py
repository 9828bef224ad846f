r"""Carlini and Wagner's attack in the maximum norm (Sec. 3.2; Eq. 18 misprints its brackets).

.. math:: \min_u \|x' - x\|_\infty + c \max\{-\kappa, Z(x')_y - \max_{i \ne y} Z(x')_i\},
          \qquad x' = \tfrac12 (\tanh u + 1)

For a target t the margin turns round: max over i != t of Z(x')_i - Z(x')_t. Fifty steps of Adam at
6e-4 move a pixel by at most 0.015 in tanh space and 0.03 in pixel space: two different attacks.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from enresnet.attacks.base import Attack
from enresnet.attacks.batch import Batch
from enresnet.attacks.ifgsm import with_suffixes
from enresnet.attacks.targets import ChosenTargets, Goal
from enresnet.common import checks

Space = Literal["tanh", "pixel"]
SPACES: tuple[Space, ...] = get_args(Space)

# Where the tanh is flat, at black and white, a pixel would never move. Pixels nearer to them than
# this use the tanh's slope at this distance instead.
BORDER = 16 / 255

# Adam squares what it is given and divides by the root: beyond these float32 has no numbers left
# for it. It moves by the signs of gradients so large, whatever their size.
LARGEST_GRADIENT, LARGEST_STEP = 1e15, 1e30


class CarliniWagner(Attack):
    """Minimises the size of the perturbation plus c times the margin with Adam, in linf.

    There is no epsilon: the perturbation is small because it is minimised, and only [0, 1] bounds
    the images. The result is the best point of the search for each example. It fools the model in
    the largest share of ``eot`` draws; among equals it has the smallest hinge term, and then the
    smallest perturbation. So a failed example gets the point nearest to success, and a margin below
    ``-kappa`` counts as ``-kappa``.

    With ``kappa=0`` an example stops at the decision boundary. There a model with noise is right in
    many later draws, though the image is no harder to attack; its accuracy says more with a kappa
    of the size of the noise in the logits, such as 1.

    Args:
        c: The weight of the margin against the size of the perturbation; 10 by default.
        kappa: The confidence, in logits, by which the wrong class should lead; 0 by default.
        steps: Steps of Adam; 50 by default.
        step_size: The rate of Adam, in units of the space below; 6e-4 by default.
        space: ``"tanh"`` moves u in x' = (tanh u + 1) / 2 (the default), ``"pixel"`` moves the
            pixels themselves, which go about twice as far.
        eot: Draws of the model's noise behind every gradient and judgement; by default the model
            decides: 5 if it is randomised, else 1.
        goal: What counts as success: ``"untargeted"`` (the default), ``"targeted"`` or
            ``"runner_up"``; see :class:`Attack`.
        targets: How targets of a targeted attack are chosen; see :class:`Attack`.
        generator: Draws random targets. By default it starts from the system's entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown.

    Example::

        from enresnet.attacks import CarliniWagner

        attack = CarliniWagner(c=10, steps=50, space="pixel")
        attacked = attack(model, images, labels)
    """

    def __init__(
        self,
        *,
        c: float = 10.0,
        kappa: float = 0.0,
        steps: int = 50,
        step_size: float = 6e-4,
        space: Space = "tanh",
        eot: int | None = None,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=eot, goal=goal, targets=targets, generator=generator)
        self.c = checks.number("c", c, low=0)
        self.kappa = checks.number("kappa", kappa, low=0)
        self.steps = checks.integer("steps", steps, low=1)
        self.step_size = checks.number("step_size", step_size, low=0)
        self.space = checks.choice("space", space, SPACES)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        steps = "" if self.steps == 50 else str(self.steps)
        kappa = f"_kappa{self.kappa:g}" if self.kappa else ""
        return with_suffixes(f"cw{steps}{'_pixel' * (self.space == 'pixel')}{kappa}", "linf", self)

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs."""
        return (self.steps + 1) * self.draws

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        best = _Best(batch.images)
        gradient = self._look(batch, best, batch.images)
        result, rows = best.point, best.rows_to_improve(self.kappa, independent=batch.independent)
        if len(rows):
            result[rows] = self._descend(batch.rows(rows), best.narrowed(rows), gradient[rows])
        return result

    def _descend(self, batch: Batch, best: _Best, gradient: Tensor) -> Tensor:
        """Return the best points on the way down from the clean images, whose gradient is given."""
        path = _Tanh(batch.images) if self.space == "tanh" else _Pixel(batch.images)
        adam, point = _Adam(path.variable, self.step_size), batch.images
        for step in range(self.steps):
            if step > 0:
                gradient = self._look(batch, best, point)
            size = _gradient_of_largest(point - batch.images)
            adam.descend(_bounded(path.pulled_back(self.c * gradient + size)))
            point = path.point()
        verdict = _Verdict(batch, self.kappa)
        with torch.no_grad():
            for _ in range(batch.eot):
                verdict(batch.logits(point))
        best.offer(point, verdict)
        return best.point

    def _look(self, batch: Batch, best: _Best, point: Tensor) -> Tensor:
        """Return the hinge's gradient, and offer the point."""
        verdict = _Verdict(batch, self.kappa)
        gradient = batch.gradient(verdict, point)
        best.offer(point, verdict)
        return gradient


class _Verdict:
    """The hinge max(-kappa, margin) of each example; remembers what it saw over the draws."""

    def __init__(self, batch: Batch, kappa: float) -> None:
        self._batch, self._kappa = batch, kappa
        self._missed: list[Tensor] = []
        self._hinges: list[Tensor] = []

    def __call__(self, logits: Tensor) -> Tensor:
        hinge = self._batch.margin(logits).clamp(min=-self._kappa)
        self._missed.append(~self._batch.fooled(logits))
        self._hinges.append(hinge.detach())
        return hinge

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the share of draws in which each example was not fooled, and the mean hinge."""
        missed, hinges = torch.stack(self._missed), torch.stack(self._hinges)
        return missed.float().mean(dim=0), hinges.float().mean(dim=0)


class _Adam:
    """Adam (Kingma and Ba, 2015), entry by entry, so that no example depends on another."""

    def __init__(self, variable: Tensor, step_size: float) -> None:
        self._variable, self._step_size = variable, min(step_size, LARGEST_STEP)
        self._mean, self._square = torch.zeros_like(variable), torch.zeros_like(variable)
        self._steps = 0

    def descend(self, gradient: Tensor) -> None:
        beta1, beta2 = 0.9, 0.999
        self._steps += 1
        self._mean.lerp_(gradient, 1 - beta1)
        self._square.lerp_(gradient.square(), 1 - beta2)
        mean = self._mean / (1 - beta1**self._steps)
        root = (self._square / (1 - beta2**self._steps)).sqrt_()
        self._variable.addcdiv_(mean, root.add_(1e-8), value=-self._step_size)


class _Tanh:
    """x' = x + (tanh u - tanh u_0) / 2, which is (tanh u + 1) / 2 but for pixels at the border."""

    def __init__(self, images: Tensor) -> None:
        self._images = images
        start = _at_least_float32(images).clamp(BORDER, 1 - BORDER) * 2 - 1
        self.variable = start.atanh()
        self._start = self.variable.tanh()

    def point(self) -> Tensor:
        change = (self.variable.tanh() - self._start) / 2
        return (self._images + change).clamp_(0, 1).to(self._images.dtype)

    def pulled_back(self, gradient: Tensor) -> Tensor:
        # Straight through the clip: a pixel pushed beyond the border can come back.
        return gradient.to(self.variable.dtype) * (1 - self.variable.tanh().square()) / 2


class _Pixel:
    """x' = x + u, clipped to [0, 1]."""

    def __init__(self, images: Tensor) -> None:
        self._images = images
        self.variable = torch.zeros_like(_at_least_float32(images))

    def point(self) -> Tensor:
        point = (self._images + self.variable).clamp_(0, 1)
        self.variable.copy_(point - self._images)
        return point.to(self._images.dtype)

    def pulled_back(self, gradient: Tensor) -> Tensor:
        return gradient.to(self.variable.dtype)


class _Best:
    """The best point so far for each example."""

    def __init__(self, images: Tensor) -> None:
        self._images = images
        self.point = images.clone()
        # Smaller is better; the first row decides first.
        self._key = torch.full((3, len(images)), torch.inf, device=images.device)

    def rows_to_improve(self, kappa: float, *, independent: bool) -> Tensor:
        """Return all but those fooled, with all confidence, by the clean image itself.

        None is better than that, so they can leave; where images of a batch meet, all stay.
        """
        missed, hinge, size = self._key
        done = (missed == 0) & (hinge <= -kappa) & (size == 0)
        return (~done if independent else torch.ones_like(done)).nonzero().squeeze(1)

    def narrowed(self, rows: Tensor) -> _Best:
        """Return some of the examples."""
        part = _Best(self._images[rows])
        part.point, part._key = self.point[rows], self._key[:, rows]
        return part

    def offer(self, point: Tensor, verdict: _Verdict) -> None:
        """Take each example's point if it is better."""
        missed, hinge = verdict.means()
        size = (point - self._images).abs().flatten(1).amax(dim=1).float()
        key = torch.stack([missed, hinge, size])
        better = _lexicographically_less(key, self._key)
        self.point[better] = point[better]
        self._key[:, better] = key[:, better]


def _lexicographically_less(a: Tensor, b: Tensor) -> Tensor:
    less, equal = a < b, a == b
    return less[0] | (equal[0] & (less[1] | (equal[1] & less[2])))


def _gradient_of_largest(change: Tensor) -> Tensor:
    """Return the gradient of each example's largest |change|, shared where several are largest."""
    size = change.abs().flatten(1)
    largest = size == size.amax(dim=1, keepdim=True)
    share = largest / largest.sum(dim=1, keepdim=True)
    return change.sign() * share.view_as(change)


def _bounded(gradient: Tensor) -> Tensor:
    """Return a gradient that Adam can take; what is no number (0 times infinity) is 0."""
    return gradient.nan_to_num_(nan=0.0).clamp_(-LARGEST_GRADIENT, LARGEST_GRADIENT)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
