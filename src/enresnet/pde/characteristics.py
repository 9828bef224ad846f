r"""Characteristics, and the residual network as their Euler discretisation (Sec. 2.1, Fig. 3b).

.. math:: \frac{dx}{dt} = F(x, t), \qquad x(t_{l+1}) = x(t_l) + \tfrac1L F(x(t_l), t_l) \qquad
          \text{(Eqs. 5 to 7)}

u is constant along a characteristic, so u(x, 0) = f(x(1)): the forward pass of a network solves
the transport equation at one point. Training finds the velocity for which u(x_i, 0) = y_i (Eq. 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enresnet.common import checks
from enresnet.common.randomness import named_generator
from enresnet.pde.flow import Flow, train, two_dimensional
from enresnet.pde.particles import slope
from enresnet.pde.smooth_problem import reference, terminal, velocity
from enresnet.pde.spectral import Velocity


def euler(field: Velocity, points: Tensor, *, layers: int) -> list[Tensor]:
    """Return the points before each of ``layers`` residual mappings F/L, and at the end."""
    checks.integer("layers", layers, low=1)
    found = [points]
    for layer in range(layers):
        found.append(found[-1] + field(found[-1], layer / layers) / layers)
    return found


@dataclass(frozen=True)
class CharacteristicStudy:
    """The results of :func:`study_characteristics`."""

    layers: list[int]
    errors: list[float]  # |f(x_L) - u(x, 0)|, root mean square over the grid
    order: float
    residuals: list[float]  # mean |u(x_i, 0) - y_i| during training
    largest_residual: float
    paths: list[Tensor]  # of the trained network
    labels: Tensor

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, without the paths."""
        return {
            "layers": self.layers,
            "errors": self.errors,
            "order": self.order,
            "residuals": self.residuals,
            "largest_residual": self.largest_residual,
        }


def order_of_networks() -> tuple[list[int], list[float], float]:
    """Return numbers of layers, their errors against the spectral solution, and the order."""
    grid, exact = reference(sigma=0.0, size=64)
    numbers = [8, 16, 32, 64]
    ends = [euler(velocity, grid.points, layers=count)[-1] for count in numbers]
    errors = [float((terminal(end) - exact).square().mean().sqrt()) for end in ends]
    return numbers, errors, slope([1 / count for count in numbers], errors)


def study_characteristics(*, iterations: int = 200, seed: int = 0) -> CharacteristicStudy:
    """Measure a residual network as Euler's method for characteristics, and solve Eq. 9.

    The order of the network's error in 1/L is measured against the spectral solution at sigma = 0.
    Then a network is trained on two moons: the control problem of Eq. 9.

    Args:
        iterations: The iterations of the training; 200 by default.
        seed: Fixes data and weights; 0 by default.

    Returns:
        The errors and their order; the residuals of training, and the paths of the trained network.

    Raises:
        TypeError: An argument has the wrong type.

    Example::

        from enresnet.pde import study_characteristics

        study = study_characteristics(iterations=2)
        print(study.order)  # about 1
    """
    numbers, errors, order = order_of_networks()
    points, labels = two_dimensional("moons", 200, seed=seed)
    flow = Flow(generator=named_generator(seed, "control problem"))
    residuals = train(flow, points, labels, iterations=iterations)
    with torch.no_grad():
        paths, _ = flow.walk(points)
        largest = float((flow.terminal(paths[-1]) - labels).abs().max())
    return CharacteristicStudy(
        numbers,
        errors,
        order,
        residuals,
        largest,
        paths,
        labels,
    )
