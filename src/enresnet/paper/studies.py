"""Particles and multi-level Monte Carlo, measured against the spectral solution.

Both solve the smooth problem of :mod:`enresnet.pde.smooth_problem`. Measured are the agreement in
standard errors, the weak order in the time step, the order in the number of paths, and the cost of
a wanted error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from enresnet.common import checks
from enresnet.common.progress import progress_bar
from enresnet.common.randomness import named_generator
from enresnet.pde import Estimate, MultilevelEstimate, Sampler, feynman_kac, multilevel
from enresnet.pde.mlmc import plain
from enresnet.pde.particles import METHODS, SCRAMBLES, Method, slope
from enresnet.pde.smooth_problem import SIGMA, reference, terminal, velocity
from enresnet.report.findings import Cost, MultilevelStudy, ParticleStudy, WeakOrder

PATHS_MULTIPLE = 2 * SCRAMBLES  # what every kind of paths can be divided by


class Places:
    """Random points of the grid where particles are compared with the spectral solution."""

    def __init__(self, *, sigma: float = SIGMA, points: int = 6, seed: int = 0) -> None:
        checks.integer("points", points, low=1)
        self.sigma, self._seed = _noisy(sigma), seed
        grid, solution = reference(sigma)
        generator = named_generator(seed, "points of the particle study")
        chosen = torch.randint(grid.size**2, (points,), generator=generator)
        self.points, self.exact = grid.points.reshape(-1, 2)[chosen], solution.flatten()[chosen]

    def estimate(self, steps: int, paths: int, method: Method, purpose: str) -> Estimate:
        """Return the estimate by particles; ``purpose`` names their noise."""
        return feynman_kac(
            velocity,
            terminal,
            self.points,
            sigma=self.sigma,
            steps=steps,
            paths=paths // PATHS_MULTIPLE * PATHS_MULTIPLE,
            method=method,
            generator=named_generator(self._seed, purpose),
        )

    def extrapolated(self, steps: int, paths: int, method: Method, purpose: str = "") -> Estimate:
        """Return the estimate without the first order of Euler's bias (Talay and Tubaro)."""
        fine = self.estimate(steps, paths, method, f"fine {method}{purpose}")
        coarse = self.estimate(steps // 2, paths, method, f"coarse {method}{purpose}")
        return Estimate(
            2 * fine.mean - coarse.mean,
            (4 * fine.standard_error**2 + coarse.standard_error**2).sqrt(),
            fine.paths + coarse.paths,
            fine.path_steps + coarse.path_steps,
        )

    def scores(self, found: Estimate) -> list[float]:
        """Return the deviations from the spectral solution in standard errors."""
        deviations: list[float] = ((found.mean - self.exact) / found.standard_error).tolist()
        return deviations


def weak_order(places: Places) -> WeakOrder:
    """Measure the bias with quasi-random paths, whose noise is below it."""
    counts = [4, 8, 16, 32]
    found = [places.estimate(count, 16_384, "quasi", f"weak {count}") for count in counts]
    return WeakOrder(
        counts,
        [float((one.mean - places.exact).square().mean().sqrt()) for one in found],
        [float(one.standard_error.square().mean().sqrt()) for one in found],
    )


def study_particles(
    *,
    sigma: float = SIGMA,
    steps: int = 64,
    paths: int = 16_384,
    points: int = 6,
    repetitions: int = 12,
    seed: int = 0,
) -> ParticleStudy:
    """Compare Feynman-Kac particles with the spectral solution at random points of the grid.

    Measured are the deviations in standard errors, the weak order of Euler-Maruyama, and the order
    in the number of paths, for independent, antithetic and quasi-random paths. About half a minute.

    Args:
        sigma: The diffusion coefficient; above 0, 0.5 by default.
        steps: Euler steps of the finer of the two runs that are extrapolated; even, 64 by default.
        paths: Independent paths from each point; at least 1024, 16,384 by default. The other kinds
            take a quarter.
        points: The number of random points; 6 by default.
        repetitions: Runs for each number of paths; 12 by default.
        seed: Fixes all that is drawn at random; 0 by default.

    Returns:
        The estimates, their errors and the orders, by method.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or ``steps`` is odd.

    Example::

        from enresnet.paper import study_particles

        study = study_particles(paths=1024, steps=8, points=2, repetitions=2)
        print(study.weak.order, study.path_orders)  # about 1; -0.5 for independent paths
    """
    checks.integer("repetitions", repetitions, low=1)
    checks.integer("paths", paths, low=1024)
    if checks.integer("steps", steps, low=2) % 2:
        raise ValueError(f"steps must be even, since half as many are taken too; found {steps}")
    places = Places(sigma=sigma, points=points, seed=seed)
    numbers = [256, 1024, 4096, 16_384]
    with progress_bar("particles", 4 + len(numbers) * len(METHODS) * repetitions) as advance:
        estimates: dict[str, Estimate] = {}
        for method in METHODS:
            few = paths if method == "independent" else paths // 4
            estimates[method] = places.extrapolated(steps, few, method)
            advance(1)
        weak = weak_order(places)
        advance(1)
        # The mean of the Euler scheme itself, so that only the error of sampling is left.
        settled = places.estimate(8, 16_384 * 4, "quasi", "settled").mean
        path_errors: dict[str, list[float]] = {}
        for method in METHODS:
            path_errors[method] = []
            for count in numbers:
                squares = []
                for repetition in range(repetitions):
                    found = places.estimate(8, count, method, f"{method} {count} {repetition}")
                    squares.append((found.mean - settled).square().mean())
                    advance(1)
                path_errors[method].append(float(torch.stack(squares).mean().sqrt()))
    return ParticleStudy(
        places.points.tolist(),
        places.exact.tolist(),
        estimates,
        {method: places.scores(found) for method, found in estimates.items()},
        weak,
        numbers,
        path_errors,
        {k: slope([float(n) for n in numbers], e) for k, e in path_errors.items()},
    )


def study_multilevel(
    *,
    sigma: float = SIGMA,
    epsilons: Sequence[float] = (2e-2, 1e-2, 5e-3, 2e-3),
    repetitions: int = 4,
    seed: int = 0,
) -> MultilevelStudy:
    """Compare the cost of multi-level and of plain Monte Carlo at one point, for the same errors.

    Plain Monte Carlo takes the number of steps that the levels turned out to need.

    Args:
        sigma: The diffusion coefficient; above 0, 0.5 by default.
        epsilons: The root mean square errors that are asked for; at least two, all different.
        repetitions: Runs of plain Monte Carlo for each error; 4 by default. The levels, which are
            cheap, run five times as often.
        seed: Fixes all that is drawn at random; 0 by default.

    Returns:
        A row for each epsilon: cost in Euler steps, time, and the error that was measured.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or two ``epsilons`` are equal.

    Example::

        from enresnet.paper import study_multilevel

        study = study_multilevel(epsilons=(0.1, 0.05), repetitions=1)
        for row in study.rows:
            print(row.epsilon, row.gain)  # how many times fewer Euler steps the levels take
    """
    checks.integer("repetitions", repetitions, low=1)
    if len(set(epsilons)) < 2 or len(set(epsilons)) < len(epsilons):
        raise ValueError(f"epsilons must be at least two and differ, found {list(epsilons)}")
    grid, solution = reference(_noisy(sigma))
    place = (11, 29)
    point, exact = grid.points[place], float(solution[place])
    rows = []
    with progress_bar("levels", 6 * len(epsilons) * repetitions) as advance:
        for epsilon in sorted(epsilons, reverse=True):
            found: list[_Timed] = []
            others: list[_Timed] = []
            for repetition in range(5 * repetitions):
                generator = named_generator(seed, f"levels {epsilon} {repetition}")
                sampler = Sampler(velocity, terminal, point, sigma=sigma, generator=generator)
                found.append(_timed(partial(multilevel, sampler, epsilon=epsilon)))
                advance(1, f"epsilon = {epsilon:g}")
                if repetition < repetitions:
                    deepest = len(found[-1].estimate.levels) - 1
                    others.append(_timed(partial(plain, sampler, epsilon=epsilon, level=deepest)))
                    advance(1, f"epsilon = {epsilon:g}")
            rows.append(
                Cost(
                    epsilon,
                    _middle(found),
                    _middle(others),
                    _rms([one.estimate.mean - exact for one in found]),
                    _rms([one.estimate.mean - exact for one in others]),
                    median(one.seconds for one in found),
                    median(one.seconds for one in others),
                )
            )
    levels = rows[-1].multilevel.levels[1:]
    lengths = [1 / level.steps for level in levels]
    return MultilevelStudy(
        point.tolist(),
        exact,
        rows,
        rows[-1].multilevel.cost / rows[0].multilevel.cost,
        rows[-1].plain.cost / rows[0].plain.cost,
        slope(lengths, [level.variance for level in levels]),
    )


def _noisy(sigma: float) -> float:
    if not checks.number("sigma", sigma, low=0) > 0:
        raise ValueError("sigma must be above 0: without noise there is nothing to average")
    return sigma


@dataclass(frozen=True)
class _Timed:
    estimate: MultilevelEstimate
    seconds: float


def _timed(run: Callable[[], MultilevelEstimate]) -> _Timed:
    start = time.perf_counter()
    return _Timed(run(), time.perf_counter() - start)


def _middle(found: list[_Timed]) -> MultilevelEstimate:
    return sorted(found, key=lambda one: one.estimate.cost)[len(found) // 2].estimate


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))
