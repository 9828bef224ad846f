r"""Convection-diffusion for rough velocities: a Markov chain along the characteristics.

The velocity of Figure 4 is drawn anew at every point of the grid. Its Fourier series has no end:
every mode of F.grad u aliases and a spectral solution grows without bound, while the equation
itself keeps the range of f. What the text defines is the velocity at the grid points; here it is
continued between them by bilinear interpolation, which is Lipschitz, keeps to [-1, 1] and needs
no more than was drawn. Then, with X the characteristics through an interval of length h,

.. math:: u(\cdot, t) = A_{first\ half}\, G_h\, A_{second\ half}\, u(\cdot, t + h), \qquad
          A u = u \circ X, \quad G_h u = u * N(0, \sigma^2 h I)

(Strang's splitting, of second order in h). Both factors keep the range of u. On a grid finer than
the velocity's, what lies between two middles is one matrix of positive weights that sum to one, on
the grid points near X(x), with the mean and the variance of the Gaussian about it (exactly for
narrow ones, to 1e-3 for wide ones, whose tails are cut off). Such weights
exist where its width is at least half the spacing. So no interpolation smooths the solution
further, and the maximum principle holds exactly for f as it is continued between the grid points:
by its Fourier series to a grid eight times as fine, and bilinearly from there. At sigma = 0 there
is no matrix: u(x, 0) is f(X_1(x)), along each characteristic alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy.sparse
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from enresnet.common import checks
from enresnet.pde.grid import Grid

NARROWEST = 0.5  # of the spacing: no positive weights have less variance everywhere
NARROW = 0.75  # squared spacings: up to here three points do, exactly; beyond, samples to 1e-3
REACH = 3.5  # standard deviations of the Gaussian that are kept
COARSEST_FACTOR = 2  # the solution's grid resolves the velocity's cells
CHEAP_FACTOR = 3  # refinement up to which diffusion acts as often as it may
FINEST_FACTOR = 12  # largest refinement: memory and time
MOST_TIMES = 250  # that diffusion acts
SMOOTH_FACTOR = 8  # refinement at which bilinear interpolation of smooth values is exact to 1e-3

Draws = Callable[[int], Tensor]
"""From the number of a time step to the velocity at the grid's points, size x size x 2."""


def refinement(grid: Grid, sigma: float, diffusions: int) -> int:
    """Return how many times finer than the velocity's the grid must be to resolve the Gaussian.

    The factor grows as the square root of the number of times that diffusion acts.
    """
    width = sigma * math.sqrt(1 / diffusions)
    return max(COARSEST_FACTOR, math.ceil(NARROWEST * grid.spacing / width))


def bilinear(grid: Grid, table: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the periodic bilinear continuation of values given on a two-dimensional grid.

    ``table`` has the grid's shape, or one more dimension for vectors; so has the result.
    """
    if grid.dimensions != 2:
        raise ValueError(f"grid must have 2 dimensions, found {grid.dimensions}")
    if tuple(table.shape[:2]) != grid.shape or table.ndim > 3:
        raise ValueError(
            f"table must begin with the grid's shape {grid.shape}, found {tuple(table.shape)}"
        )
    channels = table.reshape(*grid.shape, -1).permute(2, 0, 1)
    # The first row and column again behind the last: the box repeats.
    image = pad(channels.unsqueeze(0), (0, 1, 0, 1), mode="circular")

    def at(points: Tensor) -> Tensor:
        places = (points - grid.origin) / grid.length
        places = (2 * (places - places.floor()) - 1).flip(-1)  # grid_sample takes columns first
        found = grid_sample(
            image,
            places.reshape(1, 1, -1, 2).to(image.dtype),
            mode="bilinear",
            align_corners=True,
        ).reshape(len(channels), -1)
        wanted = points.shape[:-1] if table.ndim == 2 else points.shape
        return found.T.reshape(wanted)

    return at


def trace(
    grid: Grid, draws: Draws, points: Tensor, *, first: int, last: int, step: float
) -> Tensor:
    """Return where points are after the time steps from ``first`` to before ``last``.

    The velocity is steady in each; a step is one of the midpoint rule.
    """
    for number in range(first, last):
        # Velocities in float32: 1e-7 of a velocity is far below the error of the step, and
        # sampling is seven times as fast. The points themselves stay as they are.
        velocity = bilinear(grid, draws(number).float())
        points = points + step * velocity(points + step / 2 * velocity(points))
    return points


def solve_rough(
    grid: Grid,
    velocity: Tensor | Draws,
    terminal: Tensor,
    *,
    sigma: float,
    steps: int = 1000,
    diffusions: int | None = None,
) -> Tensor:
    """Return u(x, 0) on the grid for a rough velocity, given at the grid's points, and terminal f.

    The solution keeps the range of f, unlike a spectral one. It is computed on a finer grid
    (``refinement``): the smaller ``sigma`` and the larger ``diffusions``, the finer and slower.

    Args:
        grid: A grid of 2 dimensions.
        velocity: F at the grid's points, or a function from the number of a time step to that.
        terminal: f at the grid's points; smooth on the grid.
        sigma: The diffusion coefficient; at least 0.
        steps: Time steps from 0 to 1; 1000 by default.
        diffusions: How often diffusion acts between the stretches of transport; ``steps`` must be a
            multiple of twice this number. By default as often as is cheap.

    Shape:
        - velocity: size x size x 2
        - terminal: size x size
        - result: size x size

    Returns:
        u at time 0.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A tensor does not fit the grid or is not finite, ``steps`` and ``diffusions`` do
            not fit together, or ``sigma`` is so small that the finer grid would be too large.

    Example::

        import torch
        from enresnet.pde import Grid, solve_rough

        grid = Grid(size=16)
        velocity = 2 * torch.rand(16, 16, 2) - 1  # drawn anew at every point
        terminal = (2 * torch.pi * grid.points[..., 0]).sin()
        solution = solve_rough(grid, velocity, terminal, sigma=0.1, steps=40)
    """
    if grid.dimensions != 2:
        raise ValueError(f"grid must have 2 dimensions, found {grid.dimensions}")
    draws = _checked(grid, velocity)
    values = bilinear(grid.finer(SMOOTH_FACTOR), continued(grid, terminal))
    diffusions = diffusion_times(grid, sigma, steps=steps, diffusions=diffusions)
    if sigma == 0:
        return values(trace(grid, draws, grid.points, first=0, last=steps, step=1 / steps))
    fine = grid.finer(refinement(grid, sigma, diffusions))
    whole = steps // diffusions
    half = whole // 2
    width = sigma * math.sqrt(1 / diffusions)
    ends = trace(grid, draws, fine.points, first=steps - half, last=steps, step=1 / steps)
    state = values(ends).flatten()
    for start in range(steps - half - whole, 0, -whole):
        ends = trace(grid, draws, fine.points, first=start, last=start + whole, step=1 / steps)
        state = GaussianChain(fine, ends, width)(state)
    ends = trace(grid, draws, grid.points, first=0, last=half, step=1 / steps)
    return GaussianChain(fine, ends, width)(state).reshape(grid.shape)


def continued(grid: Grid, terminal: Tensor) -> Tensor:
    """Return f by its Fourier series on the finer grid whose range the solution keeps."""
    return grid.refine(grid.check_values("terminal", terminal), SMOOTH_FACTOR)


def diffusion_times(grid: Grid, sigma: float, *, steps: int, diffusions: int | None) -> int:
    """Return how often diffusion acts; raise if ``steps`` and the grid do not allow it.

    None takes as many times as a cheap refinement of the grid allows: with fewer, the stretches of
    rough transport between them are longer.
    """
    checks.number("sigma", sigma, low=0)
    checks.integer("steps", steps, low=1)
    if diffusions is None:
        if steps % 2:
            raise ValueError(f"steps must be even, found {steps}")
        divisors = [d for d in range(1, min(MOST_TIMES, steps // 2) + 1) if (steps // 2) % d == 0]
        if sigma == 0:
            return divisors[-1]
        for finest in (CHEAP_FACTOR, FINEST_FACTOR):
            good = [d for d in divisors if refinement(grid, sigma, d) <= finest]
            if good:
                return good[-1]
        diffusions = 1
    checks.integer("diffusions", diffusions, low=1)
    if steps % (2 * diffusions):
        raise ValueError(
            f"steps must be a multiple of twice diffusions, which act in the middle of equal "
            f"parts; found {steps} and {diffusions}; take {2 * diffusions} steps or a multiple"
        )
    if sigma > 0 and (factor := refinement(grid, sigma, diffusions)) > FINEST_FACTOR:
        least = NARROWEST * grid.spacing * math.sqrt(diffusions) / FINEST_FACTOR
        raise ValueError(
            f"sigma must be at least {least:.2g}, or 0, where diffusion acts {diffusions} times on "
            f"a grid of spacing {grid.spacing:.3g}; found {sigma:g}, which would take a grid "
            f"{factor} times as fine"
        )
    return diffusions


def _checked(grid: Grid, velocity: Tensor | Draws) -> Draws:
    if callable(velocity):
        found = velocity
        return lambda number: grid.check_field("velocity", found(number))
    steady = grid.check_field("velocity", velocity)
    return lambda _: steady


class GaussianChain:
    """Averages over a Gaussian about each centre, sampled on a grid; the weights sum to 1."""

    def __init__(self, grid: Grid, centres: Tensor, width: float) -> None:
        places = (centres.reshape(-1, 2) - grid.origin) / grid.spacing
        nearest = (places + 0.5).floor()
        away = (places - nearest).unsqueeze(-1)
        spread = (width / grid.spacing) ** 2
        if spread <= NARROW:
            # Three points with exactly the Gaussian's mean and variance; positive here.
            offsets = torch.arange(-1, 2, device=places.device)
            second = spread + away**2
            weights = torch.cat([(second - away) / 2, 1 - second, (second + away) / 2], dim=-1)
        else:
            reach = math.ceil(REACH * width / grid.spacing)
            offsets = torch.arange(-reach, reach + 1, device=places.device)
            weights = _gaussian(away - offsets, _widened(spread, offsets))
        near = (nearest.int().unsqueeze(-1) + offsets.int()) % grid.size
        self._columns = near[:, 0, :, None] * grid.size + near[:, 1, None, :]
        self._weights = weights[:, 0, :, None] * weights[:, 1, None, :]
        self._size = grid.size**2

    def __call__(self, values: Tensor) -> Tensor:
        """Return the average about each centre."""
        count, each = len(self._weights), self._weights[0].numel()
        if values.device.type != "cpu":
            found = values[self._columns.long()] * self._weights
            return found.sum(dim=(1, 2))
        # On a CPU the product of a sparse matrix is about ten times as fast as gathering.
        matrix = scipy.sparse.csr_matrix(
            (
                self._weights.reshape(-1).numpy(),
                self._columns.reshape(-1).numpy(),
                torch.arange(0, count * each + 1, each, dtype=torch.int32).numpy(),
            ),
            shape=(count, self._size),
        )
        return torch.from_numpy(matrix @ values.numpy())


def _gaussian(away: Tensor, spread: float) -> Tensor:
    weights = torch.exp(-0.5 * away**2 / spread)
    return weights / weights.sum(dim=-1, keepdim=True)


def _widened(spread: float, offsets: Tensor) -> float:
    """Return the variance that a Gaussian must have for its sampled middle to have ``spread``."""
    away = offsets.double() - 0.25  # a centre as far from the nearest point as most are
    wide = spread
    for _ in range(8):
        weights = _gaussian(away, wide)
        mean = (weights * away).sum()
        wide *= spread / float((weights * (away - mean) ** 2).sum())
    return wide
