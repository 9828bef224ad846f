r"""A smooth problem on the box of length 2 pi that solvers are compared on.

.. math:: F = (\sin x_2 + \cos t,\; \cos x_1 - \tfrac12 \sin(x_1 + x_2)), \qquad
          f = \sin x_1 \cos x_2 + \tfrac12 \cos(2 x_1 + x_2)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from enresnet.pde.grid import Grid
from enresnet.pde.spectral import solve_backward

SIGMA = 0.5
REFERENCE_STEPS = 200


def velocity(points: Tensor, time: float) -> Tensor:
    """Return F."""
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
