r"""A residual network on the plane whose layers are steps of an Ito process, without BatchNorm.

.. math:: x_{l+1} = x_l + \tfrac1L F_l(x_l) + \sigma \sqrt{\tfrac1L}\, N(0, I), \qquad
          F_l(x) = W_l \tanh(V_l x + a_l) + c_l, \qquad f(x) = \mathrm{sigmoid}(w \cdot x + b)

u(x, 0) = E[f(x_L)] is the probability of class 1 (Eqs. 5 to 7 at sigma = 0, Eq. 14 otherwise).
The paper's networks leave the factor sqrt(1/L) out: the noise that they call sigma a layer is
sigma sqrt(1/L) here, so sigma here is theirs times sqrt(L).
"""

from __future__ import annotations

import math

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from enresnet.common import checks
from enresnet.common.randomness import checked_generator, named_generator, named_seed

DATA = ("moons", "spirals")
HALF_WIDTH = 2.0  # of the square in which all data lies


class Flow(nn.Module):
    """The network; ``sigma`` is that of the equation, over all of time."""

    def __init__(
        self,
        *,
        layers: int = 10,
        width: int = 32,
        sigma: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.layers = checks.integer("layers", layers, low=1)
        width = checks.integer("width", width, low=1)
        self.sigma = checks.number("sigma", sigma, low=0)
        self.generator = checked_generator(generator)

        def normal(*shape: int, scale: float) -> nn.Parameter:
            drawn = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
            return nn.Parameter(scale * drawn)

        self.inner = normal(layers, 2, width, scale=1.0)
        self.shift = normal(layers, 1, width, scale=1.0)
        self.outer = normal(layers, width, 2, scale=1 / math.sqrt(width))
        self.drift = normal(layers, 1, 2, scale=0.0)
        self.head = normal(2, scale=1.0)
        self.bias = normal(1, scale=0.0)

    def velocity(self, points: Tensor, layer: int) -> Tensor:
        """Return F_l at points ... x 2."""
        hidden = torch.tanh(points @ self.inner[layer] + self.shift[layer])
        return hidden @ self.outer[layer] + self.drift[layer]

    def terminal(self, points: Tensor) -> Tensor:
        """Return f at points ... x 2."""
        return torch.sigmoid(points @ self.head + self.bias)

    def walk(self, points: Tensor, *, substeps: int = 1) -> tuple[list[Tensor], list[Tensor]]:
        """Return where points are before each step and at the end, and the velocity of each step.

        For one draw of the noise. More than one of ``substeps`` takes each layer's velocity in
        smaller Euler steps.
        """
        step = 1 / (self.layers * substeps)
        places, velocities = [points], []
        for number in range(self.layers * substeps):
            velocities.append(self.velocity(points, number // substeps))
            points = points + step * velocities[-1]
            if self.sigma:
                drawn = torch.randn(points.shape, generator=self.generator, dtype=points.dtype)
                points = points + self.sigma * math.sqrt(step) * drawn.to(points.device)
            places.append(points)
        return places, velocities

    def output(self, points: Tensor, *, substeps: int = 1) -> Tensor:
        """Return f where the layers carry points ... x 2, for one draw of the noise."""
        return self.terminal(self.walk(points, substeps=substeps)[0][-1])

    def probability(self, points: Tensor, *, draws: int = 1, substeps: int = 1) -> Tensor:
        """Return u(x, 0) at points N x 2, as the mean over draws of the noise."""
        draws = draws if self.sigma else 1
        many = points.unsqueeze(0).expand(draws, -1, -1)
        return self.output(many, substeps=substeps).mean(dim=0)


def train(
    flow: Flow,
    points: Tensor,
    labels: Tensor,
    *,
    iterations: int = 400,
    draws: int = 4,
    learning_rate: float = 0.02,
    energy: float = 0.05,
) -> list[float]:
    """Find the velocity of the control problem (Eq. 9) and return mean |u(x_i, 0) - y_i| over time.

    Cross-entropy of the mean over ``draws`` of the noise, by Adam with a rate that falls to 0.
    ``energy`` is the price of the mean of |F|^2 along the paths: among the velocities that solve
    the problem it prefers slow ones, which keep the points in a bounded part of the plane.
    """
    checks.integer("iterations", iterations, low=1)
    checks.integer("draws", draws, low=1)
    checks.number("energy", energy, low=0)
    optimiser = torch.optim.Adam(flow.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    curve = []
    for _ in range(iterations):
        many = points.expand(draws if flow.sigma else 1, -1, -1)
        places, velocities = flow.walk(many)
        found = flow.terminal(places[-1]).mean(dim=0)
        speed = torch.stack(velocities).square().sum(dim=-1).mean()
        loss = binary_cross_entropy(found.clamp(1e-7, 1 - 1e-7), labels.double())
        loss = loss + energy * speed + 1e-3 * flow.head.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        curve.append(float((found.detach() - labels).abs().mean()))
    return curve


def two_dimensional(name: str, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return points N x 2 inside the square and labels 0 and 1."""
    checks.choice("data", name, DATA)
    checks.integer("count", count, low=2)
    if name == "moons":
        points, labels = make_moons(count, noise=0.12, random_state=named_seed(seed, name) % 2**32)
        centred = torch.from_numpy(points) - torch.tensor([0.5, 0.25], dtype=torch.float64)
        return (1.1 * centred).clamp(-1.99, 1.99), torch.from_numpy(labels)
    generator = named_generator(seed, f"spirals {count}")
    labels = torch.arange(count) % 2
    along = torch.rand(count, generator=generator, dtype=torch.float64).sqrt()
    angle = 1.5 * math.pi * along + math.pi * labels
    points = (0.15 + 1.5 * along).unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], dim=1)
    points += 0.07 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return points.clamp(-1.99, 1.99), labels
