"""Where the runs of a reproduction are: in its own folder, and among runs that were there before."""

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
        for folder in [*others, *([out] if any_seed and out.is_dir() else [])]:
            if not folder.is_dir():
                raise FileNotFoundError(f"there is no folder {folder}; name one that holds runs")
            self._others += [Run.open(path.parent) for path in sorted(folder.rglob("config.yaml"))]
        self._found: dict[tuple[Network, int], Run] = {}

    def folder(self, network: Network, seed: int) -> Path:
        """Return where a run is trained, if it is not there yet."""
        return self.out / self.setup.place(network, seed)

    def find(self, network: Network, seed: int) -> Run | None:
        """Return a finished run; None if there is none."""
        if (network, seed) in self._found:
            return self._found[network, seed]
        own = self.folder(network, seed)
        runs = [Run.open(own)] if (own / "config.yaml").is_file() else []
        wanted = self.setup.config(network, seed)
        for run in [*runs, *self._others]:
            integrated = bool(run.config.parts) == bool(network.parts)
            if run.config.seed == seed and integrated and alike(run.config, wanted) and run.finished:
                self._found[network, seed] = run
                return run
        return None

    def seeds(self, network: Network) -> list[int]:
        """Return the seeds that finished runs of a network have."""
        seeds = set(self.setup.seeds)
        if self._any_seed:
            seeds = {run.config.seed for run in self._others if run.config.seed < PARTNER}
        return [seed for seed in sorted(seeds) if self.find(network, seed) is not None]


def alike(config: RunConfig, wanted: RunConfig) -> bool:
    """Return whether a run was trained as it is wanted, whatever its seed."""
    return _deciding(config) == _deciding(wanted)


def _deciding(config: RunConfig) -> dict[str, Any]:
    return {name: value for name, value in plain_config(config).items() if name not in FREE}
