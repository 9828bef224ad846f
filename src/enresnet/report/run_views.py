"""The runs as the page prints them: an overview, what each cost, and everything of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enresnet.common.progress import clock
from enresnet.common.text import brief
from enresnet.evaluation import Accuracy, Evaluation
from enresnet.evaluation.results_folder import Section
from enresnet.report.run_facts import RunFacts, is_number
from enresnet.training import Recipe

MOST_COLUMNS = 5  # attacks in the overview; the rest is with each run
COMMIT = 10  # letters


@dataclass(frozen=True)
class RunsView:
    """All runs.

    Attributes:
        columns: The attacks that most runs were measured under, "clean" first.
        rows: A row for each run.
        costs: What each run cost, in the same order.
        total: The sums of the costs.
        environments: Each environment in words, with the anchors of its runs.
    """

    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    costs: tuple[dict[str, Any], ...]
    total: dict[str, Any]
    environments: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of(cls, runs: Sequence[RunFacts], anchors: dict[Path, str]) -> RunsView:
        """Return the view; ``anchors`` has the place on the page of each run, by its folder."""
        counted = Counter(name for facts in runs for name in facts.accuracies())
        most = {name for name, _ in counted.most_common(MOST_COLUMNS + 1)} | {"clean"}
        columns = tuple(name for name in counted if name in most)
        rows = tuple(_row(facts, anchors[facts.run.folder.resolve()], columns) for facts in runs)
        costs = tuple(_cost(facts) for facts in runs)
        total = {
            name: sum(cost[name] for cost in costs if cost[name] is not None)
            for name in ("training", "evaluation", "gradients", "passes")
        }
        known = [cost["core"] for cost in costs if cost["core"] is not None]
        total["core"] = sum(known) if len(known) == len(costs) else None  # else it would mislead
        places: dict[str, list[str]] = {}
        for facts in runs:
            for entry in facts.environment:
                anchor = anchors[facts.run.folder.resolve()]
                known = places.setdefault(environment_words(entry), [])
                known += [] if anchor in known else [anchor]
        found = tuple((words, tuple(own)) for words, own in places.items())
        return cls(columns, rows, costs, total, found)


def _row(facts: RunFacts, anchor: str, columns: Sequence[str]) -> dict[str, Any]:
    config, known = facts.run.config, facts.accuracies()
    done, of = len(facts.epochs), config.recipe.epochs
    return {
        "anchor": anchor,
        "name": str(facts.run.folder),
        "model": config.model,
        "data": config.data,
        "training": "integrated" if config.parts else training_words(config.recipe),
        "seed": config.seed,
        "epochs": "" if config.parts else str(of) if done == of else f"{done} of {of}",
        "done": done,
        "kept": facts.kept,
        "state": facts.state,
        "cells": [_cell(known[name]) if name in known else None for name in columns],
        "sections": [_section(name, facts) for name in facts.sections],
        "environment": [environment_words(entry) for entry in facts.environment],
        "settings": {
            **{key: value for key, value in config.recipe.to_dict().items() if value is not None},
            "precision": config.precision,
            **({"limit": config.limit} if config.limit else {}),
            **({"parts": ", ".join(config.parts)} if config.parts else {}),
        },
        "classes": config.classes,
        "warnings": facts.warnings,
    }


def _cell(value: Accuracy) -> dict[str, Any]:
    low, high = value.interval
    return {
        "value": 100 * value.accuracy,
        "low": 100 * low,
        "high": 100 * high,
        "images": value.images,
        "hint": f"{value.draws} draw{'s' * (value.draws > 1)} of each image",
    }


def _section(name: str, facts: RunFacts) -> dict[str, Any]:
    section = facts.sections[name]
    evaluation = section.evaluation
    return {
        "name": _section_name(name, section),
        "title": section.title,
        "rows": evaluation.table(),
        "details": evaluation.details() if _by_class(evaluation) else [],
        "attacks": [(key, v.attack) for key, v in evaluation.robust.items() if v.attack],
    }


def _section_name(name: str, section: Section) -> str:
    """Return the name of a section, with its radius as one would type it."""
    own, at, _ = name.partition(" at epsilon ")
    epsilon = section.about["epsilon"]
    return f"{own}{at}{brief(epsilon)}" if at and is_number(epsilon) else name


def _by_class(evaluation: Evaluation) -> bool:
    return all(v.per_class for v in (evaluation.natural, *evaluation.robust.values()))


def _cost(facts: RunFacts) -> dict[str, Any]:
    training, cores = facts.training_seconds, facts.cores
    # Clean images are measured once and kept with each radius.
    once = {(v.attack, v.seconds, v.images): v for v in facts.all_accuracies()}.values()
    return {
        "training": training,
        "core": None if training is None or cores is None else training * cores,
        "training_passes": facts.training_passes,
        "evaluation": sum(v.seconds for v in once) if once else None,
        "gradients": sum(round(v.gradients * v.images) for v in once),
        "passes": sum(round((v.evaluations + v.draws) * v.images) for v in once),
    }


def training_words(recipe: Recipe) -> str:
    """Return the training in a few words."""
    if recipe.objective == "natural":
        return "natural"
    return f"{recipe.objective} at {brief(recipe.epsilon)}"


def environment_words(entry: dict[str, Any]) -> str:
    """Return where something was computed, as far as it is known."""
    threads, processes = entry.get("threads"), entry.get("processes", 1)
    words = [str(entry.get("processor", ""))]
    if threads is not None:
        words.append(f"{threads} thread{'s' * (threads != 1)}")
    if processes != 1:
        words[-1] += f" in each of {processes} processes"
    words += [f"{name} {entry[name]}" for name in ("torch", "python", "enresnet") if name in entry]
    if commit := str(entry.get("commit") or ""):
        words.append(f"commit {commit[:COMMIT]}{'+' * commit.endswith('+')}")
    return ", ".join(filter(None, words))


def duration(seconds: float | None) -> str:
    """Return a time as 1:02:03 or 2:03; "" if there is none."""
    return "" if seconds is None else clock(seconds)
