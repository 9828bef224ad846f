"""What the studies of the theory found: the numbers that tables and pictures show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from torch import Tensor

from enresnet.pde.grid import Grid
from enresnet.pde.mlmc import MultilevelEstimate
from enresnet.pde.particles import Estimate, slope
from enresnet.pde.semi_lagrangian import Draws


@dataclass(frozen=True)
class Regularity:
    """What the text claims of one panel, in numbers."""

    sigma: float | None  # of f itself: none
    lowest: float
    highest: float
    gradient: float  # root of the mean square of |grad u|
    steepest: float  # largest |grad u|
    total_variation: float  # mean of |grad u|
    mean_wave: float  # of the power spectrum, in waves a unit length
    fine_share: float  # of the power in waves above FINE_WAVE
    distance: float  # of random points to the level set through the median, on average
    near: float  # share of random points nearer to it than one spacing of the grid
    overshoot: float  # beyond the range of f, as a share of that range

    def to_json(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return dict(vars(self))


@dataclass(frozen=True)
class Figure4:
    """The four panels and their numbers; f comes last."""

    grid: Grid
    velocity: Draws
    terminal: Tensor
    solutions: dict[float, Tensor]
    refinements: dict[float, int]
    rows: list[Regularity]
    terminal_row: Regularity
    spectra: dict[float | None, tuple[list[float], list[float]]]
    distances: dict[float | None, Tensor]

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, without the panels."""
        return {
            "size": self.grid.size,
            "rows": [row.to_json() for row in self.rows],
            "terminal": self.terminal_row.to_json(),
            "refinements": {str(sigma): factor for sigma, factor in self.refinements.items()},
            "spectra": {
                "f" if sigma is None else str(sigma): {"wave": waves, "power": power}
                for sigma, (waves, power) in self.spectra.items()
            },
        }


@dataclass(frozen=True)
class Trap:
    """The largest |u(x, 0)| that plain pseudo-spectral steps give, for each sigma."""

    frozen: bool
    dealias: bool
    largest: dict[float, float]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "largest": {str(s): value for s, value in self.largest.items()}}


@dataclass(frozen=True)
class Check:
    """A number that must stay below, or reach, a bound."""

    name: str
    found: float
    bound: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the number keeps its bound; NaN never does."""
        return self.found >= self.bound if self.at_least else self.found <= self.bound

    def to_json(self) -> dict[str, float | str | bool]:
        """Return plain values."""
        return {**vars(self), "holds": self.holds}


@dataclass(frozen=True)
class WeakOrder:
    """The bias of Euler-Maruyama against the number of steps."""

    steps: list[int]
    errors: list[float]  # root mean square over the points
    bars: list[float]  # standard errors

    @property
    def order(self) -> float:
        """The slope of the error in the time step."""
        return slope([1 / count for count in self.steps], self.errors)


@dataclass(frozen=True)
class ParticleStudy:
    """What the particles of the study gave."""

    points: list[list[float]]
    exact: list[float]
    estimates: dict[str, Estimate]  # by method
    scores: dict[str, list[float]]  # deviations in standard errors
    weak: WeakOrder
    path_numbers: list[int]
    path_errors: dict[str, list[float]]  # root mean square over points and repetitions
    path_orders: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **vars(self),
            "estimates": {k: e.to_json() for k, e in self.estimates.items()},
            "weak": {**vars(self.weak), "order": self.weak.order},
        }


@dataclass(frozen=True)
class Cost:
    """What a wanted error costs with and without levels; the runs are those of median cost."""

    epsilon: float
    multilevel: MultilevelEstimate
    plain: MultilevelEstimate
    multilevel_error: float  # root mean square against the spectral solution
    plain_error: float
    multilevel_seconds: float  # median
    plain_seconds: float

    @property
    def gain(self) -> float:
        """How many times fewer Euler steps the levels take."""
        return self.plain.cost / self.multilevel.cost

    @property
    def gain_in_seconds(self) -> float:
        """The same in time on this machine, whose vectors and threads like long batches."""
        return self.plain_seconds / self.multilevel_seconds

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "epsilon": self.epsilon,
            "gain": self.gain,
            "multilevel": self.multilevel.to_json(),
            "plain": {**self.plain.to_json(), "bias": None},
            "multilevel_error": self.multilevel_error,
            "plain_error": self.plain_error,
            "multilevel_seconds": self.multilevel_seconds,
            "plain_seconds": self.plain_seconds,
        }


@dataclass(frozen=True)
class MultilevelStudy:
    """Cost against error for both ways."""

    point: list[float]
    exact: float
    rows: list[Cost]
    multilevel_growth: float  # of the cost, from the largest epsilon to the smallest
    plain_growth: float
    variance_order: float  # of V_l in the step

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "rows": [row.to_json() for row in self.rows]}


@dataclass(frozen=True)
class Agreement:
    """A network's surface and the spectral solution of its equation, where the data is."""

    network: Tensor
    spectral: Tensor
    rms: float  # of their difference
    largest: float
    refined_rms: float  # the same with each layer in `substeps` Euler steps
    refined_largest: float
    monte_carlo: float  # root mean square standard error of the network's surface
    steepest: float  # largest |grad u| of the spectral solution
    overshoot: float  # of the spectral solution beyond the range of f
    exhaustive: float  # its accuracy under a search of the whole box about each test point

    def to_json(self) -> dict[str, float]:
        """Return the numbers, without the surfaces."""
        return {name: value for name, value in vars(self).items() if isinstance(value, float)}


@dataclass(frozen=True)
class ClassifierRow:
    """The networks of one sigma: means over trainings, and how the first agrees with its equation.

    ``gains`` are the differences of the robust accuracy to the first sigma's, training by training.
    """

    sigma: float
    residual: float
    natural: float
    robust: float
    naturals: list[float]
    robusts: list[float]
    gains: list[float]
    agreement: Agreement

    @property
    def gain(self) -> float:
        """The mean gain."""
        return mean(self.gains)

    @property
    def gain_error(self) -> float | None:
        """Its standard error over trainings, if there is more than one."""
        return stdev(self.gains) / math.sqrt(len(self.gains)) if len(self.gains) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        own = {name: value for name, value in vars(self).items() if name != "agreement"}
        summary = {"gain": self.gain, "gain_error": self.gain_error}
        return {**own, **summary, **self.agreement.to_json()}


@dataclass(frozen=True)
class ClassifierStudy:
    """The networks of one data set, with their surfaces for the picture."""

    data: str
    epsilon: float
    layers: int
    rows: list[ClassifierRow]
    line: list[float]  # coordinates of the surfaces
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
