"""Where the runs of a reproduction are: in its own folder, and among runs of before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enresnet.paper.published import Network
from enresnet.paper.setup import PARTNER, Setup
from enresnet.training import Run, RunConfig
from enresnet.training.run import plain_config

# Fields of a configuration that do not make a run another one.
FREE = {"seed", "precision", "fingerprint", "classes", "parts", "weights", "recipe.memory"}


class RunIndex:
    """Finds the run of a network and a seed.

    Args:
        setup: How networks are trained.
        out: The folder of the reproduction.
        others: Folders with more runs, however deep. A run of theirs counts if model, data, recipe
            and seed are the same.
        any_seed: Whether all seeds count that there are, and not only those of the setup.
    """

    def __init__(
        self, setup: Setup, out: Path, others: Sequence[Path] = (), *, any_seed: bool = False
    ) -> None:
        self.setup, self.out = setup, out
        self._any_seed = any_seed
        self._others: list[Run] = []
        for folder in others:
            if not folder.is_dir():
                raise FileNotFoundError(f"there is no folder {folder}; name one that holds runs")
            self._others += _runs_in(folder)
        if any_seed:
            self._others += _runs_in(out)
        self._own = True  # whether its own folder counts too
        self._found: dict[tuple[Network, int], Run] = {}

    @classmethod
    def of(cls, setup: Setup, runs: Sequence[Run]) -> RunIndex:
        """Return an index of these runs alone, of all their seeds."""
        index = cls(setup, Path())
        index._others, index._own, index._any_seed = list(runs), False, True
        return index

    def folder(self, network: Network, seed: int) -> Path:
        """Return where a run is trained, if it is not there yet."""
        return self.out / self.setup.place(network, seed)

    def find(self, network: Network, seed: int) -> Run | None:
        """Return a finished run; None if there is none."""
        if (network, seed) in self._found:
            return self._found[network, seed]
        own = self.folder(network, seed)
        there = self._own and (own / "config.yaml").is_file()
        runs = [Run.open(own)] if there else []
        wanted = self.setup.config(network, seed)
        for run in [*runs, *self._others]:
            if (
                run.config.seed == seed
                and alike(run.config, wanted)
                and self._has_parts(run, network, seed)
                and run.finished
            ):
                self._found[network, seed] = run
                return run
        return None

    def _has_parts(self, run: Run, network: Network, seed: int) -> bool:
        """Return whether a run was integrated from the right runs, with equal weights."""
        seeds = self.setup.part_seeds(network, seed)
        parts = [self.find(part, own) for part, own in zip(network.parts, seeds, strict=True)]
        names = [None if part is None else part.folder.name for part in parts]
        equal = len(set(run.config.weights)) <= 1
        return equal and [Path(name).name for name in run.config.parts] == names

    @property
    def found(self) -> list[Run]:
        """The runs that were asked for and are there."""
        return list(self._found.values())

    def seeds(self, network: Network) -> list[int]:
        """Return the seeds that finished runs of a network have."""
        seeds = set(self.setup.seeds)
        if self._any_seed:
            seeds = {run.config.seed for run in self._others if run.config.seed < PARTNER}
        return [seed for seed in sorted(seeds) if self.find(network, seed) is not None]


def _runs_in(folder: Path) -> list[Run]:
    return [Run.open(path.parent) for path in sorted(folder.rglob("config.yaml"))]


def alike(config: RunConfig, wanted: RunConfig) -> bool:
    """Return whether a run was trained as it is wanted, whatever its seed."""
    return _deciding(config) == _deciding(wanted)


def _deciding(config: RunConfig) -> dict[str, Any]:
    return {name: value for name, value in plain_config(config).items() if name not in FREE}
