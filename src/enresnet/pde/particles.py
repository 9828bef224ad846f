r"""Feynman-Kac by particles: the solution at a point is the mean of f over random paths.

.. math:: u(x, 0) = E[f(X_1) \mid X_0 = x], \qquad dX = F(X, t)\,dt + \sigma\,dB \qquad
          \text{(Eq. 14)}

Euler-Maruyama takes L steps: :math:`X_{l+1} = X_l + F(X_l, t_l)/L + \sigma \sqrt{1/L}\, N(0, I)`,
which is a residual network with noise after each mapping (Sec. 3.1). Its mean is wrong by O(1/L)
(weak order 1), and n independent paths add a standard error of O(n^(-1/2)). Antithetic paths come
in pairs with opposite noise. Quasi-random paths take their noise from a scrambled Sobol sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.pde.spectral import Velocity

Function = Callable[[Tensor], Tensor]
"""From points ... x d to values ..."""

Method = Literal["independent", "antithetic", "quasi"]
"""How the noise of the paths is drawn: independently, in pairs of opposite sign, or by Sobol."""

METHODS: tuple[Method, ...] = get_args(Method)
SCRAMBLES = 16  # independent randomisations of a Sobol sequence, whose spread gives the error
BATCH = 2_000_000  # numbers held at once


@dataclass(frozen=True)
class Estimate:
    """Estimates of u(x, 0) at some points, as :func:`feynman_kac` returns them.

    Attributes:
        mean: The estimate at each point, N values in float64.
        standard_error: Its standard error at each point, N values.
        paths: The number of paths from each point.
        path_steps: The number of Euler steps from each point.

    Example::

        import torch
        from enresnet.pde import feynman_kac

        points = torch.zeros(1, 2)
        estimate = feynman_kac(lambda x, t: -x, lambda x: x.norm(dim=-1), points, sigma=0.5)
        print(estimate.mean, estimate.standard_error)
    """

    mean: Tensor
    standard_error: Tensor
    paths: int
    path_steps: int

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "mean": self.mean.tolist(),
            "standard_error": self.standard_error.tolist(),
            "paths": self.paths,
            "path_steps": self.path_steps,
        }


def euler_maruyama(
    velocity: Velocity, points: Tensor, noise: Iterable[Tensor], *, sigma: float, steps: int
) -> Tensor:
    """Return where points end at time 1 with standard normal ``noise``, one tensor a step."""
    step = 1 / steps
    width = sigma * math.sqrt(step)
    for number, draw in enumerate(noise):
        points = points + step * velocity(points, number * step) + width * draw
    return points


def feynman_kac(
    velocity: Velocity,
    values: Function,
    points: Tensor,
    *,
    sigma: float,
    steps: int = 100,
    paths: int = 10_000,
    method: Method = "independent",
    generator: torch.Generator | None = None,
) -> Estimate:
    """Return u(x, 0) = E[f(X_1) | X_0 = x] at some points, by random paths from each (Eq. 14).

    All points share the noise: their differences are then smoother than their values.

    Args:
        velocity: F, from points and a time in [0, 1] to vectors.
        values: f, from points to values.
        points: Where the paths start, x.
        sigma: The diffusion coefficient; at least 0.
        steps: Euler-Maruyama steps over the time from 0 to 1; 100 by default.
        paths: Paths from each point; 10,000 by default. Even for ``"antithetic"``, a multiple of
            16 for ``"quasi"``.
        method: ``"independent"`` paths (the default), ``"antithetic"`` pairs with opposite noise,
            or ``"quasi"``: 16 scramblings of a Sobol sequence. The standard error is that over
            paths, pairs or scramblings.
        generator: Draws the noise. By default it starts from the system's entropy.

    Shape:
        - points: N x d
        - points that velocity and values get: paths x N x d; results paths x N x d and paths x N
        - mean and standard error of the result: N

    Returns:
        The mean and its standard error at each point.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``points`` is not a finite floating-point tensor N x d, or another argument is
            out of range.

    Example::

        import torch
        from enresnet.pde import feynman_kac

        points = torch.rand(5, 2)
        estimate = feynman_kac(lambda x, t: -x, lambda x: x.norm(dim=-1), points, sigma=0.5)
        print(estimate.mean, estimate.standard_error)
    """
    if not isinstance(points, Tensor) or points.ndim != 2 or not points.is_floating_point():
        raise ValueError("points must be a floating-point tensor N x d")
    if not bool(points.isfinite().all()):
        raise ValueError("points must be finite, found NaN or infinity")
    checks.number("sigma", sigma, low=0)
    checks.integer("steps", steps, low=1)
    checks.choice("method", method, METHODS)
    unit = {"independent": 1, "antithetic": 2, "quasi": SCRAMBLES}[method]
    if checks.integer("paths", paths, low=2 * unit) % unit:
        raise ValueError(f"paths must be a multiple of {unit} for {method} paths, found {paths}")
    generator = checked_generator(generator)
    if method == "quasi":
        return _quasi(velocity, values, points, sigma, steps, paths, generator)
    groups = paths // unit
    together = max(1, BATCH // (unit * points.numel()))
    total = torch.zeros(len(points), dtype=torch.float64, device=points.device)
    squares = torch.zeros_like(total)
    for start in range(0, groups, together):
        count = min(together, groups - start)
        starts = points.unsqueeze(0).expand(unit * count, -1, -1)
        noise = (_draw(count, points, unit == 2, generator) for _ in range(steps))
        ends = euler_maruyama(velocity, starts, noise, sigma=sigma, steps=steps)
        found = values(ends).double().reshape(unit, count, len(points)).mean(dim=0)
        total += found.sum(dim=0)
        squares += (found**2).sum(dim=0)
    mean = total / groups
    variance = (squares / groups - mean**2).clamp(min=0) * groups / (groups - 1)
    return Estimate(mean, (variance / groups).sqrt(), paths, paths * steps)


def _draw(count: int, points: Tensor, mirrored: bool, generator: torch.Generator) -> Tensor:
    """Return one step's noise, the same for all points, and if wanted its mirror image too."""
    draw = torch.randn(count, 1, points.shape[1], generator=generator, dtype=points.dtype)
    draw = draw.to(points.device)
    return torch.cat([draw, -draw]) if mirrored else draw


def _quasi(
    velocity: Velocity,
    values: Function,
    points: Tensor,
    sigma: float,
    steps: int,
    paths: int,
    generator: torch.Generator,
) -> Estimate:
    dimension = points.shape[1]
    if steps * dimension > SobolEngine.MAXDIM:
        raise ValueError(
            f"steps must be at most {SobolEngine.MAXDIM // dimension} for quasi-random paths in "
            f"{dimension} dimensions, found {steps}"
        )
    bridge = _bridge(steps).to(points.device, points.dtype)
    means = []
    for _ in range(SCRAMBLES):
        seed = int(torch.randint(2**31, (1,), generator=generator))
        engine = SobolEngine(steps * dimension, scramble=True, seed=seed)
        uniform = engine.draw(paths // SCRAMBLES, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
        normal = math.sqrt(2) * torch.erfinv(2 * uniform - 1)
        normal = normal.reshape(-1, steps, dimension).to(points.device, points.dtype)
        noise = torch.einsum("sk,pkd->spd", bridge, normal).unsqueeze(2)
        starts = points.unsqueeze(0).expand(len(normal), -1, -1)
        ends = euler_maruyama(velocity, starts, noise, sigma=sigma, steps=steps)
        means.append(values(ends).mean(dim=0))
    stacked = torch.stack(means).double()
    error = stacked.std(dim=0) / math.sqrt(SCRAMBLES)
    return Estimate(stacked.mean(dim=0), error, paths, paths * steps)


def _bridge(steps: int) -> Tensor:
    """Return the orthogonal matrix from Sobol dimensions to increments, the important ones first.

    The first dimensions of a Sobol sequence are the most even. They are given to the principal
    components of the path, the largest of which moves all of it one way.
    """
    times = torch.arange(1, steps + 1, dtype=torch.float64) / steps
    covariance = torch.minimum(times[:, None], times[None, :])
    values, vectors = torch.linalg.eigh(covariance)
    paths = vectors.flip(1) * values.flip(0).clamp(min=0).sqrt()
    increments = torch.diff(paths, dim=0, prepend=torch.zeros(1, steps, dtype=torch.float64))
    return increments * math.sqrt(steps)


def slope(x: list[float], y: list[float]) -> float:
    """Return the slope of the least-squares line through log y against log x."""
    a = torch.tensor(x, dtype=torch.float64).log()
    b = torch.tensor(y, dtype=torch.float64).log()
    a = a - a.mean()
    return float((a * (b - b.mean())).sum() / (a * a).sum())
