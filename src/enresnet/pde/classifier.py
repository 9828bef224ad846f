r"""From the equation to a classifier: the whole paper on two-dimensional data.

Networks with more and more noise are trained on two moons or two spirals. For each, the surface
u(x, 0) that its layers and noise make by Monte Carlo stands beside the spectral solution of

.. math:: u_t + \chi F \cdot \nabla u + \tfrac12 \sigma^2 \Delta u = 0, \qquad
          u(x, 1) = \chi f + \tfrac12 (1 - \chi)

driven by that network's own velocity, F(x, t) = F_l(x) for t in [l/L, (l+1)/L). The cut-off chi is
1 where the data is and falls smoothly to 0 inside a wide periodic box. The two differ by the Euler
step 1/L and by the noise of Monte Carlo; taking each layer in smaller steps shows the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from enresnet import checks
from enresnet.attacks import PGD
from enresnet.pde.flow import Flow, train
from enresnet.pde.grid import Grid
from enresnet.pde.spectral import check_sigmas, largest_stable_step, solve_backward
from enresnet.pde.theorems import window
from enresnet.progress import progress_bar
from enresnet.randomness import named_generator, named_seed

SIGMAS = (0.0, 0.05, 0.1, 0.3)
DATA = ("moons", "spirals")
HALF_WIDTH = 2.0  # of the square that is drawn; all data lies inside
BOX = 12.0
INNER, OUTER = 3.6, 5.8  # where the cut-off begins and ends


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


class OnImages(nn.Module):
    """A flow as a classifier of images N x 2 x 1 x 1 in [0, 1], which attacks understand."""

    def __init__(self, flow: Flow, *, draws: int) -> None:
        super().__init__()
        self.flow, self.draws = flow, draws

    def forward(self, images: Tensor) -> Tensor:
        """Return the logarithms of both probabilities, from the mean over draws."""
        points = HALF_WIDTH * (2 * images.flatten(1) - 1)
        one = self.flow.probability(points, draws=self.draws).clamp(1e-9, 1 - 1e-9)
        return torch.stack([torch.log(1 - one), torch.log(one)], dim=1)


def to_images(points: Tensor) -> Tensor:
    """Return points of the square as images in [0, 1]."""
    return ((points / HALF_WIDTH + 1) / 2).reshape(-1, 2, 1, 1)


@dataclass(frozen=True)
class Row:
    """One network: how well it classifies, and how well it and the equation agree."""

    sigma: float
    residual: float  # mean |u(x_i, 0) - y_i| over the training points
    natural: float
    robust: float
    rms: float  # of the network's surface less the spectral solution, where the data is
    largest: float
    refined_rms: float  # the same with each layer in `substeps` Euler steps
    refined_largest: float
    monte_carlo: float  # root mean square standard error of the surface
    steepest: float  # largest |grad u| of the spectral solution there
    overshoot: float  # of the spectral solution beyond the range of f

    def to_json(self) -> dict[str, float]:
        """Return plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class ClassifierStudy:
    """The networks of one data set, with their surfaces for the picture."""

    data: str
    epsilon: float
    layers: int
    rows: list[Row]
    grid: Grid
    inside: slice  # of the grid's rows and columns that are drawn
    network: list[Tensor]
    spectral: list[Tensor]
    points: Tensor
    labels: Tensor

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, without the surfaces."""
        return {
            "data": self.data,
            "epsilon": self.epsilon,
            "layers": self.layers,
            "rows": [row.to_json() for row in self.rows],
        }


def spectral_surface(flow: Flow, grid: Grid) -> Tensor:
    """Return u(x, 0) of the equation that a flow's velocity and terminal values drive."""
    cut = window(grid.points.norm(dim=-1), inner=INNER, outer=OUTER)
    with torch.no_grad():
        state = cut * flow.terminal(grid.points) + 0.5 * (1 - cut)
        for layer in reversed(range(flow.layers)):
            field = cut.unsqueeze(-1) * flow.velocity(grid.points, layer)
            span = (layer / flow.layers, (layer + 1) / flow.layers)
            steps = math.ceil(1.5 / (flow.layers * largest_stable_step(grid, field)))
            state = solve_backward(
                grid, field, state, sigma=flow.sigma, steps=max(2, steps), span=span
            )[0]
    return state


def study_classifier(
    *,
    data: str = "moons",
    sigmas: Sequence[float] = SIGMAS,
    layers: int = 16,
    iterations: int = 150,
    epsilon: float = 0.2,
    draws: int = 48,
    substeps: int = 4,
    size: int = 192,
    seed: int = 0,
) -> ClassifierStudy:
    """Train a network for each sigma, attack it, and compare it with the equation.

    ``epsilon`` is the largest change of a coordinate, ``draws`` the paths of the surface,
    ``size`` that of the spectral grid.
    """
    checks.choice("data", data, DATA)
    checks.number("epsilon", epsilon, low=0, high=2 * HALF_WIDTH)
    checks.integer("draws", draws, low=2)
    checks.integer("substeps", substeps, low=1)
    grid = Grid(size=size, length=BOX, origin=-BOX / 2)
    points, labels = two_dimensional(data, 300, seed=seed)
    tests, answers = two_dimensional(data, 400, seed=seed + 1)
    edge = round((BOX / 2 - HALF_WIDTH) / grid.spacing)
    inside = slice(edge, grid.size - edge + 1)
    places = grid.points[inside, inside]
    rows, surfaces, solutions = [], [], []
    values = check_sigmas(sigmas).tolist()
    with progress_bar(data, 3 * len(values)) as advance:
        for sigma in values:
            generator = named_generator(seed, "flow")  # the same weights to start from
            flow = Flow(layers=layers, sigma=sigma, generator=generator)
            residual = train(flow, points, labels, iterations=iterations, draws=2)[-1]
            advance(1, f"sigma = {sigma:g}, attacked")
            flow.requires_grad_(False)
            model = OnImages(flow, draws=8).eval()
            attack = PGD(
                epsilon=epsilon / (2 * HALF_WIDTH),
                steps=20,
                precision="32",
                generator=named_generator(seed, "attack"),
            )
            harmed = attack(model, to_images(tests), answers, progress=False)
            judge = OnImages(flow, draws=draws).eval()
            natural = (judge(to_images(tests)).argmax(dim=1) == answers).double().mean()
            robust = (judge(harmed).argmax(dim=1) == answers).double().mean()
            advance(1, f"sigma = {sigma:g}, drawn")
            solution = spectral_surface(flow, grid)
            surface, error = _surface(flow, places, draws, 1)
            sparse = places[::3, ::3]
            refined, _ = _surface(flow, sparse, draws, substeps)
            near = solution[inside, inside]
            off, finer = surface - near, refined - near[::3, ::3]
            steepest = grid.gradient(solution).norm(dim=-1)[inside, inside].max()
            low, high = _range(flow, grid)
            beyond = max(low - float(solution.min()), float(solution.max()) - high, 0.0)
            rows.append(
                Row(
                    sigma,
                    residual,
                    float(natural),
                    float(robust),
                    float(off.square().mean().sqrt()),
                    float(off.abs().max()),
                    float(finer.square().mean().sqrt()),
                    float(finer.abs().max()),
                    float(error.square().mean().sqrt()),
                    float(steepest),
                    beyond / (high - low),
                )
            )
            surfaces.append(surface)
            solutions.append(near)
            advance(1)
    return ClassifierStudy(
        data, epsilon, layers, rows, grid, inside, surfaces, solutions, points, labels
    )


def _range(flow: Flow, grid: Grid) -> tuple[float, float]:
    values = flow.terminal(grid.points)
    return float(values.min()), float(values.max())


def _surface(flow: Flow, places: Tensor, draws: int, substeps: int) -> tuple[Tensor, Tensor]:
    """Return the mean over draws of the network's output, and its standard error."""
    flat = places.reshape(-1, 2)
    total, squares = torch.zeros(len(flat)).double(), torch.zeros(len(flat)).double()
    count = draws if flow.sigma else 1
    for start in range(0, count, 16):
        many = flat.expand(min(16, count - start), -1, -1)
        found = flow.terminal(flow.paths(many, substeps=substeps)[-1])
        total += found.sum(dim=0)
        squares += (found**2).sum(dim=0)
    mean = total / count
    variance = (squares / count - mean**2).clamp(min=0)
    return mean.reshape(places.shape[:2]), (variance / count).sqrt().reshape(places.shape[:2])
