r"""Multi-level Monte Carlo (Giles): most paths on coarse steps, few on fine ones (Sec. 5).

.. math:: E[P_K] = E[P_0] + \sum_{l=1}^K E[P_l - P_{l-1}], \qquad
          n_l = \frac{2}{\epsilon^2} \sqrt{V_l / C_l} \sum_k \sqrt{V_k C_k}

P_l is f at the end of a path of 2^l steps. The two paths of a difference share their Brownian
motion: a coarse step takes the sum of the two fine increments, so the difference has a small
variance V_l. Half the squared error is allowed to the variance, half to the bias, which is judged
from the last differences. Plain Monte Carlo takes all paths on the finest level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.pde.particles import BATCH, Function
from enresnet.pde.spectral import Velocity

PILOT = 500  # paths of a level before its variance is known
DEEPEST = 14


@dataclass(frozen=True)
class Level:
    """The estimate of one level of the sum."""

    steps: int
    samples: int
    mean: float
    variance: float
    cost: int  # steps of one sample, of both its paths

    def to_json(self) -> dict[str, float]:
        """Return plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class MultilevelEstimate:
    """An estimate of u(x, 0), as :func:`multilevel` returns it.

    Attributes:
        mean: The estimate.
        standard_error: Its standard error.
        bias: Its bias, as estimated from the last differences.
        epsilon: The root mean square error that was asked for.
        cost: The number of Euler steps of all paths.
        levels: The levels, from the coarsest.

    Example::

        import torch
        from enresnet.pde import Sampler, multilevel

        sampler = Sampler(lambda x, t: -x, lambda x: x[..., 0], torch.tensor([1.0]), sigma=0.3)
        estimate = multilevel(sampler, epsilon=0.05)
        print(estimate.mean, estimate.standard_error, estimate.cost)
    """

    mean: float
    standard_error: float
    bias: float
    epsilon: float
    cost: int
    levels: list[Level]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "levels": [level.to_json() for level in self.levels]}


class Sampler:
    r"""Draws differences P_l - P_(l-1) at one point; both paths share their Brownian motion.

    P_l is f at the end of a path of :math:`dX = F(X, t)\,dt + \sigma\,dB` over [0, 1] in 2^l Euler
    steps.

    Args:
        velocity: F, from points and a time to vectors.
        values: f, from points to values.
        point: Where the paths start, x.
        sigma: The diffusion coefficient; at least 0.
        generator: Draws the noise. By default it starts from the system's entropy.

    Shape:
        - point: d
        - points that velocity and values get: N x d; results N x d and N

    Raises:
        TypeError: ``sigma`` or ``generator`` has the wrong type.
        ValueError: ``point`` is not a floating-point vector, or ``sigma`` is negative.

    Example::

        import torch
        from enresnet.pde import Sampler

        sampler = Sampler(lambda x, t: -x, lambda x: x[..., 0], torch.tensor([1.0]), sigma=0.3)
        differences = sampler.differences(3, 1000)  # 1000 draws, 8 steps against 4
    """

    def __init__(
        self,
        velocity: Velocity,
        values: Function,
        point: Tensor,
        *,
        sigma: float,
        generator: torch.Generator | None = None,
    ) -> None:
        if not isinstance(point, Tensor) or point.ndim != 1 or not point.is_floating_point():
            raise ValueError("point must be a floating-point vector")
        self.velocity, self.values, self.point = velocity, values, point
        self.sigma = checks.number("sigma", sigma, low=0)
        self.generator = checked_generator(generator)

    def sums(self, level: int, count: int, *, coupled: bool = True) -> Tensor:
        """Return the number, the sum and the sum of squares of ``count`` draws."""
        together = max(1, BATCH // len(self.point))
        total = torch.zeros(3, dtype=torch.float64)
        for start in range(0, count, together):
            drawn = self.differences(level, min(together, count - start), coupled=coupled).cpu()
            total += torch.stack([torch.tensor(len(drawn)), drawn.sum(), (drawn**2).sum()])
        return total

    def differences(self, level: int, count: int, *, coupled: bool = True) -> Tensor:
        """Return ``count`` draws of P_l - P_(l-1), or of P_l alone at level 0 or uncoupled."""
        steps = 2**level
        step = 1 / steps
        width = self.sigma * math.sqrt(step)
        fine = self.point.expand(count, -1)
        coarse = fine
        for number in range(0, steps, 2 if level else 1):
            total: Tensor | float = 0.0
            for half in range(2 if level else 1):
                draw = torch.randn(fine.shape, generator=self.generator, dtype=fine.dtype).to(
                    fine.device
                )
                time = (number + half) * step
                fine = fine + step * self.velocity(fine, time) + width * draw
                total = total + width * draw
            if level and coupled:
                coarse = coarse + 2 * step * self.velocity(coarse, number * step) + total
        found = self.values(fine).double()
        return found - self.values(coarse).double() if level and coupled else found


def multilevel(sampler: Sampler, *, epsilon: float) -> MultilevelEstimate:
    """Return E[f(X_1)] to a root mean square error of about ``epsilon``, by Giles' algorithm.

    Levels are added until the estimated bias is small enough; at least 4.

    Args:
        sampler: Draws the paths.
        epsilon: The root mean square error; above 0.

    Returns:
        The estimate, with its levels and its cost in Euler steps.

    Raises:
        TypeError: ``epsilon`` is not a number.
        ValueError: ``epsilon`` is not above 0, or so small that paths of 2^14 steps do not reach
            it.

    Example::

        import torch
        from enresnet.pde import Sampler, multilevel

        sampler = Sampler(lambda x, t: -x, lambda x: x[..., 0], torch.tensor([1.0]), sigma=0.3)
        print(multilevel(sampler, epsilon=0.05).mean)  # about exp(-1) = 0.37
    """
    epsilon = _positive(epsilon)
    totals: list[Tensor] = []  # count, sum, sum of squares; one a level
    wanted: list[int] = []
    while True:
        totals.append(torch.zeros(3, dtype=torch.float64))
        wanted.append(PILOT)
        while any(int(t[0]) < n for t, n in zip(totals, wanted, strict=True)):
            for level, (sums, n) in enumerate(zip(totals, wanted, strict=True)):
                if (missing := n - int(sums[0])) > 0:
                    sums += sampler.sums(level, missing)
            levels = [
                _level(2**number, sums, cost=2**number + 2**number // 2)
                for number, sums in enumerate(totals)
            ]
            share = sum(math.sqrt(level.variance * level.cost) for level in levels)
            wanted = [
                max(
                    PILOT,
                    math.ceil(2 / epsilon**2 * math.sqrt(level.variance / level.cost) * share),
                )
                for level in levels
            ]
        bias = _bias([level.mean for level in levels])
        if len(levels) > 3 and bias < epsilon / math.sqrt(2):
            break
        if len(levels) > DEEPEST:
            raise ValueError(
                f"epsilon must be larger: {2**DEEPEST} steps leave a bias of {bias:.2g}, found "
                f"{epsilon:g}"
            )
    return MultilevelEstimate(
        mean=sum(level.mean for level in levels),
        standard_error=math.sqrt(sum(level.variance / level.samples for level in levels)),
        bias=bias,
        epsilon=epsilon,
        cost=sum(level.samples * level.cost for level in levels),
        levels=levels,
    )


def plain(sampler: Sampler, *, epsilon: float, level: int) -> MultilevelEstimate:
    """Return the mean over paths of 2^level steps alone, as many as ``epsilon`` needs."""
    epsilon = _positive(epsilon)
    checks.integer("level", level, low=0)
    sums = sampler.sums(level, PILOT, coupled=False)
    pilot = _level(2**level, sums, cost=2**level)
    count = max(PILOT, math.ceil(2 / epsilon**2 * pilot.variance))
    sums += sampler.sums(level, count - PILOT, coupled=False)
    one = _level(2**level, sums, cost=2**level)
    return MultilevelEstimate(
        one.mean,
        math.sqrt(one.variance / count),
        math.nan,
        epsilon,
        count * one.cost,
        [one],
    )


def _positive(epsilon: float) -> float:
    if not checks.number("epsilon", epsilon, low=0) > 0:
        raise ValueError("epsilon must be above 0, found 0")
    return float(epsilon)


def _level(steps: int, sums: Tensor, *, cost: int) -> Level:
    count, total, squares = sums.tolist()
    mean = total / count
    variance = max(squares / count - mean**2, 0.0) * count / (count - 1)
    return Level(steps, int(count), mean, variance, cost)


def _bias(means: list[float]) -> float:
    """Return the bias, of weak order 1: the sum of the differences to come, each half the last."""
    last = [abs(mean) / 2**back for back, mean in enumerate(reversed(means[1:][-2:]))]
    return max(last, default=math.inf)
