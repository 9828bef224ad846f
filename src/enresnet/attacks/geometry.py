r"""The ball an attack may not leave: steps, projections and random points, apart from the loop.

.. math:: B = \{x' \in [0, 1]^d : \|x' - x\|_p \le \epsilon\}, \qquad p = \infty, 2

Points move in float32 or wider, so that small steps are not lost in bfloat16; :meth:`Ball.settle`
rounds them to the images' own type, towards x, so that membership is exact to the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, Self

import torch
from torch import Tensor

from enresnet.attacks.losses import widened

HAIR = 1e-13  # of a radius: more than float64 loses in the sum of the squares of an image


class Ball(ABC):
    """The epsilon ball around each of the images, cut to [0, 1]."""

    def __init__(self, images: Tensor, epsilon: float) -> None:
        self.images = images
        self.centre = images.to(torch.promote_types(images.dtype, torch.float32))
        self.epsilon = epsilon

    def rows(self, chosen: Tensor) -> Self:
        """Return the balls of some of the images."""
        return type(self)(self.images[chosen.to(self.images.device)], self.epsilon)

    @abstractmethod
    def ascend(self, point: Tensor, gradient: Tensor, size: float) -> Tensor:
        """Return the point of the ball nearest to a steepest step of length ``size``."""

    def ascend_by(self, point: Tensor, gradient: Tensor, sizes: Tensor) -> Tensor:
        """Return what :meth:`ascend` does with a length of its own for every example."""
        step = self.steepest(gradient) * _expand(sizes, point).to(point.dtype)
        return self.nearest(point + step)

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the step of length 1 that raises the loss most."""

    @abstractmethod
    def nearest(self, point: Tensor) -> Tensor:
        """Return the nearest point of the ball and of [0, 1]."""

    @abstractmethod
    def random_point(self, seeds: Tensor) -> Tensor:
        """Return a random point of each ball, fixed by that example's seed."""

    def gaussian_point(self, seeds: Tensor, scale: float) -> Tensor:
        """Return the images plus Gaussian noise, clipped to [0, 1], fixed by each one's seed."""
        noise = _draw(self.centre, seeds, lambda x, g: x.normal_(generator=g))
        return self.centre.add(noise, alpha=scale).clamp_(0, 1)

    @abstractmethod
    def settle(self, point: Tensor) -> Tensor:
        """Return ``point`` in the images' type, inside the ball to the last bit."""


class Linf(Ball):
    """The cube: every pixel moves by at most epsilon."""

    def __init__(self, images: Tensor, epsilon: float) -> None:
        super().__init__(images, epsilon)
        wide = widened(images)
        self.low = _rounded_towards(_moved_inside(wide, -epsilon).clamp_(min=0), self.centre)
        self.high = _rounded_towards(_moved_inside(wide, epsilon).clamp_(max=1), self.centre)

    def ascend(self, point: Tensor, gradient: Tensor, size: float) -> Tensor:
        """Step by ``size`` in the sign of the gradient (Eqs. 15-16), then clip."""
        return point.add(gradient.sign(), alpha=size).clamp_(self.low, self.high)

    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the sign of the gradient."""
        return gradient.sign()

    def nearest(self, point: Tensor) -> Tensor:
        """Clip every pixel."""
        return point.clamp(self.low, self.high)

    def random_point(self, seeds: Tensor) -> Tensor:
        """Draw each pixel's change uniformly from [-epsilon, epsilon], then clip."""
        change = _draw(self.centre, seeds, lambda x, g: x.uniform_(-1, 1, generator=g))
        return self.centre.add(change, alpha=self.epsilon).clamp_(self.low, self.high)

    def settle(self, point: Tensor) -> Tensor:
        """Round to the images' type; the bounds are exact in the type of the points already."""
        if point.dtype == self.images.dtype:
            return point
        return _rounded_towards(widened(point), self.images)


class L2(Ball):
    """The Euclidean ball over all pixels of an image."""

    def ascend(self, point: Tensor, gradient: Tensor, size: float) -> Tensor:
        """Step by ``size`` along the gradient's direction, project to the ball, clip to [0, 1]."""
        # Clipping moves a pixel towards x, which lies in [0, 1], so it cannot leave the ball.
        return self._project(point.add(_direction(gradient), alpha=size)).clamp_(0, 1)

    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the gradient's direction."""
        return _direction(gradient)

    def nearest(self, point: Tensor) -> Tensor:
        """Project to the ball, then clip."""
        return self._project(point).clamp_(0, 1)

    def random_point(self, seeds: Tensor) -> Tensor:
        """Draw uniformly from the ball.

        The first d coordinates of a uniform point on the sphere in d + 2 dimensions are uniform in
        the ball in d dimensions.
        """
        flat = self.centre.flatten(1)
        normal = _draw(
            flat.new_empty(len(flat), flat.shape[1] + 2), seeds, lambda x, g: x.normal_(generator=g)
        )
        change = _direction(normal)[:, : flat.shape[1]].view_as(self.centre)
        return self._project(self.centre.add(change, alpha=self.epsilon)).clamp_(0, 1)

    def settle(self, point: Tensor) -> Tensor:
        """Shrink in float64 to the exact radius and round every pixel towards x."""
        centre = widened(self.images)
        change = widened(point) - centre
        settled = _rounded_towards(centre + change * self._shrinkage(change), self.images)
        # Where the images' type has no room to round in, as float64 has none, what is left of
        # rounding may still reach out of the ball: there the change shrinks by a little more.
        less = HAIR
        while bool((outside := self._reaches_out(settled)).any()):
            less *= 2
            shorter = change * self._shrinkage(change) * max(0.0, 1 - less)
            nearer = _rounded_towards(centre + shorter, self.images)
            settled = torch.where(_expand(outside, settled), nearer, settled)
        return settled

    def _reaches_out(self, point: Tensor) -> Tensor:
        """Return where a point is not inside the ball by more than sums of squares are rounded."""
        change = widened(point) - widened(self.images)
        return _length(change) > self.epsilon * (1 - HAIR)

    def _project(self, point: Tensor) -> Tensor:
        change = point - self.centre
        return self.centre + change * self._shrinkage(change)

    def _shrinkage(self, change: Tensor) -> Tensor:
        length = _length(change)
        factor = torch.where(length > self.epsilon, self.epsilon / length, 1.0)
        return _expand(factor, change).to(change.dtype)


Norm = Literal["linf", "l2"]
BALLS: dict[str, type[Ball]] = {"linf": Linf, "l2": L2}


def norms_between(point: Tensor, images: Tensor, norm: str) -> Tensor:
    """Return how far each point is from its image, in linf or l2, float64."""
    change = widened(point) - widened(images)
    return _length(change) if norm == "l2" else change.flatten(1).abs().amax(dim=1)


def _rounded_towards(exact: Tensor, images: Tensor) -> Tensor:
    """Return float64 values in the images' type, never farther from the images than they were."""
    rounded = exact.to(images.dtype)
    centre = widened(images)
    overshot = (widened(rounded) - centre).abs() > (exact - centre).abs()
    return torch.where(overshot, torch.nextafter(rounded, images), rounded)


def _moved_inside(wide: Tensor, by: float) -> Tensor:
    """Return the images plus a number, never farther away than that number.

    What rounding does to a sum is itself a number that can be computed exactly (Knuth's two-sum).
    """
    total = wide + by
    part = total - wide
    lost = (wide - (total - part)) + (by - part)  # total + lost is the exact sum
    farther = lost > 0 if by < 0 else lost < 0
    return torch.where(farther, torch.nextafter(total, wide), total)


def _length(x: Tensor) -> Tensor:
    largest, scaled = _scaled(x)
    length: Tensor = torch.linalg.vector_norm(scaled.flatten(1), dim=1)
    return length * largest


def _direction(x: Tensor) -> Tensor:
    """Return each example divided by its length; 0 stays 0."""
    _, scaled = _scaled(x)
    length = _expand(torch.linalg.vector_norm(scaled.flatten(1), dim=1), scaled)
    return torch.where(length > 0, scaled / length, 0.0).to(x.dtype)


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each example's largest entry, and the example divided by it.

    Squares of tiny and of huge entries would vanish or overflow.
    """
    wide = widened(x)
    largest = wide.flatten(1).abs().amax(dim=1)
    column = _expand(largest, wide)
    return largest, torch.where(column > 0, wide / column, 0.0)


def _draw(like: Tensor, seeds: Tensor, fill: Callable[[Tensor, torch.Generator], Tensor]) -> Tensor:
    """Return random numbers in the shape of ``like``, those of an example fixed by its seed alone.

    A stream for each example: its draws do not depend on its batch mates, nor on the batch size.
    """
    generator = torch.Generator()
    draws = torch.empty(like.shape, dtype=like.dtype)
    for row, seed in zip(draws, seeds.tolist(), strict=True):
        fill(row, generator.manual_seed(seed))
    return draws.to(like.device)


def _expand(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))
