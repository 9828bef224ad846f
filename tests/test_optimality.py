"""The benchmark of local optimality: areas and bisection, on sizes that are known."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import optimality
from problems import Linear, seeded

INF = float("inf")


def norms(*sizes):
    return torch.tensor(sizes, dtype=torch.float64)


def test_the_envelope_is_1_and_nothing_found_is_0():
    clean = torch.tensor([True, False, False, False])
    found = optimality.optimalities(
        {
            "best": norms(0.0, 0.1, 0.2, 0.3),
            "blind": norms(INF, INF, INF, INF),
            "half": norms(0.0, 0.1, 0.2, INF),
        },
        clean,
        1.5,
    )
    assert found["best"] == pytest.approx(1)
    assert found["blind"] == pytest.approx(0)
    assert 0.6 < found["half"] < 0.75


def test_no_attack_reaches_an_envelope_of_two():
    found = optimality.optimalities(
        {"one": norms(0.1, 1.0), "two": norms(1.0, 0.1)}, torch.tensor([False, False]), 1.5
    )
    assert found["one"] == pytest.approx(found["two"])
    assert found["one"] < 1


def test_bisection_finds_the_smallest_radius():
    """On a linear model the sign of the weights is the best attack, and the sizes are known."""
    model = Linear(20)
    images = 0.5 + 0.02 * torch.randn(30, 20, generator=seeded())
    labels = model(images).argmax(dim=1)
    slope = (model.weight[1] - model.weight[0]).detach()
    calls = []

    def attack(x, y, radius):
        calls.append(len(x))
        return x + radius * torch.where(y == 0, 1.0, -1.0)[:, None] * slope.sign()

    margin = (images @ slope).abs() / slope.abs().sum()
    largest = float(margin.detach().quantile(0.8))
    found = optimality.by_bisection(model, attack, images, labels, largest)
    step = largest / optimality.RADII
    expected = (margin.detach().double() / step).ceil() * step
    expected[expected > largest * (1 + 1e-9)] = INF
    torch.testing.assert_close(found, expected)
    assert sum(calls) == optimality.ROUNDS * len(images)
