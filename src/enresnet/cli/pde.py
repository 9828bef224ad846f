"""``enresnet pde``: each study prints its numbers and, with ``--out``, draws its picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from matplotlib.figure import Figure

from enresnet.cli.output import check_outputs, write_json, write_picture
from enresnet.common import checks
from enresnet.common.files import writable
from enresnet.common.tables import print_table
from enresnet.paper import (
    classifier,
    figure4,
    study_classifier,
    study_figure4,
    study_multilevel,
    study_particles,
    verify_solvers,
)
from enresnet.pde import study_characteristics, study_depths, theorems
from enresnet.pde.flow import DATA
from enresnet.pde.smooth_problem import SIGMA
from enresnet.report import theory_figures as figures
from enresnet.report import theory_tables as tables
from enresnet.report.diagrams import paper_figures

PICTURES = (".png", ".svg")


@dataclass(frozen=True)
class Findings:
    """What a study found: numbers for the file, pictures by name, and whether all checks passed."""

    numbers: Any
    pictures: dict[str, Callable[[], Figure]]
    holds: bool = True


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """What every study takes."""

    seed: int = 0
    """Fixes all random draws."""
    json: Path | None = None
    """Also write the numbers to this file."""
    out: Path | None = None
    """A folder for the picture, as PNG and SVG; created if missing."""
    dpi: int = 150
    """Resolution of the PNG, in dots per inch."""

    @abstractmethod
    def run(self) -> Findings:
        """Measure and print."""

    def options(self, *left_out: str) -> dict[str, Any]:
        """Return the study's own options and the seed."""
        others = {"json", "out", "dpi", *left_out}
        return {name: value for name, value in vars(self).items() if name not in others}

    def check(self) -> None:
        """Raise before the work if its results could not be kept."""
        checks.integer("seed", self.seed, low=0)
        checks.integer("dpi", self.dpi, low=1)
        check_outputs(self.json)
        if self.out is not None:
            folder = self.out
            while not folder.exists():
                folder = folder.parent
            writable(folder / "picture")

    def keep(self, found: Findings) -> None:
        """Write the numbers, then draw."""
        write_json(self.json, found.numbers)
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            for name, figure in found.pictures.items():
                drawn = figure()
                for ending in PICTURES:
                    write_picture(self.out / f"{name}{ending}", drawn, dpi=self.dpi)


@dataclass(frozen=True, kw_only=True)
class Figure4(Study):
    """Figure 4: u(x, 0) in a random velocity, with more and more diffusion."""

    size: int = 128
    """Grid points per side of the unit square."""
    steps: int = 1000
    """Time steps; the velocity is drawn anew in each."""
    sigmas: tuple[float, ...] = figure4.SIGMAS
    """Diffusion coefficients."""
    frozen: bool = False
    """Draw the velocity once for all times."""
    diffusions: int | None = None
    """How often diffusion acts between the characteristics; by default as often as is cheap."""
    trap: bool = False
    """Show instead how plain pseudo-spectral steps fail on a velocity drawn at each point."""
    device: str = "cpu"
    """Where to compute: cpu or cuda."""

    def run(self) -> Findings:
        """Solve and print."""
        if self.trap:
            return self._trap()
        result = study_figure4(**self.options("trap"))
        _print(tables.figure4_table(result, steps=self.steps))
        return Findings(result.to_json(), {"pde-figure4": partial(figures.figure4_panels, result)})

    def _trap(self) -> Findings:
        for name in ("frozen", "diffusions", "out"):
            if getattr(self, name) != getattr(Figure4, name, None):
                raise ValueError(
                    f"trap solves both velocities by plain steps and draws nothing; found {name} "
                    "with it: leave one of them out"
                )
        options = self.options("trap", "frozen", "diffusions")
        found = [
            figure4.plain_spectral(**options, dealias=dealias, frozen=frozen)
            for frozen in (False, True)
            for dealias in (True, False)
        ]
        _print(tables.trap_table(found))
        return Findings([trap.to_json() for trap in found], {})


@dataclass(frozen=True, kw_only=True)
class Verify(Study):
    """Check every solver against known results; exit code 1 if a check fails."""

    def run(self) -> Findings:
        """Check and print."""
        found = verify_solvers(seed=self.seed)
        _print(tables.check_table(found))
        return Findings(
            [check.to_json() for check in found],
            {"pde-verify": partial(figures.verification, found)},
            holds=all(check.holds for check in found),
        )


@dataclass(frozen=True, kw_only=True)
class Particles(Study):
    """Feynman-Kac particles against the spectral solution: bias, noise, better paths."""

    sigma: float = SIGMA
    """Diffusion coefficient."""
    paths: int = 16_384
    """Independent paths from each point; the other kinds take a quarter."""
    steps: int = 64
    """Euler steps of the finer of the two runs that are extrapolated."""

    def run(self) -> Findings:
        """Measure and print."""
        study = study_particles(**self.options())
        _print(tables.particle_table(study))
        return Findings(study.to_json(), {"pde-particles": partial(figures.particle_errors, study)})


@dataclass(frozen=True, kw_only=True)
class Mlmc(Study):
    """Multi-level Monte Carlo: cost against error, and depths of networks as levels."""

    epsilons: tuple[float, ...] = (2e-2, 1e-2, 5e-3, 2e-3)
    """Target errors; 1e-3 takes about a minute more."""
    repetitions: int = 4
    """Runs of plain Monte Carlo for each of them; the levels run five times as often."""
    trainings: int = 4
    """Training runs for each depth and method."""

    def run(self) -> Findings:
        """Measure and print."""
        checks.integer("trainings", self.trainings, low=1)
        study = study_multilevel(**self.options("trainings"))
        _print(tables.level_table(study))
        depths = study_depths(trainings=self.trainings, seed=self.seed)
        _print(tables.depth_table(depths))
        return Findings(
            {**study.to_json(), "depths": [row.to_json() for row in depths]},
            {"pde-mlmc": partial(figures.multilevel_costs, study, depths)},
        )


@dataclass(frozen=True, kw_only=True)
class Theorems(Study):
    """Theorems 1 and 2 measured; exit code 1 if the corrected bound is exceeded."""

    cases: int = 240
    """Random fields for Theorem 2."""

    def run(self) -> Findings:
        """Measure and print."""
        cases = theorems.random_cases(**self.options())
        breaks = theorems.where_it_breaks()
        slower = theorems.where_it_breaks((1.0, 2.0, 3.0), wave=0.5)
        smooth = theorems.measure_smoothness(seed=self.seed)
        _print(tables.theorem_table(cases))
        _print(tables.break_table([*breaks, *slower]))
        _print(tables.smoothness_table(smooth))
        numbers = {
            "cases": [case.to_json() for case in cases],
            "breaks": [one.to_json() for one in [*breaks, *slower]],
            "smoothness": [one.to_json() for one in smooth],
        }
        return Findings(
            numbers,
            {"pde-theorems": partial(figures.theorem_checks, cases, breaks, smooth)},
            holds=max(case.ratio for case in cases) <= 1,
        )


@dataclass(frozen=True, kw_only=True)
class Classifier(Study):
    """Networks with noise on two-dimensional data, compared with the spectral solution."""

    data: tuple[str, ...] = DATA
    """Which data: moons, spirals."""
    sigmas: tuple[float, ...] = classifier.SIGMAS
    """Diffusion coefficients."""
    layers: int = 16
    """Layers of each network."""
    epsilon: float = 0.2
    """Largest change of a coordinate by the attack."""
    iterations: int = 150
    """Training iterations."""
    repeats: int = 1
    """Training runs per sigma, each with different data and weights; more show what is chance."""

    def run(self) -> Findings:
        """Train, attack, compare and print."""
        if not self.data:
            raise ValueError(f"data must be one at least of {', '.join(DATA)}")
        found = []
        for data in self.data:
            chosen = checks.choice("data", data, DATA)
            study = study_classifier(**self.options("data"), data=chosen)
            _print(tables.classifier_table(study))
            _print(tables.agreement_table(study))
            found.append(study)
        return Findings(
            [study.to_json() for study in found],
            {f"pde-{study.data}": partial(figures.classifier_surfaces, study) for study in found},
        )


@dataclass(frozen=True, kw_only=True)
class Characteristics(Study):
    """Figures 1 to 3: the network as Euler's method for characteristics, training as control."""

    def run(self) -> Findings:
        """Measure and print."""
        study = study_characteristics(seed=self.seed)
        _print(tables.characteristic_table(study))
        return Findings(
            study.to_json(),
            {
                "pde-network": paper_figures,
                "pde-characteristics": partial(figures.characteristic_curves, study),
            },
        )


def command(
    study: Annotated[
        Characteristics | Figure4 | Verify | Particles | Mlmc | Theorems | Classifier,
        tyro.conf.OmitArgPrefixes,
        tyro.conf.OmitSubcommandPrefixes,
    ],
) -> int:
    """Run the paper's theory: transport, convection-diffusion, Feynman-Kac, levels, theorems.

    Args:
        study: What to measure.
    """
    study.check()
    found = study.run()
    study.keep(found)
    return 0 if found.holds else 1


def _print(table: tables.Table) -> None:
    print_table(table.rows, title=table.title, caption=table.caption)
