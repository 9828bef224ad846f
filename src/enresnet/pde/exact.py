r"""Solutions known in closed form, to check solvers against.

Constant velocity c:     :math:`u(x, 0) = f(x + c)` damped, :math:`e^{-\sigma^2 |k|^2 / 2}` a wave.
Heat kernel:             :math:`f = g_{s^2}` becomes :math:`g_{s^2 + \sigma^2}`, here on a box so
                         wide that its images are below rounding.
Rotation:                at sigma = 0, :math:`F = \omega\, \chi(|x|) (-x_2, x_1)` turns each circle
                         by the angle :math:`\omega \chi(|x|)`.
Manufactured:            any u, with the right-hand side that it leaves in the equation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from enresnet.pde.grid import Grid
from enresnet.pde.spectral import Velocity, solve_backward, solve_forward


@dataclass(frozen=True)
class Problem:
    """A problem on a grid with its exact solution at the other end of time."""

    name: str
    grid: Grid
    velocity: Velocity
    given: Tensor  # u at time 1, or at time 0 if the problem is one of initial values
    exact: Tensor
    sigma: float
    source: Callable[[Tensor, float], Tensor] | None = None
    backward: bool = True

    def solve(self, steps: int) -> Tensor:
        """Return the spectral solution where the exact one is known."""
        solver = solve_backward if self.backward else solve_forward
        return solver(
            self.grid,
            self.velocity,
            self.given,
            sigma=self.sigma,
            steps=steps,
            source=self.source,
        )[0]

    def error(self, steps: int) -> float:
        """Return its largest error."""
        return float((self.solve(steps) - self.exact).abs().max())


def constant_velocity(size: int = 64, *, sigma: float = 0.3, dimensions: int = 2) -> Problem:
    """A few waves carried along by one wind and damped; in one, two or three dimensions."""
    grid = Grid(size=size, length=2 * math.pi, dimensions=dimensions)
    wind = torch.tensor([0.7, -0.4, 0.2][:dimensions], dtype=grid.dtype)
    waves = torch.tensor(
        [[1.0, 0, 0], [2, 1, 0], [-3, 2, 1], [0, 0, 2], [5, -4, 0]], dtype=grid.dtype
    )[:, :dimensions]
    phases = torch.tensor([0.1, 1.0, 2.0, 0.5, 2.5], dtype=grid.dtype)

    def at(time: float) -> Tensor:
        past = 1 - time
        angle = (grid.points + wind * past) @ waves.T + phases
        decay = torch.exp(-0.5 * sigma**2 * past * (waves**2).sum(dim=1))
        return (torch.cos(angle) * decay).sum(dim=-1)

    return Problem(
        f"constant velocity, {dimensions}D",
        grid,
        lambda points, _: wind.expand_as(points),
        at(1),
        at(0),
        sigma,
    )


def heat_kernel(size: int = 96, *, sigma: float = 0.5) -> Problem:
    """A Gaussian that spreads where nothing blows."""
    grid = Grid(size=size, length=16.0, origin=-8.0)

    def bump(variance: float) -> Tensor:
        squares = (grid.points**2).sum(dim=-1)
        return torch.exp(-squares / (2 * variance)) / (2 * math.pi * variance)

    first = 0.36
    return Problem(
        "heat kernel",
        grid,
        lambda points, _: torch.zeros_like(points),
        bump(first),
        bump(first + sigma**2),
        sigma,
    )


def rotation(size: int = 192, *, speed: float = 2.0) -> Problem:
    """A bump off the centre, turned without diffusion by a wind that ends smoothly."""
    grid = Grid(size=size, length=12.0, origin=-6.0)

    def angular(points: Tensor) -> Tensor:
        return speed * torch.exp(-(((points**2).sum(dim=-1, keepdim=True) / 6.25) ** 2))

    def bump(points: Tensor) -> Tensor:
        away = points - torch.tensor([0.8, 0.0], dtype=grid.dtype)
        return torch.exp(-(away**2).sum(dim=-1) / (2 * 0.35**2))

    def velocity(points: Tensor, _: float) -> Tensor:
        return angular(points) * torch.stack([-points[..., 1], points[..., 0]], dim=-1)

    angle = angular(grid.points).squeeze(-1)
    x, y = grid.points.unbind(dim=-1)
    turned = torch.stack(
        [angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y], dim=-1
    )
    return Problem("rotation, sigma 0", grid, velocity, bump(grid.points), bump(turned), 0.0)


def manufactured(size: int = 48, *, sigma: float = 0.4, backward: bool = True) -> Problem:
    """A solution chosen beforehand, in a wind that changes with place and time."""
    diffusion = 0.5 * sigma**2 if backward else -0.5 * sigma**2  # on the left of the equation
    grid = Grid(size=size, length=2 * math.pi)

    def solution(points: Tensor, time: float) -> Tensor:
        x, y = points.unbind(dim=-1)
        return torch.exp(torch.sin(x + 2 * time) * 0.8) * torch.cos(y - time)

    def velocity(points: Tensor, time: float) -> Tensor:
        x, y = points.unbind(dim=-1)
        return torch.stack(
            [torch.sin(y + 3 * time) + 0.3, torch.cos(x) * math.cos(2 * time)], dim=-1
        )

    def source(points: Tensor, time: float) -> Tensor:
        """Return u_t + F.grad u +- (sigma^2 / 2) Lap u, written out."""
        x, y = points.unbind(dim=-1)
        first = torch.exp(torch.sin(x + 2 * time) * 0.8)
        slope = 0.8 * torch.cos(x + 2 * time)
        by_x = first * slope * torch.cos(y - time)
        by_y = -first * torch.sin(y - time)
        by_t = 2 * by_x - by_y
        bend = slope**2 - 0.8 * torch.sin(x + 2 * time) - 1
        laplacian = first * torch.cos(y - time) * bend
        wind = velocity(points, time)
        return by_t + wind[..., 0] * by_x + wind[..., 1] * by_y + diffusion * laplacian

    given, wanted = (1.0, 0.0) if backward else (0.0, 1.0)
    return Problem(
        "manufactured" if backward else "manufactured, forward in time",
        grid,
        velocity,
        solution(grid.points, given),
        solution(grid.points, wanted),
        sigma,
        source,
        backward,
    )


def problems() -> list[Problem]:
    """Return the four problems, the first in three dimensions and the last both ways in time."""
    return [
        constant_velocity(dimensions=1),
        constant_velocity(dimensions=2),
        constant_velocity(24, dimensions=3),
        heat_kernel(),
        rotation(),
        manufactured(),
        manufactured(backward=False),
    ]
