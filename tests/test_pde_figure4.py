"""Figure 4: the chain along characteristics is right, keeps the range, shows what is claimed."""

import math

import pytest
import torch

from enresnet.paper.figure4 import (
    draw_problem,
    figure4,
    level_distance,
    plain_spectral,
    spectrum,
)
from enresnet.paper.verify import along_characteristics
from enresnet.pde import Grid, feynman_kac, solve_rough
from enresnet.pde.grid import overshoot
from enresnet.pde.semi_lagrangian import (
    SMOOTH_FACTOR,
    GaussianChain,
    bilinear,
    continued,
    diffusion_times,
    refinement,
)


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_it_agrees_with_the_spectral_solution_where_that_is_right(sigma):
    assert along_characteristics(sigma, steps=200) < 2e-3


def test_it_agrees_with_particles_in_a_random_velocity():
    grid = Grid(size=32)
    draws, terminal = draw_problem(grid, frozen=True)
    solution = solve_rough(grid, draws, terminal, sigma=0.1, steps=400, diffusions=100)
    field = bilinear(grid, draws(0))
    values = bilinear(grid.finer(SMOOTH_FACTOR), continued(grid, terminal))
    found = feynman_kac(
        lambda points, _: field(points),
        values,
        grid.points[3::8, 5::8].reshape(-1, 2),
        sigma=0.1,
        steps=400,
        paths=1000,
        generator=torch.Generator().manual_seed(1),
    )
    scores = (found.mean - solution[3::8, 5::8].flatten()) / found.standard_error
    assert scores.abs().max() < 3.5
    assert scores.square().mean() < 2


def test_a_gaussian_chain_has_the_right_moments():
    grid = Grid(size=64)
    generator = torch.Generator().manual_seed(0)
    centres = 0.4 + 0.2 * torch.rand(50, 2, generator=generator, dtype=torch.float64)
    for width in (0.5 / 64, 0.86 / 64, 0.87 / 64, 2 / 64):
        chain = GaussianChain(grid, centres, width)
        x = grid.points[..., 0].flatten()
        torch.testing.assert_close(chain(torch.ones_like(x)), torch.ones(50).double())
        mean = chain(x)
        assert (mean - centres[:, 0]).abs().max() < 1e-3 * width
        variance = chain(x**2) - mean**2
        assert (variance / width**2 - 1).abs().max() < 1e-3


def test_bilinear_repeats_and_keeps_the_grid_values():
    grid = Grid(size=8, length=2.0, origin=-1.0)
    table = torch.rand(8, 8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = bilinear(grid, table)
    torch.testing.assert_close(at(grid.points), table)
    torch.testing.assert_close(at(grid.points + 2.0), table)
    halfway = grid.points + torch.tensor([grid.spacing / 2, 0.0])
    torch.testing.assert_close(at(halfway), (table + table.roll(-1, dims=0)) / 2)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_claims_of_the_text_on_a_small_grid(frozen):
    result = figure4(size=48, steps=400, diffusions=50, sigmas=(0.0, 0.03, 0.1), frozen=frozen)
    none, little, much = result.rows
    for row in result.rows:
        assert row.overshoot < 0.01  # the maximum principle
    assert none.highest - none.lowest > 1.6
    for name in ("gradient", "total_variation", "mean_wave", "fine_share"):
        assert getattr(none, name) > getattr(little, name) > getattr(much, name)
    assert none.distance < little.distance < much.distance
    assert none.gradient > result.terminal_row.gradient


def test_diffusion_acts_often_enough():
    """Twice as often changes next to nothing, the fine waves included."""
    few, many = (
        figure4(size=32, steps=400, sigmas=(0.1,), diffusions=times).rows[0] for times in (100, 200)
    )
    assert few.gradient == pytest.approx(many.gradient, rel=0.01)
    assert few.fine_share == pytest.approx(many.fine_share, rel=0.3)
    assert diffusion_times(Grid(size=128), 0.1, steps=1000, diffusions=None) == 250
    assert diffusion_times(Grid(size=128), 0.01, steps=1000, diffusions=None) == 50
    assert diffusion_times(Grid(size=128), 0.001, steps=1000, diffusions=None) < 10


@pytest.mark.parametrize("seed", range(6))
def test_the_range_is_kept_whatever_is_drawn(seed):
    grid = Grid(size=32)
    draws, terminal = draw_problem(grid, seed=seed)
    for sigma in (0.0, 0.05):
        solution = solve_rough(grid, draws, terminal, sigma=sigma, steps=100)
        assert overshoot(solution, continued(grid, terminal)) <= 1e-12
        assert solution.abs().max() <= 1 + 1e-12


def test_figure_4_itself():
    result = figure4()
    none, little, much = result.rows
    assert all(row.overshoot < 0.01 for row in result.rows)
    assert none.highest - none.lowest > 1.9
    assert 1.0 < little.highest - little.lowest < 1.8
    assert much.highest - much.lowest < 0.5
    assert none.gradient > 2 * little.gradient > 10 * much.gradient
    assert much.distance > 2 * none.distance


def test_terminal_values_and_velocity_are_as_the_text_says():
    grid = Grid(size=64)
    draws, values = draw_problem(grid, seed=3)
    fine = continued(grid, values)
    assert float(fine.min()) == pytest.approx(-1, abs=1e-12)
    assert float(fine.max()) == pytest.approx(1, abs=1e-12)
    assert values.abs().max() > 0.97
    assert draws(0).abs().max() <= 1
    assert abs(float(draws(0).var()) - 1 / 3) < 0.02
    assert not torch.equal(draws(0), draws(1))
    torch.testing.assert_close(draws(7), draws(7))
    steady, _ = draw_problem(grid, seed=3, frozen=True)
    torch.testing.assert_close(steady(0), steady(1))


def test_spectrum_and_distance():
    grid = Grid(size=64)
    waves, power = spectrum(grid, (2 * math.pi * 5 * grid.points[..., 0]).cos())
    assert max(zip(power, waves, strict=True))[1] == 5
    assert sum(power) == pytest.approx(0.5)
    stripes = (2 * math.pi * (grid.points[..., 0] + 1e-3)).sin()  # changes sign at 0 and 1/2
    distance = level_distance(grid, stripes, level=0.0)
    places = torch.tensor([[0.25, 0.3], [0.5, 0.9], [0.95, 0.1]], dtype=torch.float64)
    found = distance(places)
    torch.testing.assert_close(found, torch.tensor([0.25, 0.0, 0.05]).double(), atol=6e-3, rtol=0)
    with pytest.raises(ValueError, match="cross the level"):
        level_distance(grid, stripes, level=2.0)


def test_finer_grids_for_smaller_sigma():
    grid = Grid(size=128)
    assert refinement(grid, 0.1, 50) == 2
    assert refinement(grid, 0.01, 50) == 3
    assert refinement(grid, 0.01, 200) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": -1.0}, "sigma"),
        ({"steps": 130, "diffusions": 50}, "multiple of twice diffusions"),
        ({"velocity": torch.zeros(8, 8)}, "velocity must end"),
        ({"terminal": torch.full((8, 8), math.nan)}, "terminal must be finite"),
        ({"grid": Grid(size=8, dimensions=1)}, "2 dimensions"),
    ],
)
def test_bad_input(change, message):
    good = {
        "grid": Grid(size=8),
        "velocity": torch.zeros(8, 8, 2),
        "terminal": torch.zeros(8, 8),
        "sigma": 0.1,
        "steps": 100,
    }
    with pytest.raises(ValueError, match=message):
        solve_rough(**{**good, **change})
    with pytest.raises(ValueError, match="must differ"):
        figure4(sigmas=(0.1, 0.1))
    with pytest.raises(ValueError, match="must differ"):
        plain_spectral(sigmas=(0.1, 0.1))
    with pytest.raises(ValueError, match=r"sigma must be at least 0.0003.*found 0.0001"):
        figure4(sigmas=(0.0001,))
    with pytest.raises(ValueError, match=r"sigma must be at least 0.0023.*acts 50 times"):
        figure4(sigmas=(0.001,), diffusions=50)
    with pytest.raises(ValueError, match="steps must be even"):
        figure4(steps=101)
    with pytest.raises(ValueError, match="take at least 23 steps"):
        plain_spectral(size=16, steps=20)
