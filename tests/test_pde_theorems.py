"""Theorems 1 and 2: what holds, with which constant, and where the printed bound breaks."""

import math

import pytest
import torch

from enresnet.pde.grid import Grid
from enresnet.pde.theorems import (
    TurningWind,
    best_mu,
    bound,
    measure_smoothness,
    printed_bound,
    random_cases,
    where_it_breaks,
    window,
)


@pytest.fixture(scope="module")
def cases():
    return random_cases(cases=200)


def test_theorem_2_holds_on_random_fields(cases):
    assert len(cases) >= 200
    assert sum(case.gamma > 1 for case in cases) > 20
    ratios = [case.ratio for case in cases]
    assert max(ratios) <= 1
    assert max(ratios) > 0.95
    assert min(ratios) < 0.1
    assert all(any(a <= r < a + 0.1 for r in ratios) for a in (0.1, 0.3, 0.5, 0.7, 0.9))


def test_every_member_of_the_family_holds(cases):
    for case in cases:
        for mu in (0.0, 0.3, 1.0, 3.0, 2 * case.gamma / case.sigma**2):
            assert case.measured <= bound(case.gamma, case.sigma, case.size, case.steepness, mu)


def test_backward_too(cases):
    assert sum(case.backward for case in cases) >= 100
    assert max(case.ratio for case in cases if case.backward) > 0.9


@pytest.mark.parametrize("backward", [False, True])
def test_gamma_is_not_below_the_truth(backward):
    """Its largest value lies between two grid points and between two times."""
    grid = Grid(size=16, length=2 * math.pi, dimensions=1)
    angle = 2 * (grid.points - grid.spacing / 2)
    wind = TurningWind(grid, (angle.sin() / 2)[None], (angle.sin() / 2)[None] * math.tan(0.7))
    truth = 1 / math.cos(0.7)  # |F_0| cos s + |F_1| sin s is largest at s = 0.7
    found = float(wind.gamma(backward=backward, moments=2))
    assert truth <= found < 1.15 * truth


def test_gamma_of_a_wind_that_blows_apart_in_one_direction_only():
    grid = Grid(size=64, length=2 * math.pi)
    x = grid.points[..., 0]
    wind = torch.stack([x.sin() + 0.25 * (2 * x).sin(), torch.zeros_like(x)], dim=-1)[None]
    both = TurningWind(grid, wind, torch.zeros_like(wind))
    assert float(both.gamma(backward=True)) == pytest.approx(1.5, rel=0.01)
    assert float(both.gamma(backward=False)) == pytest.approx(0.75, rel=0.01)


def test_the_printed_bound_breaks(cases):
    assert any(case.measured > case.printed for case in cases)


def test_where_the_printed_bound_breaks():
    half, one, more, two = where_it_breaks()
    assert half.measured < half.printed
    assert one.measured < one.printed
    assert more.measured == pytest.approx(0.325, abs=1e-3)
    assert more.printed == pytest.approx(0.211, abs=1e-3)
    assert two.measured > two.printed
    for row in (half, one, more, two):
        assert row.measured == pytest.approx(math.exp(-(row.sigma**2) / 2), abs=3e-3)
        assert row.measured <= row.bound


def test_lambda_must_not_be_negative():
    last = where_it_breaks((3.0,), wave=0.5)[0]
    assert last.measured > 5 * last.unrestricted
    assert last.measured <= last.bound


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_the_best_member_is_the_best(gamma, sigma):
    best = bound(gamma, sigma, 1.0, 0.5, best_mu(gamma, sigma, 1.0, 0.5))
    top = 2 * gamma / sigma**2
    others = [bound(gamma, sigma, 1.0, 0.5, 1.5 * top * k / 50) for k in range(51)]
    assert best <= min(others) * (1 + 1e-12)
    member = math.exp(gamma - sigma**2 / 2) * math.hypot(1.0, 0.5)
    if gamma >= sigma**2 / 2:
        assert bound(gamma, sigma, 1.0, 0.5, 1.0) == pytest.approx(member)
        assert member < math.exp(sigma**2 / 2) * printed_bound(gamma, sigma, 1.0, 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_theorem_1(seed):
    rows = measure_smoothness(seed=seed)
    assert rows[0].constant < 1.1 * rows[1].constant  # it levels off as sigma falls
    for row in rows:
        assert row.exponent == pytest.approx(1, abs=0.03)
        assert row.constant < 1.6
        for distance, change in zip(row.distances, row.changes, strict=True):
            assert change <= row.constant * distance * (1 + 1e-9)


def test_the_window_is_smooth_and_compact():
    radius = torch.linspace(0, 10, 1001, dtype=torch.float64)
    values = window(radius, inner=2.0, outer=5.0)
    assert (values[radius <= 2] == 1).all()
    assert (values[radius >= 5] == 0).all()
    assert (values.diff() <= 0).all()


def test_bad_input():
    with pytest.raises(ValueError, match="mu"):
        bound(1.0, 1.0, 1.0, 1.0, -1.0)
    with pytest.raises(ValueError, match="cases"):
        random_cases(cases=3)
    with pytest.raises(ValueError, match="sigmas"):
        measure_smoothness((0.001,))
