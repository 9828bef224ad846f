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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from enresnet import checks
from enresnet.pde.classifier import two_dimensional
from enresnet.pde.flow import Flow, train
from enresnet.progress import progress_bar
from enresnet.randomness import named_generator

WAYS = ("tied", "warm", "separate")


@dataclass(frozen=True)
class DepthLevel:
    """One difference of depths, on average over test points."""

    way: str
    coarse: int
    fine: int
    variance: float  # of the deeper network's output
    difference_variance: float  # of the difference, with shared noise
    bias: float  # root mean square of the difference of the means

    @property
    def ratio(self) -> float:
        """Variance of the difference over that of the output: small where a level pays."""
        return self.difference_variance / self.variance

    def to_json(self) -> dict[str, float | str]:
        """Return plain values."""
        return {**vars(self), "ratio": self.ratio}


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
    draws: int = 128,
    seed: int = 0,
) -> list[DepthLevel]:
    """Train networks of the depths in the three ways and measure the differences."""
    if len(depths) < 2 or any(b != 2 * a for a, b in pairwise(depths)):
        raise ValueError(f"depths must double from each to the next, found {list(depths)}")
    checks.integer("draws", draws, low=2)
    points, labels = two_dimensional("moons", 200, seed=seed)
    tests, _ = two_dimensional("moons", 100, seed=seed + 1)
    found = []
    with progress_bar("depths", 2 * len(depths) - 1) as advance:
        generator = named_generator(seed, "depths")
        first = Flow(layers=depths[0], sigma=sigma, generator=generator)
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
    for way in WAYS:
        for coarse, fine in pairwise(nets[way]):
            noise = torch.randn(
                fine.layers,
                draws,
                len(tests),
                2,
                generator=named_generator(seed, f"noise {way} {fine.layers}"),
                dtype=torch.float64,
            )
            with torch.no_grad():
                deep, shallow = coupled(fine, coarse, tests, noise)
            difference = deep - shallow
            found.append(
                DepthLevel(
                    way,
                    coarse.layers,
                    fine.layers,
                    float(deep.var(dim=0).mean()),
                    float(difference.var(dim=0).mean()),
                    float(difference.mean(dim=0).square().mean().sqrt()),
                )
            )
    return found
