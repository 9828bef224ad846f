"""Runs that differ in nothing but their seed, as one side of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from enresnet.evaluation import Evaluation
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.training.run import Run
from enresnet.training.run_config import RunConfig, plain_config

# Fields of a configuration that do not make a run one of another kind. Precision and memory are how
# a method is computed, not another method: docs/speed.md shows that training in bfloat16 loses
# nothing. Where runs of one side differ in precision, whoever shows them says so.
FREE = frozenset({"seed", "parts", "fingerprint", "classes", "precision", "recipe.memory"})


def kind_of(config: RunConfig) -> dict[str, Any]:
    """Return what makes runs of one kind: all but their seed and how they were computed.

    The one definition, of comparisons and of tables. Parts of equal weights are integrated as they
    are by default, so such weights are left out.
    """
    found = {name: value for name, value in plain_config(config).items() if name not in FREE}
    return found | {"weights": () if len(set(config.weights)) <= 1 else tuple(config.weights)}


def precision_words(runs: Sequence[Run]) -> str:
    """Return a sentence if runs were trained in different precisions, else ""."""
    found = sorted({str(run.config.precision) for run in runs})
    return f"Trained in different precisions: {', '.join(found)}." if len(found) > 1 else ""


@dataclass(frozen=True)
class RunGroup:
    """One side: the results of each run, by its seed."""

    name: str
    records: Mapping[str, ResultsFolder | Evaluation]
    seeded: bool  # otherwise the keys are only numbers
    commits: frozenset[str]
    runs: tuple[Run, ...] = ()

    @classmethod
    def of(cls, folders: Sequence[Path], *, section: str = "best") -> RunGroup:
        """Return the group of these runs; raise unless they differ in their seed alone.

        Folders without a config.yaml, such as evaluations of other people's models, have no seed.
        """
        weights: dict[str, Path] = {}
        for folder in folders:
            digest = str(ResultsFolder(folder).section(section).about["weights"])
            if digest in weights:
                raise ValueError(
                    f"{weights[digest]} and {folder} hold the same weights: name each training once"
                )
            weights[digest] = folder
        if any(not (folder / "config.yaml").is_file() for folder in folders):
            numbered = {str(number): ResultsFolder(folder) for number, folder in enumerate(folders)}
            names = {
                str(ResultsFolder(folder).section(section).about["model"]) for folder in folders
            }
            return cls(_named(names, len(folders)), numbered, False, frozenset())
        runs = [Run.open(folder) for folder in folders]
        _check_alike(runs)
        records: dict[str, ResultsFolder] = {}
        for run in runs:
            seed = str(run.config.seed)
            if seed in records:
                raise ValueError(
                    f"{records[seed].folder} and {run.folder} were trained with the same seed: "
                    "runs of one side must differ in it"
                )
            records[seed] = run.results
        commits = frozenset(found for run in runs if (found := _commit(run)))
        return cls(_named({runs[0].config.model}, len(runs)), records, True, commits, tuple(runs))

    def only(self, seeds: Sequence[str]) -> RunGroup:
        """Return the runs of these seeds alone."""
        name = self.name.replace(f"({len(self.records)} ", f"({len(seeds)} ")
        return replace(self, name=name, records={seed: self.records[seed] for seed in seeds})


def pair_by_seed(first: RunGroup, second: RunGroup) -> tuple[RunGroup, RunGroup, bool, list[str]]:
    """Return both sides as they are compared, whether they are paired, and notes for the reader.

    If at least two seeds are on both sides, those make pairs and the others are left out.
    """
    for side, other in ((first, second), (second, first)):
        if len(side.records) < 2:
            raise ValueError(
                f"{side.name} has one run and {other.name} several: how much its trainings differ "
                "is not known; train another seed, or compare two runs alone"
            )
    notes = training_notes(first.runs, second.runs)
    commits = sorted(first.commits | second.commits)
    if len(commits) > 1:
        notes.append(f"Trained by different commits: {', '.join(c[:12] for c in commits)}.")
    common = [seed for seed in first.records if seed in second.records]
    if not (first.seeded and second.seeded) or len(common) < 2:
        notes.append("No two seeds in common: the runs are compared as two groups.")
        return first, second, False, notes
    for side in (first, second):
        left = [seed for seed in side.records if seed not in common]
        if left:
            notes.append(
                f"Left out of {side.name}: seed {', '.join(left)}, which has no partner on the "
                "other side."
            )
    notes.append(f"Paired by seed: {', '.join(common)}.")
    return first.only(common), second.only(common), True, notes


def training_notes(first: Sequence[Run], second: Sequence[Run]) -> list[str]:
    """Return what else the trainings of two sides differ in than their networks, a sentence each.

    What is not known of evaluations of other people's models is not said.
    """
    notes = [f"{run.folder.name}: {run.collapse}." for run in (*first, *second) if run.collapse]
    if first and second:
        one, two = (kind_of(side[0].config) for side in (first, second))
        differing = [
            f"{name} {one[name]} and {two[name]}"
            for name in one
            if one[name] != two[name] and name != "model"
        ]
        if differing:
            notes.append(f"The sides differ in {', '.join(differing)}.")
    if mixed := precision_words((*first, *second)):
        notes.append(mixed)
    return notes


def _named(models: set[str], count: int) -> str:
    return f"{' and '.join(sorted(models))} ({count} run{'' if count == 1 else 's'})"


def _check_alike(runs: Sequence[Run]) -> None:
    """Raise if runs of a side differ in more than their seed, or share a network."""
    reference = kind_of(runs[0].config)
    for run in runs[1:]:
        found = kind_of(run.config)
        differing = [
            f"{name} {reference[name]!r} and {found[name]!r}"
            for name in reference
            if reference[name] != found[name]
        ]
        if differing:
            raise ValueError(
                f"{runs[0].folder} and {run.folder} differ in more than their seed "
                f"({'; '.join(differing)}): runs of one side must be of one kind"
            )
    owner: dict[str, Path] = {}
    for run in runs:
        for part in run.config.parts:
            if part in owner:
                raise ValueError(
                    f"{owner[part]} and {run.folder} share {part}: integrated runs of one side "
                    "must have parts of their own"
                )
            owner[part] = run.folder


def _commit(run: Run) -> str:
    """Return the commit that began a run, "" if it is not known."""
    try:
        return str(json.loads((run.folder / "environment.json").read_text())[0]["commit"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
