r"""Figure 4: the same random velocity with more and more diffusion.

.. math:: u_t + F \cdot \nabla u + \tfrac12 \sigma^2 \Delta u = 0 \text{ on the unit square},
          \quad F \sim U[-1, 1]^2 \text{ at each point of a grid}, \quad u(x, 1) = f \text{ random}

What the paper says of the figure is measured: how steep u(x, 0) is, how much it varies, how fine
its structure is, and how far a random point is from a level set used for classification.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from enresnet.common import checks
from enresnet.common.progress import progress_bar
from enresnet.common.randomness import named_generator
from enresnet.pde import Grid, largest_stable_step, solve_backward, solve_rough
from enresnet.pde.grid import overshoot
from enresnet.pde.semi_lagrangian import (
    Draws,
    bilinear,
    continued,
    diffusion_times,
    refinement,
)
from enresnet.pde.spectral import (
    check_sigmas,
    too_few_steps,
)
from enresnet.report.findings import Figure4, Regularity, Trap

SIGMAS = (0.0, 0.01, 0.1)
SCALE = 0.03  # of the Gaussian that smooths f: bumps and hollows are then about 0.1 across
DISTANCE_FACTOR = 4  # distances are measured on a grid so much finer
FINE_WAVE = 10.0  # waves a unit length; f has nearly nothing above


def distinct(sigmas: Sequence[float]) -> list[float]:
    """Return the diffusion coefficients if no two are equal."""
    values: list[float] = check_sigmas(sigmas).tolist()
    if len(set(values)) < len(values):
        raise ValueError(f"sigmas must differ, found {values}")
    return values


def draw_problem(grid: Grid, *, seed: int = 0, frozen: bool = False) -> tuple[Draws, Tensor]:
    """Return the velocity and smooth random f from -1 to 1, between the grid points too.

    The velocity is drawn from U[-1, 1] at each point, for each time step anew as F(x, w(t))
    suggests, or with ``frozen`` once for all.
    """
    checks.integer("seed", seed, low=0)

    def draws(number: int) -> Tensor:
        generator = named_generator(seed, f"velocity {0 if frozen else number} of figure 4")
        drawn = 2 * torch.rand(*grid.shape, 2, generator=generator, dtype=torch.float64) - 1
        return drawn.to(grid.device, grid.dtype)

    generator = named_generator(seed, "terminal values of figure 4")
    noise = torch.rand(grid.shape, generator=generator, dtype=torch.float64)
    noise = noise.to(grid.device, grid.dtype)
    smooth = grid.inverse(grid.transform(noise) * torch.exp(-grid.squared_waves * SCALE**2 / 2))
    fine = continued(grid, smooth)
    low, high = fine.min(), fine.max()
    return draws, 2 * (smooth - low) / (high - low) - 1


def study_figure4(
    *,
    size: int = 128,
    steps: int = 1000,
    sigmas: Sequence[float] = SIGMAS,
    frozen: bool = False,
    diffusions: int | None = None,
    points: int = 20_000,
    seed: int = 0,
    device: str = "cpu",
) -> Figure4:
    """Solve the problem of Figure 4 for each sigma, and measure how smooth the solutions are.

    Args:
        size: Grid points along each side of the unit square; 128 by default.
        steps: Time steps; 1000 by default.
        sigmas: The diffusion coefficients, all different; 0, 0.01 and 0.1 by default.
        frozen: True draws the velocity once, False (the default) for each time step.
        diffusions: How often diffusion acts, as in :func:`solve_rough`; by default as often as is
            cheap for each sigma.
        points: Random points whose distance to the level set is measured; 20,000 by default.
        seed: Fixes all that is drawn at random; 0 by default.
        device: Where torch computes; ``"cpu"`` by default.

    Returns:
        The solutions, their spectra, and the numbers of each panel.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or two ``sigmas`` are equal.

    Example::

        from enresnet.paper import study_figure4

        result = study_figure4(size=16, steps=40, sigmas=(0.0, 0.1), points=100)
        for row in result.rows:
            print(row.sigma, row.steepest, row.distance)
    """
    grid = Grid(size=size, device=device)
    values = distinct(sigmas)
    times = {s: diffusion_times(grid, s, steps=steps, diffusions=diffusions) for s in values}
    checks.integer("points", points, low=1)
    refinements = {s: refinement(grid, s, times[s]) if s > 0 else 1 for s in values}
    velocity, terminal = draw_problem(grid, seed=seed, frozen=frozen)
    places = torch.rand(
        points, 2, generator=named_generator(seed, "level set"), dtype=torch.float64
    ).to(grid.device)
    solutions = {}
    with progress_bar("solving", len(values)) as advance:
        for sigma in values:
            solutions[sigma] = solve_rough(
                grid, velocity, terminal, sigma=sigma, steps=steps, diffusions=times[sigma]
            )
            advance(1, f"sigma = {sigma:g}")
    panels: dict[float | None, Tensor] = dict(solutions.items())
    panels[None] = terminal
    distances = {sigma: level_distance(grid, u)(places) for sigma, u in panels.items()}
    rows = [_measure(grid, sigma, u, distances[sigma], terminal) for sigma, u in panels.items()]
    return Figure4(
        grid,
        velocity,
        terminal,
        solutions,
        refinements,
        rows[:-1],
        rows[-1],
        {sigma: spectrum(grid, u) for sigma, u in panels.items()},
        distances,
    )


def plain_spectral(
    *,
    size: int = 128,
    steps: int = 1000,
    sigmas: Sequence[float] = SIGMAS,
    dealias: bool = True,
    frozen: bool = False,
    seed: int = 0,
    device: str = "cpu",
) -> Trap:
    """Solve the problem of Figure 4 by plain pseudo-spectral Runge-Kutta steps.

    The exact solution is at most 1 in size; this one is not, so another solver is needed.
    """
    checks.integer("steps", steps, low=1)
    grid = Grid(size=size, device=device)
    sigmas = distinct(sigmas)
    draws, state = draw_problem(grid, seed=seed, frozen=frozen)
    parts = 1 if frozen else steps  # of time, with one velocity each
    largest = min(largest_stable_step(grid, draws(k), dealias=dealias) for k in range(parts))
    if largest < 1 / steps:
        raise too_few_steps(largest, 1.0, steps)
    for number in reversed(range(parts)):
        state = solve_backward(
            grid,
            draws(number),
            state,
            sigma=sigmas,
            steps=steps // parts,
            span=(number / parts, (number + 1) / parts),
            dealias=dealias,
        )
    return Trap(
        frozen, dealias, dict(zip(sigmas, state.abs().amax(dim=(1, 2)).tolist(), strict=True))
    )


def spectrum(grid: Grid, values: Tensor) -> tuple[list[float], list[float]]:
    """Return wave numbers in waves a unit length and the power in each ring of them."""
    values = grid.check_values("values", values)
    power = torch.fft.fftn(values - values.mean()).abs() ** 2 / values.numel() ** 2
    line = torch.fft.fftfreq(grid.size, d=grid.spacing, dtype=torch.float64)
    radius = torch.stack(torch.meshgrid(line, line, indexing="ij")).norm(dim=0)
    rings = (radius * grid.length).round().long().flatten()
    sums = torch.zeros(int(rings.max()) + 1, dtype=torch.float64)
    sums.index_add_(0, rings, power.flatten().cpu().double())
    count = grid.size // 2
    return [number / grid.length for number in range(1, count)], sums[1:count].tolist()


def level_distance(grid: Grid, values: Tensor, level: float | None = None) -> Any:
    """Return a function from points to their distance to a level set, the median's by default.

    The values are continued bilinearly to a finer grid. Points next to a change of side are the
    level set, up to half a spacing of that grid. The box repeats.
    """
    values = grid.check_values("values", values)
    level = float(values.median()) if level is None else level
    fine = grid.finer(DISTANCE_FACTOR)
    above = (bilinear(grid, values)(fine.points) > level).cpu().numpy()
    edge = np.zeros_like(above)
    for axis in (0, 1):
        change = above != np.roll(above, -1, axis=axis)
        edge |= change | np.roll(change, 1, axis=axis)
    if not edge.any():
        raise ValueError(f"values must cross the level {level:g}, found none on its other side")
    pad = fine.size // 2
    wide = distance_transform_edt(~np.pad(edge, pad, mode="wrap"))[pad:-pad, pad:-pad]
    table = torch.from_numpy(wide).to(grid.device, grid.dtype) * fine.spacing
    return bilinear(fine, table)


def _measure(
    grid: Grid, sigma: float | None, values: Tensor, distances: Tensor, terminal: Tensor
) -> Regularity:
    # Differences of neighbours, not of Fourier series: at sigma = 0 the values jump.
    parts = [(values.roll(-1, dims=axis) - values) / grid.spacing for axis in (0, 1)]
    slopes = torch.stack(parts).norm(dim=0)
    waves, power = spectrum(grid, values)
    total = sum(power)
    return Regularity(
        sigma=sigma,
        lowest=float(values.min()),
        highest=float(values.max()),
        gradient=float((slopes**2).mean().sqrt()),
        steepest=float(slopes.max()),
        total_variation=float(slopes.mean()),
        mean_wave=sum(w * p for w, p in zip(waves, power, strict=True)) / total,
        fine_share=sum(p for w, p in zip(waves, power, strict=True) if w > FINE_WAVE) / total,
        distance=float(distances.mean()),
        near=float((distances < grid.spacing).double().mean()),
        overshoot=overshoot(values, continued(grid, terminal)),
    )
