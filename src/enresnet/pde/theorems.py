r"""Theorems 1 and 2, measured.

Theorem 1: :math:`|u(x + \delta, 0) - u(x, 0)| \le C (|\delta| / \sigma)^\alpha`.

Theorem 2, as it holds (docs/pde.md has the proof): for :math:`u_t + F \cdot \nabla u = \tfrac12
\sigma^2 \Delta u`, with gamma the largest value of :math:`-\xi \cdot \nabla F \cdot \xi` over unit
vectors, places and times, and every mu >= 0,

.. math:: \|\nabla u(\cdot, 1)\|_\infty^2 \le e^{2 \lambda}
          \left(\mu \|u_0\|_\infty^2 + \|\nabla u_0\|_\infty^2\right), \qquad
          \lambda = \max(\gamma - \mu \sigma^2 / 2,\; 0) \text{ if } \mu > 0,
          \quad \lambda = \gamma \text{ if } \mu = 0

The printed statement, :math:`e^{\gamma - \sigma^2} (\|u_0\|_\infty + \|\nabla u_0\|_\infty)`, loses
a factor 1/2 of the equation and needs gamma >= sigma^2, which it does not say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enresnet.common import checks
from enresnet.common.progress import progress_bar
from enresnet.common.randomness import named_generator
from enresnet.pde.grid import Grid
from enresnet.pde.particles import slope
from enresnet.pde.spectral import solve_backward, solve_forward


def bound(gamma: float, sigma: float, size: float, steepness: float, mu: float) -> float:
    """Return the bound on the gradient for one member of the family."""
    checks.number("mu", mu, low=0)
    rate = gamma if mu == 0 else max(gamma - mu * sigma**2 / 2, 0.0)
    return math.exp(rate) * math.sqrt(mu * size**2 + steepness**2)


def best_mu(gamma: float, sigma: float, size: float, steepness: float) -> float:
    """Return the member of the family with the least bound.

    Inside 0 <= mu <= 2 gamma / sigma^2 the logarithm of the bound has its only critical point at
    mu = 1/sigma^2 - (steepness/size)^2; it is a maximum, so the least is at an end.
    """
    if gamma <= 0 or sigma == 0 or size == 0:
        return 0.0
    ends = (0.0, 2 * gamma / sigma**2)
    return min(ends, key=lambda mu: bound(gamma, sigma, size, steepness, mu))


def printed_bound(gamma: float, sigma: float, size: float, steepness: float) -> float:
    """Return the bound as the paper prints it."""
    return math.exp(gamma - sigma**2) * (size + steepness)


@dataclass(frozen=True)
class Case:
    """One random problem: its constants, the gradient at the end, and the bounds."""

    dimensions: int
    backward: bool
    gamma: float
    sigma: float
    size: float  # of u0
    steepness: float  # of u0
    measured: float  # the largest gradient at the other end of time
    mu: float
    bound: float
    mu_one: float  # the bound with mu = 1
    printed: float

    @property
    def ratio(self) -> float:
        """Measured over the bound that holds."""
        return self.measured / self.bound

    def to_json(self) -> dict[str, float | bool]:
        """Return plain values."""
        return {**vars(self), "ratio": self.ratio}


@dataclass(frozen=True)
class Break:
    """The printed bound against a cosine at velocity 0."""

    wave: float
    sigma: float
    measured: float
    printed: float
    unrestricted: float  # mu = 1 and lambda = gamma - sigma^2 / 2, though that is negative
    bound: float

    def to_json(self) -> dict[str, float]:
        """Return plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Smoothness:
    """Theorem 1: the largest change over a distance, for one sigma."""

    sigma: float
    distances: list[float]  # over sigma
    changes: list[float]
    exponent: float
    constant: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dict(vars(self))


def random_cases(*, cases: int = 240, seed: int = 0) -> list[Case]:
    """Measure Theorem 2 on random fields: 1D and 2D, forward (Eq. 12) and backward (Remark 1).

    A quarter of them is aligned: the velocity compresses most where u0 is steepest, the worst case
    for the bound.
    """
    checks.integer("cases", cases, low=8)
    generator = named_generator(seed, "theorem 2")
    found: list[Case] = []
    plans = [(1, False), (1, True), (2, False), (2, True)]
    with progress_bar("theorem 2", len(plans)) as advance:
        for number, (dimensions, backward) in enumerate(plans):
            count = (cases + len(plans) - 1 - number) // len(plans)
            found += _cases(dimensions, backward, count, generator)
            advance(1)
    return found


def _cases(dimensions: int, backward: bool, count: int, generator: torch.Generator) -> list[Case]:
    grid = Grid(size=512 if dimensions == 1 else 64, length=2 * math.pi, dimensions=dimensions)
    steps = 640 if dimensions == 1 else 160
    most = 2.5 if dimensions == 1 else 1.2  # gamma that the grid resolves at sigma near 0

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    waves = torch.tensor(
        [[k] for k in (1, 2)] if dimensions == 1 else [[1, 0], [0, 1], [1, 1], [1, -1]],
        dtype=torch.float64,
    )
    angles = grid.points @ waves.T  # ... x waves
    field = torch.zeros(2, count, *grid.shape, dimensions, dtype=torch.float64)
    start = torch.zeros(count, *grid.shape, dtype=torch.float64)
    for case in range(count):
        aligned = case % 4 == 0
        for part in range(1 if aligned else 2):
            for axis in range(dimensions):
                phase = 2 * math.pi * uniform(len(waves))
                weight = 2 * uniform(len(waves)) - 1
                if aligned:  # presses together about 0, which backward in time is to blow apart
                    phase, weight = torch.zeros(len(waves)), torch.zeros(len(waves))
                    weight[axis] = 1.0 if axis == 0 else uniform(1).item()
                    weight *= 1 if backward else -1
                field[part, case, ..., axis] = ((angles + phase).sin() * weight).sum(dim=-1)
        if aligned:
            start[case] = angles[..., 0].sin() + 0.3 * (2 * angles[..., 0]).sin() * uniform(1)
        else:
            phase, weight = 2 * math.pi * uniform(len(waves)), 2 * uniform(len(waves)) - 1
            start[case] = ((angles + phase).sin() * weight).sum(dim=-1)
        start[case] *= 10 ** (2 * uniform(1) - 1)
    gamma = most * (0.02 + 0.98 * uniform(count))
    raw = TurningWind(grid, *field).gamma(backward=backward)
    wind = TurningWind(grid, *(field * (gamma / raw).view(1, -1, *[1] * (dimensions + 1))))
    sigma = torch.where(uniform(count) < 0.5, 0.02 + 0.2 * uniform(count), 2 * uniform(count))
    solve = solve_backward if backward else solve_forward
    end = solve(grid, lambda _, time: wind.at(time), start, sigma=sigma, steps=steps)
    slopes = _steepest(grid, end)
    sizes, steepness = start.flatten(1).abs().amax(dim=1), _steepest(grid, start)
    return [
        _case(dimensions, backward, *(float(value[i]) for value in values))
        for i, values in ((i, (gamma, sigma, sizes, steepness, slopes)) for i in range(count))
    ]


def _case(
    dimensions: int,
    backward: bool,
    gamma: float,
    sigma: float,
    size: float,
    steepness: float,
    measured: float,
) -> Case:
    mu = best_mu(gamma, sigma, size, steepness)
    return Case(
        dimensions,
        backward,
        gamma,
        sigma,
        size,
        steepness,
        measured,
        mu,
        bound(gamma, sigma, size, steepness, mu),
        bound(gamma, sigma, size, steepness, 1.0),
        printed_bound(gamma, sigma, size, steepness),
    )


@dataclass(frozen=True)
class TurningWind:
    r"""Winds on a grid, made of waves of at most 2, that turn from a first part to a second.

    .. math:: F(x, t) = F_0(x) \cos(\pi t / 4) + F_1(x) \sin(\pi t / 4)
    """

    grid: Grid  # of one or two dimensions
    first: Tensor  # cases x grid x dimensions
    second: Tensor

    def at(self, time: float) -> Tensor:
        """Return the winds at a time."""
        turned = 0.25 * math.pi * time
        return self.first * math.cos(turned) + self.second * math.sin(turned)

    def gamma(self, *, backward: bool, moments: int = 16) -> Tensor:
        """Return the largest rate at which each wind steepens u, over places and times.

        Forward that is by pressing together, the largest -xi.grad F.xi; backward by blowing apart,
        the largest +xi.grad F.xi (Remark 1). What is largest on the grid and at some times may be
        a little below the largest of all, by (2 h)^2 / 8 of it for waves of at most 2, and by
        the square of a time's turn over 8: these margins are added.
        """
        turn = 0.25 * math.pi / moments
        margin = (1 + (2 * self.grid.spacing) ** 2 / 8) * (1 + turn**2 / 8)
        rates = [self._steepening(self.at(k / moments), backward) for k in range(moments + 1)]
        return torch.stack(rates).amax(dim=0) * margin

    def _steepening(self, wind: Tensor, backward: bool) -> Tensor:
        axes = range(self.grid.dimensions)
        matrix = torch.stack([self.grid.gradient(wind[..., axis]) for axis in axes], dim=-2)
        if not backward:
            matrix = -matrix
        largest = matrix[..., 0, 0]
        if self.grid.dimensions == 2:  # the larger root of the symmetric part
            middle = (matrix[..., 0, 0] + matrix[..., 1, 1]) / 2
            apart = torch.hypot(
                (matrix[..., 0, 0] - matrix[..., 1, 1]) / 2,
                (matrix[..., 0, 1] + matrix[..., 1, 0]) / 2,
            )
            largest = middle + apart
        rates: Tensor = largest.flatten(1).amax(dim=1)
        return rates


def _steepest(grid: Grid, values: Tensor) -> Tensor:
    found: Tensor = grid.gradient(values).norm(dim=-1).flatten(1).amax(dim=1)
    return found


def where_it_breaks(
    sigmas: Sequence[float] = (0.5, 1.0, 1.5, 2.0), *, wave: float = 1.0
) -> list[Break]:
    """Measure the printed bound with F = 0 and u0 = cos(wave x) in a wide smooth window.

    The window is 1 for |x| < 24 and falls to 0 by 48, in a box of length 128: u0 has compact
    support, as the theorem asks.
    """
    grid = Grid(size=1024, length=128.0, dimensions=1, origin=-64.0)
    x = grid.points.squeeze(-1)
    start = (wave * x).cos() * window(x.abs(), inner=24.0, outer=48.0)
    at_rest = torch.zeros(*grid.shape, 1, dtype=grid.dtype)
    end = solve_forward(grid, at_rest, start.expand(len(sigmas), -1), sigma=sigmas, steps=1)
    size, steepness = float(start.abs().max()), float(_steepest(grid, start.unsqueeze(0)))
    measured = _steepest(grid, end).tolist()
    return [
        Break(
            wave,
            s,
            m,
            printed_bound(0, s, size, steepness),
            math.exp(-(s**2) / 2) * math.hypot(size, steepness),
            bound(0, s, size, steepness, 0.0),
        )
        for s, m in zip(sigmas, measured, strict=True)
    ]


def window(radius: Tensor, *, inner: float, outer: float) -> Tensor:
    """Return a smooth function of the radius: 1 up to ``inner``, 0 from ``outer`` on."""
    place = ((radius - inner) / (outer - inner)).clamp(0, 1)

    def ramp(value: Tensor) -> Tensor:
        return torch.where(value > 0, torch.exp(-1 / value.clamp(min=1e-300)), 0.0)

    return ramp(1 - place) / (ramp(1 - place) + ramp(place))


def measure_smoothness(
    sigmas: Sequence[float] = (0.05, 0.1, 0.2, 0.4, 0.8), *, seed: int = 0, size: int = 1024
) -> list[Smoothness]:
    """Measure Theorem 1 for f that jumps between -1 and 1, in a Lipschitz velocity, in 1D."""
    values = [checks.number("sigmas", sigma, low=0.05) for sigma in sigmas]
    grid = Grid(size=size, length=2 * math.pi, dimensions=1)
    generator = named_generator(seed, "theorem 1")
    x = grid.points.squeeze(-1)
    waves = torch.arange(1, 6, dtype=grid.dtype)
    phases = 2 * math.pi * torch.rand(5, generator=generator, dtype=torch.float64)
    jumps = torch.sign((x[:, None] * waves + phases).sin().sum(dim=1))
    wind = 0.5 * ((x[:, None] * waves[:3] + phases[:3]).cos() / waves[:3]).sum(dim=1, keepdim=True)
    steps = 2 * math.ceil(grid.largest_wave(dealias=True) * float(wind.abs().max()) / 2)
    found = solve_backward(grid, wind, jumps, sigma=values, steps=steps)
    shifts = [2**k for k in range(int(math.log2(size)))]
    rows = []
    for sigma, u in zip(values, found, strict=True):
        distances = [shift * grid.spacing / sigma for shift in shifts]
        changes = [float((u.roll(-shift) - u).abs().max()) for shift in shifts]
        near = [k for k, distance in enumerate(distances) if distance < 0.3]
        exponent = slope([distances[k] for k in near], [changes[k] for k in near])
        constant = max(c / d for c, d in zip(changes, distances, strict=True))
        rows.append(Smoothness(sigma, distances, changes, exponent, constant))
    return rows
