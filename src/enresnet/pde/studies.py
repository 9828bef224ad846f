r"""Particles and multi-level Monte Carlo, measured against the spectral solution.

One smooth problem serves both, on the box of length 2 pi:

.. math:: F = (\sin x_2 + \cos t,\; \cos x_1 - \tfrac12 \sin(x_1 + x_2)), \qquad
          f = \sin x_1 \cos x_2 + \tfrac12 \cos(2 x_1 + x_2)

Measured are the agreement in standard errors, the weak order in the time step, the order in the
number of paths, and the cost of a wanted error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enresnet import checks
from enresnet.pde.grid import Grid
from enresnet.pde.multilevel import MultilevelEstimate, Sampler, multilevel, plain
from enresnet.pde.particles import METHODS, Estimate, feynman_kac, slope
from enresnet.pde.spectral import solve_backward
from enresnet.progress import progress_bar
from enresnet.randomness import named_generator

SIGMA = 0.5
REFERENCE_STEPS = 200


def velocity(points: Tensor, time: float) -> Tensor:
    """Return the smooth wind of the study."""
    x, y = points.unbind(dim=-1)
    return torch.stack([y.sin() + math.cos(time), x.cos() - 0.5 * (x + y).sin()], dim=-1)


def terminal(points: Tensor) -> Tensor:
    """Return f."""
    x, y = points.unbind(dim=-1)
    return x.sin() * y.cos() + 0.5 * (2 * x + y).cos()


def reference(sigma: float = SIGMA, size: int = 48) -> tuple[Grid, Tensor]:
    """Return a grid and the spectral solution u(x, 0) on it, exact to about 1e-8."""
    grid = Grid(size=size, length=2 * math.pi)
    values = terminal(grid.points)
    return grid, solve_backward(grid, velocity, values, sigma=sigma, steps=REFERENCE_STEPS)[0]


@dataclass(frozen=True)
class ParticleStudy:
    """What the particles of the study gave."""

    points: list[list[float]]
    exact: list[float]
    estimates: dict[str, Estimate]  # by method, equal numbers of paths
    scores: dict[str, list[float]]  # deviations in standard errors
    weak_steps: list[int]
    weak_errors: list[float]
    weak_bars: list[float]
    weak_order: float
    path_numbers: list[int]
    path_errors: dict[str, list[float]]  # root mean square over points and repetitions
    path_orders: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "estimates": {k: e.to_json() for k, e in self.estimates.items()}}


def study_particles(
    *,
    sigma: float = SIGMA,
    steps: int = 64,
    paths: int = 16_384,
    points: int = 6,
    repetitions: int = 12,
    seed: int = 0,
) -> ParticleStudy:
    """Compare particles with the spectral solution at random points of the grid."""
    for name, value in (("points", points), ("repetitions", repetitions)):
        checks.integer(name, value, low=1)
    checks.integer("paths", paths, low=1024)
    checks.integer("steps", steps, low=2)
    if not checks.number("sigma", sigma, low=0) > 0:
        raise ValueError("sigma must be above 0: without noise there is nothing to average")
    grid, solution = reference(sigma)
    chosen = torch.randint(
        grid.size**2, (points,), generator=named_generator(seed, "points of the particle study")
    )
    places, exact = grid.points.reshape(-1, 2)[chosen], solution.flatten()[chosen]
    paths = paths // 32 * 32

    def run(steps: int, paths: int, method: str, purpose: str) -> Estimate:
        return feynman_kac(
            velocity,
            terminal,
            places,
            sigma=sigma,
            steps=steps,
            paths=paths,
            method=method,
            generator=named_generator(seed, purpose),
        )

    def extrapolated(paths: int, method: str) -> Estimate:
        """Take out the first order of Euler's bias (Talay and Tubaro)."""
        fine = run(steps, paths, method, f"fine {method}")
        coarse = run(steps // 2, paths, method, f"coarse {method}")
        return Estimate(
            2 * fine.mean - coarse.mean,
            (4 * fine.standard_error**2 + coarse.standard_error**2).sqrt(),
            fine.paths + coarse.paths,
            fine.path_steps + coarse.path_steps,
        )

    with progress_bar("particles", 3 + 4 + 5 * repetitions * len(METHODS)) as advance:
        estimates = {}
        for method in METHODS:
            few = paths if method == "independent" else paths // 4
            estimates[method] = extrapolated(few // 32 * 32, method)
            advance(1)
        scores = {
            method: ((found.mean - exact) / found.standard_error).tolist()
            for method, found in estimates.items()
        }
        weak_steps = [2, 4, 8, 16]
        weak = []
        for count in weak_steps:
            # Quasi-random paths: the bias is to be seen, not the noise.
            weak.append(run(count, 16_384, "quasi", f"weak {count}"))
            advance(1)
        errors = [float((found.mean - exact).square().mean().sqrt()) for found in weak]
        bars = [float(found.standard_error.square().mean().sqrt()) for found in weak]
        numbers = [256, 1024, 4096, 16_384]
        path_errors: dict[str, list[float]] = {}
        # The mean of the Euler scheme itself, so that only the error of sampling is left.
        settled = run(8, 16_384 * 4, "quasi", "settled").mean
        for method in METHODS:
            path_errors[method] = []
            for count in numbers:
                squares = []
                for repetition in range(repetitions):
                    found = run(8, count, method, f"{method} {count} {repetition}")
                    squares.append((found.mean - settled).square().mean())
                    advance(1)
                path_errors[method].append(float(torch.stack(squares).mean().sqrt()))
    return ParticleStudy(
        places.tolist(),
        exact.tolist(),
        estimates,
        scores,
        weak_steps,
        errors,
        bars,
        slope([1 / count for count in weak_steps], errors),
        numbers,
        path_errors,
        {k: slope([float(n) for n in numbers], e) for k, e in path_errors.items()},
    )


@dataclass(frozen=True)
class Cost:
    """What a wanted error costs with and without levels, in Euler steps."""

    epsilon: float
    multilevel: MultilevelEstimate
    plain: MultilevelEstimate
    multilevel_error: float  # root mean square against the spectral solution
    plain_error: float

    @property
    def gain(self) -> float:
        """How many times cheaper the levels are."""
        return self.plain.cost / self.multilevel.cost

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "epsilon": self.epsilon,
            "gain": self.gain,
            "multilevel": self.multilevel.to_json(),
            "plain": {**self.plain.to_json(), "bias": None},
            "multilevel_error": self.multilevel_error,
            "plain_error": self.plain_error,
        }


@dataclass(frozen=True)
class MultilevelStudy:
    """Cost against error for both ways."""

    point: list[float]
    exact: float
    rows: list[Cost]
    multilevel_order: float  # of the cost in 1 / epsilon
    plain_order: float
    variance_order: float  # of V_l in the step
    mean_order: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "rows": [row.to_json() for row in self.rows]}


def study_multilevel(
    *,
    sigma: float = SIGMA,
    epsilons: Sequence[float] = (2e-2, 1e-2, 5e-3, 2e-3),
    repetitions: int = 4,
    seed: int = 0,
) -> MultilevelStudy:
    """Measure cost against error at one point, both ways with the same target.

    Plain Monte Carlo is given the number of steps that the levels found to be needed.
    """
    checks.integer("repetitions", repetitions, low=1)
    if len(epsilons) < 2:
        raise ValueError(f"epsilons must be at least two, found {list(epsilons)}")
    if not checks.number("sigma", sigma, low=0) > 0:
        raise ValueError("sigma must be above 0: without noise there is nothing to average")
    grid, solution = reference(sigma)
    place = (11, 29)
    point, exact = grid.points[place], float(solution[place])
    rows = []
    with progress_bar("levels", 2 * len(epsilons) * repetitions) as advance:
        for epsilon in sorted(epsilons, reverse=True):
            found: list[MultilevelEstimate] = []
            others: list[MultilevelEstimate] = []
            for repetition in range(repetitions):
                generator = named_generator(seed, f"levels {epsilon} {repetition}")
                sampler = Sampler(velocity, terminal, point, sigma=sigma, generator=generator)
                found.append(multilevel(sampler, epsilon=epsilon))
                advance(1, f"epsilon = {epsilon:g}")
                deepest = len(found[-1].levels) - 1
                others.append(plain(sampler, epsilon=epsilon, level=deepest))
                advance(1, f"epsilon = {epsilon:g}")
            middle = sorted(range(repetitions), key=lambda i: found[i].cost)[repetitions // 2]
            rows.append(
                Cost(
                    epsilon,
                    found[middle],
                    others[middle],
                    _rms([one.mean - exact for one in found]),
                    _rms([one.mean - exact for one in others]),
                )
            )
    sizes = [1 / row.epsilon for row in rows]
    levels = rows[-1].multilevel.levels[1:]
    lengths = [1 / level.steps for level in levels]
    return MultilevelStudy(
        point.tolist(),
        exact,
        rows,
        slope(sizes, [row.multilevel.cost for row in rows]),
        slope(sizes, [row.plain.cost for row in rows]),
        slope(lengths, [level.variance for level in levels]),
        slope(lengths, [abs(level.mean) for level in levels]),
    )


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))
