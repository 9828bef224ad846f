r"""Networks of different depth as levels of Monte Carlo, as Sec. 5 suggests.

.. math:: E[P_{16}] = E[P_4] + E[P_8 - P_4] + E[P_{16} - P_8]

where P_L is the output of a noisy network with L layers. The sum is always right; it is cheap only
where a difference has a small variance, that is where both networks, driven by one Brownian motion,
follow nearly the same path. Three ways to deepen a network are compared: ``tied``, each layer
taken in two half steps with the same weights; ``warm``, tied and then trained further;
``separate``, trained from weights of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from enresnet.common import checks
from enresnet.common.progress import progress_bar
from enresnet.common.randomness import named_generator
from enresnet.pde.flow import Flow, train, two_dimensional

WAYS = ("tied", "warm", "separate")


@dataclass(frozen=True)
class DepthLevel:
    """One difference of depths: on average over test points, one figure a training."""

    way: str
    coarse: int
    fine: int
    variances: list[float]  # of the deeper network's output
    difference_variances: list[float]  # of the difference, with shared noise
    biases: list[float]  # root mean square of the difference of the means

    @property
    def ratios(self) -> list[float]:
        """Variance of the difference over that of the output: small where a level pays."""
        pairs = zip(self.difference_variances, self.variances, strict=True)
        return [difference / variance for difference, variance in pairs]

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return median(self.ratios)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "ratios": self.ratios}


def deepened(flow: Flow) -> Flow:
    """Return a network of twice as many layers, each pair with one layer's weights."""
    deep = Flow(
        layers=2 * flow.layers,
        width=flow.inner.shape[-1],
        sigma=flow.sigma,
        generator=flow.generator,
    )
    with torch.no_grad():
        for name, value in flow.named_parameters():
            stacked = value.ndim > 1
            target = dict(deep.named_parameters())[name]
            target.copy_(value.repeat_interleave(2, dim=0) if stacked else value)
    return deep


def coupled(fine: Flow, coarse: Flow, points: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return both outputs for standard normal noise, fine layers x draws x N x 2.

    A step of the coarse network takes the sum of the increments of the fine one's two.
    """
    x = y = points.expand(noise.shape[1:])
    width = fine.sigma / math.sqrt(fine.layers)
    for layer in range(coarse.layers):
        y = y + coarse.velocity(y, layer) / coarse.layers
        for half in (2 * layer, 2 * layer + 1):
            x = x + fine.velocity(x, half) / fine.layers + width * noise[half]
            y = y + width * noise[half]
    return fine.terminal(x), coarse.terminal(y)


def study_depths(
    *,
    depths: Sequence[int] = (4, 8, 16),
    sigma: float = 0.3,
    iterations: int = 150,
    trainings: int = 4,
    draws: int = 128,
    seed: int = 0,
) -> list[DepthLevel]:
    """Train networks of several depths, and measure whether depths can be levels of Monte Carlo.

    A level pays if the difference of two depths under the same noise has a small variance. The
    networks are trained in three ways: tied (the deeper one has the weights of the shallower one,
    each layer twice), warm (trained on from there) and separate (each from its own weights).

    Args:
        depths: The numbers of layers, each twice the one before; 4, 8 and 16 by default.
        sigma: The diffusion coefficient; 0.3 by default.
        iterations: The iterations of each training; 150 by default.
        trainings: The trainings of each depth and way; 4 by default.
        draws: The draws of the noise for each test point; at least 2, 128 by default.
        seed: Fixes all that is drawn at random; 0 by default.

    Returns:
        One entry for each way and pair of depths: variances and biases, one number a training.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``depths`` do not double, or another argument is out of range.

    Example::

        from enresnet.pde import study_depths

        for level in study_depths(depths=(2, 4), iterations=2, trainings=1):
            print(level.way, level.coarse, level.fine, level.ratio)
    """
    if len(depths) < 2 or any(b != 2 * a for a, b in pairwise(depths)):
        raise ValueError(f"depths must double from each to the next, found {list(depths)}")
    checks.integer("draws", draws, low=2)
    checks.integer("trainings", trainings, low=1)
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with progress_bar("depths", trainings * (2 * len(depths) - 1)) as advance:
        for training in range(trainings):
            own = seed + 2 * training  # its test points take the seed that follows
            nets = _trained(depths, sigma, iterations, own, advance)
            for way in WAYS:
                for coarse, fine in pairwise(nets[way]):
                    numbers = _difference(coarse, fine, draws, own, f"noise {way} {fine.layers}")
                    found.setdefault((way, fine.layers), []).append(numbers)
    return [
        DepthLevel(way, fine // 2, fine, *(list(column) for column in zip(*rows, strict=True)))
        for (way, fine), rows in found.items()
    ]


def _trained(
    depths: Sequence[int], sigma: float, iterations: int, seed: int, advance: Callable[[int], None]
) -> dict[str, list[Flow]]:
    points, labels = two_dimensional("moons", 200, seed=seed)
    first = Flow(layers=depths[0], sigma=sigma, generator=named_generator(seed, "depths"))
    train(first, points, labels, iterations=iterations, draws=2)
    advance(1)
    nets = {way: [first] for way in WAYS}
    for depth in depths[1:]:
        nets["tied"].append(deepened(nets["tied"][-1]))
        warm = deepened(nets["warm"][-1])
        train(warm, points, labels, iterations=iterations // 2, draws=2)
        advance(1)
        own = named_generator(seed, f"separate {depth}")
        separate = Flow(layers=depth, sigma=sigma, generator=own)
        train(separate, points, labels, iterations=iterations, draws=2)
        advance(1)
        nets["warm"].append(warm)
        nets["separate"].append(separate)
    return nets


def _difference(
    coarse: Flow, fine: Flow, draws: int, seed: int, purpose: str
) -> tuple[float, float, float]:
    """Return the variance of the deeper output, that of the difference, and the bias."""
    tests, _ = two_dimensional("moons", 100, seed=seed + 1)
    noise = torch.randn(
        fine.layers,
        draws,
        len(tests),
        2,
        generator=named_generator(seed, purpose),
        dtype=torch.float64,
    )
    with torch.no_grad():
        deep, shallow = coupled(fine, coarse, tests, noise)
    difference = deep - shallow
    return (
        float(deep.var(dim=0).mean()),
        float(difference.var(dim=0).mean()),
        float(difference.mean(dim=0).square().mean().sqrt()),
    )
