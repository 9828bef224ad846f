"""Where the runs of a reproduction are: in its own folder, and among runs of before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from enresnet.paper.measurement import Measurement
from enresnet.paper.published import METRICS, TRAININGS, Network
from enresnet.paper.setup import PARTNER, Setup, base_of
from enresnet.training import Run, RunConfig
from enresnet.training.recipe import name_of
from enresnet.training.run_groups import kind_of

PLACE = 3  # DATA/RECIPE/RUN: what a part is known by, wherever the folder was moved


@dataclass(frozen=True)
class Choice:
    """Several runs of one network and seed, of which one counts.

    Attributes:
        network: The network.
        seed: The seed.
        taken: The run that counts: that of which most is measured.
        others: Those that do not.
    """

    network: Network
    seed: int
    taken: Run
    others: tuple[Run, ...]

    def __str__(self) -> str:
        others = ", ".join(str(run.folder) for run in self.others)
        name = f"{self.network.key} on {self.network.data}, seed {self.seed}"
        verb = "do" if len(self.others) > 1 else "does"
        return (
            f"There are {1 + len(self.others)} runs of {name}: {self.taken.folder} counts, "
            f"{others} {verb} not; the one of which more is measured comes first."
        )


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
        self._runs: dict[Path, Run] = {}  # by their folders, resolved
        self._skipped: dict[Path, str] = {}
        for folder in others:
            if not folder.is_dir():
                raise FileNotFoundError(f"there is no folder {folder}; name one that holds runs")
        for folder in (out, *others):
            for path in sorted(folder.rglob("config.yaml")):
                if (run := self._opened(path.parent)) is not None:
                    self._runs.setdefault(run.folder.resolve(), run)
        self._own = True  # whether its own folder counts too
        self._found: dict[tuple[Network, int], Run] = {}
        self._choices: dict[tuple[Network, int], Choice] = {}

    @classmethod
    def of(cls, setup: Setup, runs: Sequence[Run]) -> RunIndex:
        """Return an index of these runs alone, of all their seeds."""
        index = cls.__new__(cls)
        index.setup, index.out = setup, Path()
        index._runs = {run.folder.resolve(): run for run in runs}
        index._own, index._any_seed, index._skipped = False, True, {}
        index._found, index._choices = {}, {}
        return index

    @property
    def skipped(self) -> list[str]:
        """A sentence on each folder that looks like a run and cannot be read."""
        return list(self._skipped.values())

    def _opened(self, folder: Path) -> Run | None:
        """Return the run in a folder; None if it cannot be read."""
        try:
            run = Run.open(folder)
            _ = run.finished  # reads the rest of what the index needs
        except Exception as error:  # whatever is wrong with one folder, the others are read
            words = " ".join(str(error).split())
            self._skipped[folder.resolve()] = f"{folder} is left out: {words}"
            return None
        return run

    def folder(self, network: Network, seed: int) -> Path:
        """Return where a run is trained, if it is not there yet."""
        return self.out / self.setup.place(network, seed)

    def find(self, network: Network, seed: int) -> Run | None:
        """Return a finished run, of several the one that is measured most; None without one."""
        key = (network, seed)
        if key not in self._found and (runs := self._all(network, seed)):
            taken = runs[0] if len(runs) == 1 else max(runs, key=self._measured)
            self._found[key] = taken
            if others := tuple(run for run in runs if run is not taken):
                self._choices[key] = Choice(network, seed, taken, others)
        return self._found.get(key)

    def _all(self, network: Network, seed: int) -> list[Run]:
        """Return all finished runs of a network and a seed, that in its own place first."""
        own = self.folder(network, seed)
        there = self._own and (own / "config.yaml").is_file()
        opened = self._opened(own) if there else None
        runs = {} if opened is None else {own.resolve(): opened}
        runs |= {place: run for place, run in self._runs.items() if place not in runs}
        wanted = self.setup.config(network, seed)
        return [
            run
            for place, run in runs.items()
            if run.config.seed == seed
            and alike(run.config, wanted)
            and self._is_named(place, network, seed)
            and self._has_parts(run, network, seed)
            and run.finished
        ]

    def _is_named(self, place: Path, network: Network, seed: int) -> bool:
        """Return whether a folder is of this network: in a smoke run, several have one stand-in."""
        own = self.setup.place(network, seed).parts
        return not self.setup.smoke or place.parts[-len(own) :] == own

    def _has_parts(self, run: Run, network: Network, seed: int) -> bool:
        """Return whether a run was integrated from the right runs, with equal weights.

        The first part has the run's own seed. Others of the same base have other seeds: those that
        a reproduction trains for it, or any that there are.
        """
        if len(run.config.parts) != len(network.parts) or len(set(run.config.weights)) > 1:
            return False
        taken: set[tuple[str, int]] = set()
        planned = self.setup.part_seeds(network, seed)
        for name, part, own in zip(run.config.parts, network.parts, planned, strict=True):
            base = base_of(part)
            others = {one.config.seed for one in self._runs.values()} if taken else set()
            for other in (own, *sorted(others - {own})):
                known = {one.folder.name for one in self._all(part, other)}
                if (base, other) not in taken and Path(name).name in known:
                    taken.add((base, other))
                    break
            else:
                return False
        return True

    def _measured(self, run: Run) -> tuple[int, int]:
        """Return how much of a run is measured: what tables of white-box attacks use, and all."""
        own = Measurement(self.setup, run)
        try:
            return sum(own.has_scores(metric) for metric in METRICS), len(run.results.scores()[0])
        except ValueError:  # damaged: any other counts before it
            return -1, -1

    @property
    def found(self) -> list[Run]:
        """The runs that were asked for and are there."""
        return list(self._found.values())

    def collapsed(self, run: Run) -> str:
        """Return why a run was not trained by its recipe to the end; "" if it was.

        The collapse of a part counts for what it was integrated into.
        """
        if run.collapse:
            return run.collapse
        parts = {Path(part).parts[-PLACE:] for part in run.config.parts}
        for place, other in self._runs.items() if parts else ():
            if any(place.parts[-len(part) :] == part for part in parts) and other.collapse:
                return f"of its part {other.folder.name}, {other.collapse}"
        return ""

    def choices(self, networks: Iterable[Network]) -> list[Choice]:
        """Return where there are several runs of one of these networks and a seed."""
        wanted = {one for network in networks for one in (network, *network.parts)}
        return [choice for (network, _), choice in self._choices.items() if network in wanted]

    def seeds(self, network: Network) -> list[int]:
        """Return the seeds that finished runs of a network have."""
        seeds = set(self.setup.seeds)
        if self._any_seed:
            seeds |= {r.config.seed for r in self._runs.values() if r.config.seed < PARTNER}
        return [seed for seed in sorted(seeds) if self.find(network, seed) is not None]

    def trained_otherwise(self, networks: Iterable[Network]) -> dict[str, list[Run]]:
        """Return runs of networks that have none that counts, by how they were trained."""
        missing = {network for network in networks if not self.seeds(network)}
        wanted: dict[tuple[str, str], list[RunConfig]] = {}
        for network in missing:
            for training in TRAININGS:
                config = self.setup.config(replace(network, training=training), 0)
                wanted.setdefault((config.model, config.data), []).append(config)
        found: dict[str, list[Run]] = {}
        for run in self._runs.values():
            known = wanted.get((run.config.model, run.config.data), [])
            if known and not any(alike(run.config, config) for config in known):
                found.setdefault(self._way(run.config), []).append(run)
        return found

    def _way(self, config: RunConfig) -> str:
        """Return in words how a run was trained."""
        recipe = replace(config.recipe, memory="auto")
        name = name_of(recipe)
        if recipe in {self.setup.recipe_for(training) for training in TRAININGS}:
            return "this recipe, but other images"
        return f"recipe {name}" if name else f"{recipe.epochs} epochs of {recipe.objective}"


def alike(config: RunConfig, wanted: RunConfig) -> bool:
    """Return whether a run was trained as it is wanted, whatever its seed."""
    return kind_of(config) == kind_of(wanted)
