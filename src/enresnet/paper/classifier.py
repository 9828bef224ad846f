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
from statistics import mean

import torch
from torch import Tensor, nn

from enresnet.attacks import PGD
from enresnet.common import checks
from enresnet.common.progress import progress_bar
from enresnet.common.randomness import named_generator
from enresnet.pde import Grid, largest_stable_step, solve_backward
from enresnet.pde.flow import DATA, HALF_WIDTH, Flow, PlaneData, train, two_dimensional
from enresnet.pde.grid import overshoot
from enresnet.pde.semi_lagrangian import bilinear
from enresnet.pde.spectral import check_sigmas
from enresnet.pde.theorems import window
from enresnet.report.findings import Agreement, ClassifierRow, ClassifierStudy

SIGMAS = (0.0, 0.05, 0.1, 0.3)
TRAINING_POINTS, TEST_POINTS = 300, 400
BOX = 12.0
INNER, OUTER = 3.6, 5.8  # where the cut-off begins and ends


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
class Trained:
    """One network, and how well it classifies."""

    flow: Flow
    residual: float  # mean |u(x_i, 0) - y_i| over the training points
    natural: float
    robust: float


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
    data: PlaneData = "moons",
    sigmas: Sequence[float] = SIGMAS,
    layers: int = 16,
    iterations: int = 150,
    repeats: int = 1,
    epsilon: float = 0.2,
    draws: int = 48,
    substeps: int = 4,
    size: int = 192,
    seed: int = 0,
) -> ClassifierStudy:
    """Train networks with noise on points of the plane, attack them, and solve their equation.

    For each sigma the first network's surface u(x, 0) is compared with the spectral solution of the
    equation that its own velocity drives.

    Args:
        data: ``"moons"`` (the default) or ``"spirals"``.
        sigmas: The diffusion coefficients; 0, 0.05, 0.1 and 0.3 by default.
        layers: The layers of each network; 16 by default.
        iterations: The iterations of each training; 150 by default.
        repeats: The trainings for each sigma, each with other data and weights; 1 by default.
        epsilon: The largest change of a coordinate by the attack; 0.2 by default. The data lie in
            [-2, 2] x [-2, 2].
        draws: The paths that the surface averages; 48 by default.
        substeps: The Euler steps of each layer on the refined surface; 4 by default.
        size: The points along each axis of the spectral grid; 192 by default.
        seed: Fixes all that is drawn at random; 0 by default.

    Returns:
        A row for each sigma: accuracies, and how well network and equation agree.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or the data are unknown.

    Example::

        from enresnet.paper import study_classifier

        study = study_classifier(sigmas=(0.0, 0.3), layers=4, iterations=20, draws=4, size=64)
        for row in study.rows:
            print(row.sigma, row.natural, row.robust, row.agreement.rms)
    """
    checks.choice("data", data, DATA)
    checks.number("epsilon", epsilon, low=0, high=2 * HALF_WIDTH)
    checks.integer("draws", draws, low=2)
    checks.integer("substeps", substeps, low=1)
    checks.integer("repeats", repeats, low=1)
    grid = Grid(size=size, length=BOX, origin=-BOX / 2)
    values = check_sigmas(sigmas).tolist()
    found: list[list[Trained]] = [[] for _ in values]
    agreements: list[Agreement] = []
    with progress_bar(data, len(values) * (repeats + 1)) as advance:
        for repeat in range(repeats):
            for sigma, networks in zip(values, found, strict=True):
                own = seed + 2 * repeat  # its test points take the seed that follows
                flow = Flow(layers=layers, sigma=sigma, generator=named_generator(own, "flow"))
                networks.append(_trained(flow, data, iterations, epsilon, draws, own))
                advance(1, f"sigma = {sigma:g}")
                if repeat == 0:
                    tests = two_dimensional(data, TEST_POINTS, seed=own + 1)
                    agreements.append(_agreement(flow, grid, draws, substeps, tests, epsilon))
                    advance(1)
    points, labels = two_dimensional(data, TRAINING_POINTS, seed=seed)
    rows = [
        ClassifierRow(
            sigma,
            mean(network.residual for network in networks),
            mean(network.natural for network in networks),
            mean(network.robust for network in networks),
            [network.natural for network in networks],
            [network.robust for network in networks],
            [one.robust - first.robust for one, first in zip(networks, found[0], strict=True)],
            agreement,
        )
        for sigma, networks, agreement in zip(values, found, agreements, strict=True)
    ]
    line = grid.points[_inside(grid), 0, 0].tolist()
    return ClassifierStudy(data, epsilon, layers, rows, line, points, labels)


def _trained(
    flow: Flow, data: str, iterations: int, epsilon: float, draws: int, seed: int
) -> Trained:
    points, labels = two_dimensional(data, TRAINING_POINTS, seed=seed)
    tests, answers = two_dimensional(data, TEST_POINTS, seed=seed + 1)
    residual = train(flow, points, labels, iterations=iterations, draws=2)[-1]
    flow.requires_grad_(False)
    attack = PGD(
        epsilon=epsilon / (2 * HALF_WIDTH),
        steps=20,
        eot=1,  # a prediction averages draws itself
        precision="32",
        generator=named_generator(seed, "attack"),
    )
    clean = to_images(tests)
    harmed = attack(OnImages(flow, draws=8).eval(), clean, answers, progress=False)
    judge = OnImages(flow, draws=draws).eval()
    natural, robust = (
        float((judge(images).argmax(dim=1) == answers).double().mean())
        for images in (clean, harmed)
    )
    return Trained(flow, residual, natural, robust)


def _inside(grid: Grid) -> slice:
    """Return the rows and columns of the grid that are drawn."""
    edge = round((BOX / 2 - HALF_WIDTH) / grid.spacing)
    return slice(edge, grid.size - edge + 1)


def _agreement(
    flow: Flow,
    grid: Grid,
    draws: int,
    substeps: int,
    tests: tuple[Tensor, Tensor],
    epsilon: float,
) -> Agreement:
    inside = _inside(grid)
    places = grid.points[inside, inside]
    whole = spectral_surface(flow, grid)
    solution = whole[inside, inside]
    surface, error = _surface(flow, places, draws, 1)
    refined, _ = _surface(flow, places[::3, ::3], draws, substeps)
    off, finer = surface - solution, refined - solution[::3, ::3]
    steepest = grid.gradient(whole).norm(dim=-1)[inside, inside].max()
    return Agreement(
        surface,
        solution,
        _rms(off),
        float(off.abs().max()),
        _rms(finer),
        float(finer.abs().max()),
        _rms(error),
        float(steepest),
        overshoot(whole, flow.terminal(grid.points)),
        exhaustive_accuracy(grid, whole, *tests, epsilon),
    )


def exhaustive_accuracy(
    grid: Grid, surface: Tensor, points: Tensor, labels: Tensor, epsilon: float
) -> float:
    """Return the accuracy under the worst change of up to ``epsilon``, by exhaustive search.

    The surface u(x, 0) is evaluated at 21 x 21 points of the box around each test point, without
    any gradient: the best that an attack on the network could find.
    """
    line = torch.linspace(-epsilon, epsilon, 21, dtype=points.dtype)
    box = torch.cartesian_prod(line, line)
    reached = (points[:, None] + box).clamp(-HALF_WIDTH, HALF_WIDTH)
    one = bilinear(grid, surface)(reached)
    worst = torch.where(labels == 1, one.amin(dim=1), 1 - one.amax(dim=1))
    return float((worst > 0.5).double().mean())


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _surface(flow: Flow, places: Tensor, draws: int, substeps: int) -> tuple[Tensor, Tensor]:
    """Return the mean over draws of the network's output, and its standard error."""
    flat = places.reshape(-1, 2)
    total, squares = torch.zeros(len(flat)).double(), torch.zeros(len(flat)).double()
    count = draws if flow.sigma else 1
    for start in range(0, count, 16):
        found = flow.output(flat.expand(min(16, count - start), -1, -1), substeps=substeps)
        total += found.sum(dim=0)
        squares += (found**2).sum(dim=0)
    average = total / count
    variance = (squares / count - average**2).clamp(min=0)
    error = (variance / max(count - 1, 1)).sqrt()
    return average.reshape(places.shape[:2]), error.reshape(places.shape[:2])
