"""Feynman-Kac particles, multi-level Monte Carlo, and networks of different depth as levels."""

import math
import sys

import pytest
import torch

from enresnet.common.randomness import named_generator
from enresnet.paper.studies import study_multilevel, study_particles
from enresnet.pde import Sampler, feynman_kac, multilevel
from enresnet.pde.characteristics import euler, study_characteristics
from enresnet.pde.depth_levels import coupled, deepened, study_depths
from enresnet.pde.flow import Flow
from enresnet.pde.particles import METHODS, _bridge, euler_maruyama
from enresnet.pde.smooth_problem import terminal, velocity

POINT = torch.tensor([[0.3, -0.2]], dtype=torch.float64)


@pytest.fixture(scope="module")
def particles():
    return study_particles(paths=8192)


def test_particles_agree_with_the_spectral_solution(particles):
    for method in METHODS:
        assert max(map(abs, particles.scores[method])) < 3


def test_weak_order_one_in_the_time_step(particles):
    assert particles.weak.order == pytest.approx(1, abs=0.1)
    assert max(particles.weak.bars) < 0.1 * min(particles.weak.errors)


def test_order_one_half_in_the_paths(particles):
    assert particles.path_orders["independent"] == pytest.approx(-0.5, abs=0.12)


def test_better_paths_pay(particles):
    last = {method: errors[-1] for method, errors in particles.path_errors.items()}
    assert last["antithetic"] < last["independent"]
    assert last["quasi"] < 0.5 * last["independent"]
    assert particles.path_orders["quasi"] < -0.8


@pytest.mark.parametrize("method", METHODS)
def test_standard_errors_are_honest(method):
    """Brownian motion alone: E[cos X] = cos(x) exp(-sigma^2 / 2)."""
    exact = math.cos(0.3) * math.exp(-0.5 * 0.8**2)
    scores = []
    for seed in range(30):
        found = feynman_kac(
            lambda points, _: torch.zeros_like(points),
            lambda points: points[..., 0].cos(),
            POINT,
            sigma=0.8,
            steps=4,
            paths=512,
            method=method,
            generator=named_generator(seed, "honest"),
        )
        scores.append(float((found.mean - exact) / found.standard_error))
    assert 0.5 < math.sqrt(sum(score**2 for score in scores) / 30) < 1.6


def test_the_bridge_is_orthogonal():
    matrix = _bridge(7)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(7, dtype=torch.float64))


def test_without_noise_a_particle_is_a_residual_network():
    network = euler(velocity, POINT, layers=12)[-1]
    still = torch.zeros(12, 1, 2, dtype=torch.float64)
    torch.testing.assert_close(euler_maruyama(velocity, POINT, still, sigma=1.0, steps=12), network)
    found = feynman_kac(velocity, terminal, POINT, sigma=0.0, steps=12, paths=2)
    torch.testing.assert_close(found.mean, terminal(network))


def test_torchs_generator_is_not_touched():
    before = torch.random.get_rng_state()
    for method in METHODS:
        feynman_kac(velocity, terminal, POINT, sigma=0.5, steps=2, paths=64, method=method)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": -1.0}, "sigma"),
        ({"paths": 1}, "paths must be at least"),
        ({"paths": 33, "method": "quasi"}, "paths must be a multiple of 16"),
        ({"paths": 33, "method": "antithetic"}, "multiple of 2"),
        ({"paths": 32, "steps": 20_000, "method": "quasi"}, "steps must be at most"),
        ({"method": "quazi"}, "Did you mean quasi"),
        ({"points": POINT[0]}, "N x d"),
        ({"points": POINT * math.nan}, "finite"),
    ],
)
def test_bad_input(change, message):
    good = {"points": POINT, "sigma": 0.5, "steps": 2, "paths": 64}
    with pytest.raises(ValueError, match=message):
        feynman_kac(velocity, terminal, **{**good, **change})


@pytest.fixture(scope="module")
def levels():
    return study_multilevel()


def test_levels_are_at_least_five_times_cheaper_at_the_smallest_error(levels):
    assert levels.rows[-1].gain > 5
    gains = [row.gain for row in levels.rows]
    assert gains == sorted(gains)


def test_both_ways_keep_the_wanted_error(levels):
    for row in levels.rows:
        assert row.multilevel_error < 1.3 * row.epsilon  # over 20 runs
        assert row.plain_error < 2 * row.epsilon  # over 4


def test_the_variance_of_a_level_falls_as_the_step_squared(levels):
    assert levels.variance_order == pytest.approx(2, abs=0.2)
    assert levels.multilevel_growth < 0.1 * levels.plain_growth


def test_levels_telescope():
    """A difference's coarse path is the path that the level below takes by itself."""
    sampler = Sampler(velocity, terminal, POINT[0], sigma=0.5, generator=named_generator(0, "t"))
    means = [sampler.differences(level, 60_000) for level in (0, 1, 2)]
    alone = sampler.differences(2, 60_000, coupled=False)
    total = sum(float(one.mean()) for one in means)
    error = math.sqrt(sum(float(one.var()) for one in [*means, alone]) / 60_000)
    assert abs(total - float(alone.mean())) < 4 * error


def test_bad_input_of_levels():
    with pytest.raises(ValueError, match="epsilon must be above 0"):
        multilevel(Sampler(velocity, terminal, POINT[0], sigma=0.5), epsilon=0.0)
    with pytest.raises(ValueError, match="point must be"):
        Sampler(velocity, terminal, POINT, sigma=0.5)
    with pytest.raises(ValueError, match="sigma"):
        Sampler(velocity, terminal, POINT[0], sigma=-0.5)
    with pytest.raises(ValueError, match="epsilons must be at least two and differ"):
        study_multilevel(epsilons=(0.1, 0.1))
    with pytest.raises(ValueError, match="steps must be even"):
        study_particles(steps=33)
    with pytest.raises(ValueError, match="depths must double"):
        study_depths(depths=(4, 9))


def test_a_deepened_network_follows_the_same_velocity():
    flow = Flow(layers=3, generator=named_generator(0, "flow"))
    deep = deepened(deepened(flow))
    points = POINT.expand(4, -1)
    torch.testing.assert_close(deep.output(points), flow.output(points, substeps=4))


def test_coupled_networks_share_their_noise():
    flow = Flow(layers=2, sigma=0.4, generator=named_generator(0, "flow"))
    with torch.no_grad():
        flow.outer.zero_()
    noise = torch.randn(4, 5, 1, 2, generator=named_generator(0, "n"), dtype=torch.float64)
    deep, shallow = coupled(deepened(flow), flow, POINT, noise)
    torch.testing.assert_close(deep, shallow)


def test_what_carries_over_to_networks():
    rows = {(row.way, row.fine): row for row in study_depths(iterations=80, draws=64, trainings=3)}
    assert all(len(row.ratios) == 3 for row in rows.values())
    assert rows["tied", 16].ratio < 0.5 * rows["tied", 8].ratio
    assert max(rows["tied", 16].ratios) < 0.3
    assert rows["separate", 16].ratio > 2 * rows["tied", 16].ratio


def test_sums_are_taken_batch_by_batch(monkeypatch):
    def sampler():
        generator = named_generator(0, "sums")
        return Sampler(velocity, terminal, POINT[0], sigma=0.5, generator=generator)

    monkeypatch.setattr(sys.modules[Sampler.__module__], "BATCH", 200)
    one = sampler()
    drawn = torch.cat([one.differences(1, count) for count in (100, 100, 50)])
    expected = torch.stack([torch.tensor(250.0), drawn.sum(), (drawn**2).sum()])
    torch.testing.assert_close(sampler().sums(1, 250), expected.double())


def test_a_network_converges_to_the_transport_equation_and_training_solves_the_control_problem():
    study = study_characteristics(iterations=100)
    assert study.order == pytest.approx(1, abs=0.1)
    assert study.residuals[0] > 0.4
    assert study.residuals[-1] < 0.1
    assert study.largest_residual < 0.5
