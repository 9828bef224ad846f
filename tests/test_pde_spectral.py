"""The spectral solver: exact solutions, order, both directions, and the gate at its door."""

import math

import pytest
import torch

from enresnet.paper.figure4 import plain_spectral
from enresnet.pde import Grid, largest_stable_step, solve_backward, solve_forward
from enresnet.pde.exact import constant_velocity, heat_kernel, manufactured, rotation
from enresnet.pde.particles import slope
from enresnet.pde.smooth_problem import terminal, velocity
from enresnet.report.findings import Check


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_constant_velocity_in_every_dimension(dimensions):
    problem = constant_velocity(24 if dimensions == 3 else 64, dimensions=dimensions)
    assert problem.error(160) < 1e-8


@pytest.mark.parametrize(
    ("problem", "steps"),
    [
        (heat_kernel(), 4),
        (rotation(), 400),
        (manufactured(), 160),
        (manufactured(backward=False), 160),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_exact_solutions(problem, steps):
    assert problem.error(steps) < 1e-8


@pytest.mark.parametrize(
    ("problem", "steps"),
    [
        (constant_velocity(32, dimensions=1), [20, 40]),
        (constant_velocity(32), [20, 40]),
        (constant_velocity(20, dimensions=3), [20, 40]),
        (manufactured(32), [20, 40]),
        (manufactured(32, backward=False), [20, 40]),
        (rotation(160), [50, 100]),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_fourth_order_in_time(problem, steps):
    assert slope([1 / n for n in steps], [problem.error(n) for n in steps]) > 3.9


def test_space_converges_faster_than_any_power():
    errors = [manufactured(size).error(160) for size in (16, 24, 32)]
    assert errors[0] > 1e-6
    assert errors[2] < 1e-4 * errors[0]


def test_backward_undoes_forward_without_diffusion():
    grid = Grid(size=64, length=2 * math.pi)
    start = terminal(grid.points)
    there = solve_forward(grid, velocity, start, sigma=0.0, steps=100)[0]
    back = solve_backward(grid, velocity, there, sigma=0.0, steps=100)[0]
    assert (there - start).abs().max() > 0.5
    assert (back - start).abs().max() < 1e-6


def test_a_batch_over_sigma_is_each_sigma_alone():
    grid = Grid(size=32, length=2 * math.pi)
    values = terminal(grid.points)
    together = solve_backward(grid, velocity, values, sigma=[0.0, 0.3, 1.0], steps=40)
    for sigma, one in zip([0.0, 0.3, 1.0], together, strict=True):
        alone = solve_backward(grid, velocity, values, sigma=sigma, steps=40)[0]
        torch.testing.assert_close(one, alone)
    assert together.abs().amax(dim=(1, 2)).diff().max() < 0  # more diffusion, less height


def test_one_field_and_one_start_a_sigma():
    grid = Grid(size=32, length=2 * math.pi)
    fields = torch.stack([velocity(grid.points, t) for t in (0.0, 1.0)])
    starts = torch.stack([terminal(grid.points), 2 * terminal(grid.points)])
    both = solve_forward(grid, fields, starts, sigma=[0.1, 0.2], steps=40)
    second = solve_forward(grid, fields[1], starts[1], sigma=0.2, steps=40)[0]
    torch.testing.assert_close(both[1], second)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_refining_keeps_the_function(dimensions):
    grid = Grid(size=8, length=3.0, dimensions=dimensions, origin=-1.0)

    def waves(points):
        return (2 * math.pi / 3 * points).sin().prod(dim=-1) + (
            4 * math.pi / 3 * points[..., 0] + 1
        ).cos()

    fine = grid.finer(3)
    torch.testing.assert_close(grid.refine(waves(grid.points), 3), waves(fine.points))


def test_gradient():
    grid = Grid(size=16, length=2 * math.pi)
    x, y = grid.points.unbind(dim=-1)
    found = grid.gradient((2 * x).sin() * y.cos())
    expected = torch.stack([2 * (2 * x).cos() * y.cos(), -(2 * x).sin() * y.sin()], dim=-1)
    torch.testing.assert_close(found, expected)


def test_the_largest_stable_step_is_sharp():
    grid = Grid(size=32, length=2 * math.pi, dimensions=1)
    wind = torch.ones(32, 1, dtype=torch.float64)
    largest = largest_stable_step(grid, wind)
    rough = torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    steps = math.ceil(100 / largest)
    kept = solve_backward(grid, wind, rough, sigma=0.0, steps=steps, span=(0.0, 100.0))
    assert kept.abs().max() < 10
    with pytest.raises(ValueError, match=f"largest stable time step .* is {largest:.3g}"):
        solve_backward(grid, wind, rough, sigma=0.0, steps=steps // 2, span=(0.0, 100.0))


def test_a_velocity_that_grows_with_time_is_told_its_largest_stable_step():
    grid = Grid(size=32, length=2 * math.pi, dimensions=1)
    calls = []

    def wind(points, time):
        calls.append(time)
        return (1 + 20 * time) * torch.ones_like(points)

    values = grid.points.squeeze(-1).cos()
    largest = largest_stable_step(grid, wind(grid.points, 1.0))
    with pytest.raises(ValueError, match=f"is {largest:.3g}.*take at least") as told:
        solve_forward(grid, wind, values, sigma=0.1, steps=4)
    steps = int(str(told.value).split()[-2])
    assert steps == math.ceil(1 / largest)
    solve_forward(grid, wind, values, sigma=0.1, steps=steps)
    solve_backward(grid, wind, values, sigma=0.1, steps=steps)


def test_an_unstable_moment_that_only_the_first_look_sees():
    grid = Grid(size=32, length=2 * math.pi, dimensions=1)
    values = grid.points.squeeze(-1).cos()

    def gust(points, time):
        return (500.0 if time == 1 / 16 else 1.0) * torch.ones_like(points)

    with pytest.raises(ValueError, match="take at least 1768 steps"):
        solve_forward(grid, gust, values, sigma=0.1, steps=129)


@pytest.mark.slow
def test_the_trap_without_the_two_thirds_rule_in_full():
    found = plain_spectral(frozen=True, dealias=False).largest
    assert found[0.0] > 1e50
    assert found[0.01] > 1e50


def test_the_trap_of_figure_4_is_real():
    """Plain pseudo-spectral steps grow to 1e50 and more in a velocity drawn at each grid point."""
    found = plain_spectral(frozen=True).largest
    assert found[0.0] > 1e50
    assert found[0.01] > 1e50
    assert found[0.1] < 1


def test_the_trap_without_the_two_thirds_rule_and_with_a_velocity_drawn_in_each_step():
    once = plain_spectral(size=96, steps=500, dealias=False, frozen=True).largest
    assert once[0.0] > 1e10
    assert once[0.01] > 1e10
    anew = plain_spectral(size=96, steps=500).largest
    assert anew[0.0] > 2
    assert anew[0.01] > 2
    assert anew[0.1] < 1


GRID = Grid(size=8)
ZERO, WIND = torch.zeros(8, 8), torch.zeros(8, 8, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": -0.1}, "sigma must be finite and at least 0"),
        ({"sigma": float("nan")}, "sigma"),
        ({"sigma": []}, "found none"),
        ({"terminal": torch.zeros(8, 7)}, r"terminal must end in the grid's shape \(8, 8\)"),
        ({"terminal": ZERO + float("nan")}, "terminal must be finite, found 64"),
        ({"terminal": torch.zeros(3, 8, 8)}, "one for each of the 1"),
        ({"velocity": torch.zeros(8, 8)}, "velocity must end in shape"),
        ({"velocity": torch.zeros(8, 8, 3)}, "velocity must end in shape"),
        ({"velocity": WIND + float("inf")}, "velocity must be finite"),
        ({"velocity": lambda points, _: points[..., 0]}, "velocity must end in shape"),
        ({"velocity": WIND + 50, "steps": 2}, "largest stable time step .* take at least"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"span": (1.0, 0.0)}, "span must be an interval"),
        ({"span": (1.0,)}, "span must be two times"),
        ({"source": lambda *_: torch.zeros(3, 8, 8)}, "source must be one for all sigmas"),
    ],
)
def test_bad_input(change, message):
    good = {"velocity": WIND, "terminal": ZERO, "sigma": 0.1, "steps": 4}
    with pytest.raises(ValueError, match=message):
        solve_backward(GRID, **{**good, **change})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 7}, "size must be even.*take 8"),
        ({"size": 2}, "at least 4"),
        ({"size": 8, "length": 0.0}, "length must be above 0"),
        ({"size": 8, "dimensions": 4}, "1, 2 or 3"),
        ({"size": 8, "dtype": torch.int64}, "float32 or float64"),
        ({"size": 8, "device": "meta"}, "device must be one that torch computes on"),
        ({"size": 8, "device": "nowhere"}, "device must be one that torch computes on"),
    ],
)
def test_bad_grids(arguments, message):
    with pytest.raises(ValueError, match=message):
        Grid(**arguments)


def test_wrong_types():
    with pytest.raises(TypeError, match="terminal must be a tensor"):
        solve_backward(GRID, WIND, [0.0], sigma=0.1, steps=4)
    with pytest.raises(TypeError, match="must be real"):
        solve_backward(GRID, WIND, ZERO + 0j, sigma=0.1, steps=4)


def test_a_check_that_is_nan_fails():
    assert not Check("x", math.nan, 1.0).holds
    assert not Check("x", math.nan, 1.0, at_least=True).holds
    assert Check("x", 2.0, 1.0, at_least=True).holds
