"""The charts of a report: training curves (Fig. 5), accuracy against epsilon and against draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from enresnet.common.text import brief
from enresnet.report.charts import Chart, Line
from enresnet.report.run_facts import RunFacts, is_number
from enresnet.training import Recipe
from enresnet.training.recipe import name_of

Key = TypeVar("Key")
Slots = Mapping[tuple[str, str], int]
ENSEMBLE = re.compile(r"en(\d+)_(.+)")
LOG_FROM = 20.0  # radii further apart than this factor are drawn on a logarithmic axis


@dataclass(frozen=True)
class Panels:
    """Charts that stand side by side, the heading above them and the caption below."""

    heading: str
    charts: Sequence[Chart]
    caption: str = ""


def network_key(model: str) -> tuple[str, int]:
    """Return by what networks are sorted: the base network, then the members; 0 without noise."""
    found = ENSEMBLE.fullmatch(model)
    return (model, 0) if found is None else (found[2], int(found[1]))


def network_slots(runs: Iterable[RunFacts]) -> Slots:
    """Return a number for each data set and network: its colour and mark all over the page."""
    names: dict[str, set[str]] = {}
    for facts in runs:
        names.setdefault(facts.run.config.data, set()).add(facts.model)
    return {
        (data, model): number
        for data, own in names.items()
        for number, model in enumerate(sorted(own, key=network_key))
    }


def training_charts(runs: Sequence[RunFacts], slots: Slots) -> list[Panels]:
    """Return the curves of all trainings: for each base network, clean images and attacked ones."""
    found = []
    known = [facts for facts in runs if facts.epochs]
    words = recipe_words([facts.run.config.recipe for facts in runs])
    for (data, recipe, base), group in _grouped(known, _of_one_base).items():
        trained = words[recipe]
        charts, names = [], _line_names(group)
        for column, title in (("natural", "clean images"), ("robust", "attacked images")):
            lines = [
                line
                for facts in group
                for line in _epochs(facts, column, names[facts.run.folder], slots)
            ]
            if lines:
                chart = Chart(f"{base} on {data}: {title}", "epoch", "accuracy, %", lines)
                charts.append(chart)
        if charts:
            heading = f"{base} and its ensembles on {data}, trained with {trained}"
            if all(facts.model == base for facts in group):
                heading = f"{base} on {data}, trained with {trained}"
            found.append(Panels(heading, charts))
    return found


def _of_one_base(facts: RunFacts) -> tuple[str, Recipe, str]:
    return *_of_one_training(facts), network_key(facts.model)[0]


def recipe_words(recipes: Iterable[Recipe]) -> dict[Recipe, str]:
    """Return each recipe in a few words: its objective, and what tells it from the others."""
    names: dict[Recipe, set[str]] = {}
    for recipe in recipes:
        names.setdefault(_decisive(recipe), set()).add(name_of(recipe))
    found = {}
    for recipe, known in names.items():
        own, told = recipe.to_dict(), []
        rivals = [other.to_dict() for other in names if other.objective == recipe.objective]
        rivals.remove(own)
        if rivals and "" not in known:
            told, rivals = [f"recipe {' or '.join(sorted(known))}"], []
        for key, value in own.items():  # as few fields as tell it from all others
            if any(other[key] != value for other in rivals):
                told.append(f"{key} {brief(value)}")
                rivals = [other for other in rivals if other[key] == value]
        found[recipe] = ", ".join([recipe.objective, *told])
    return found


def _decisive(recipe: Recipe) -> Recipe:
    """Return what makes trainings comparable: not the learning rate, which each network may need
    another of, nor how memory is saved, which changes no result.
    """
    return replace(recipe, memory="auto", learning_rate=1.0)


def _epochs(facts: RunFacts, column: str, name: str, slots: Slots) -> Iterable[Line]:
    """Yield accuracy on validation images, and dashed that on the training's own."""
    for part in ("train", "validation"):
        points = [
            (float(row["epoch"]), 100 * row[f"{part}_{column}"])
            for row in facts.epochs
            if is_number(row.get(f"{part}_{column}"))
        ]
        if points:
            training = part == "train"
            yield Line(
                facts.model,
                slots[facts.run.config.data, facts.model],
                points,
                dashed=training,
                column=f"{name}, training" if training else name,
            )


def radius_charts(runs: Sequence[RunFacts], slots: Slots) -> list[Panels]:
    """Return accuracy against epsilon: a chart for each data set, recipe, attack and norm."""
    found = []
    words = recipe_words([facts.run.config.recipe for facts in runs])
    for (data, recipe), group in _grouped(runs, _of_one_training).items():
        charts = []
        names = _line_names(group)
        kinds = {(c.attack, c.norm) for facts in group for c in facts.curves}
        for attack, norm in sorted(kinds, key=lambda kind: (kind[1] != "linf", *kind)):
            own = [
                (facts, curve)
                for facts in group
                for curve in facts.curves
                if (curve.attack, curve.norm) == (attack, norm)
            ]
            radii = sorted({p.epsilon for _, curve in own for p in curve.points} - {0.0})
            far = radii[-1] > LOG_FROM * radii[0]
            lines = [
                Line(
                    names[facts.run.folder],
                    slots[facts.run.config.data, facts.model],
                    [(p.epsilon, 100 * p.accuracy) for p in curve.points if p.epsilon or not far],
                    [
                        (p.epsilon, 100 * p.low, 100 * p.high)
                        for p in curve.points
                        if p.epsilon or not far
                    ],
                )
                for facts, curve in own
            ]
            inside = radii[0] <= recipe.epsilon <= radii[-1]
            attacked = norm == "linf" and recipe.objective != "natural"
            seen = (recipe.epsilon, "training") if attacked and inside else None
            counts = sorted({curve.images for _, curve in own})
            charts.append(
                Chart(
                    f"{attack} on {data}, {' or '.join(map(str, counts))} images",
                    f"epsilon in {norm}",
                    "accuracy, %",
                    lines,
                    log_x=far,
                    zero=True,
                    places=_radius_ticks(radii, far),
                    guide=seen,
                    word=brief,
                )
            )
        if charts:
            found.append(Panels(f"{data}, trained with {words[recipe]}", charts))
    return found


def _radius_ticks(radii: Sequence[float], far: bool) -> list[tuple[float, str]]:
    """Return the radii as one would type them; of many, some."""
    shown = radii if far else [0.0, *radii]
    step = -(-len(shown) // 6)
    return [(radius, brief(radius) if radius else "0") for radius in shown[::step]]


def draw_charts(runs: Sequence[RunFacts], slots: Slots) -> list[Panels]:
    """Return how many images are right in every one of k draws, against k.

    A network without noise answers always the same: its line is flat.
    """
    found = []
    words = recipe_words([facts.run.config.recipe for facts in runs])
    for (data, recipe), group in _grouped(runs, _of_one_training).items():
        names = _line_names(group)
        measured = {facts.run.folder: facts.accuracies() for facts in group}
        kinds = dict.fromkeys(name for own in measured.values() for name in own)
        charts = []
        for kind in kinds:
            values = [
                (facts, value)
                for facts in group
                if (value := measured[facts.run.folder].get(kind)) is not None
            ]
            submissions = sorted({k for _, value in values for k in value.broken_in})
            if len(submissions) < 2:
                continue  # no noise, or a single draw
            lines = []
            for facts, value in values:
                own = submissions if value.deterministic else sorted(value.broken_in)
                use = [k if k in value.broken_in else 1 for k in own]
                right = [1 - value.broken_in[k] for k in use]
                ends = [value.broken_in_intervals[k] for k in use]
                lines.append(
                    Line(
                        names[facts.run.folder],
                        slots[facts.run.config.data, facts.model],
                        [(float(k), 100 * share) for k, share in zip(own, right, strict=True)],
                        [
                            (float(k), 100 * (1 - high), 100 * (1 - low))
                            for k, (low, high) in zip(own, ends, strict=True)
                        ],
                    )
                )
            counts = sorted({value.images for _, value in values})
            charts.append(
                Chart(
                    f"{kind} on {data}, {' or '.join(map(str, counts))} images",
                    "draws",
                    "right in every draw, %",
                    lines,
                    log_x=True,
                    places=[(float(k), str(k)) for k in submissions],
                )
            )
        if charts:
            found.append(Panels(f"{data}, trained with {words[recipe]}", charts))
    return found


def _of_one_training(facts: RunFacts) -> tuple[str, Recipe]:
    return facts.run.config.data, _decisive(facts.run.config.recipe)


def _grouped(runs: Iterable[RunFacts], key: Callable[[RunFacts], Key]) -> dict[Key, list[RunFacts]]:
    found: dict[Key, list[RunFacts]] = {}
    for facts in sorted(runs, key=lambda facts: network_key(facts.model)):
        found.setdefault(key(facts), []).append(facts)
    return found


def _line_names(group: Sequence[RunFacts]) -> dict[Path, str]:
    """Return what each run is called in a chart: its network, with seed or folder if need be."""
    names = {}
    for facts in group:
        alike = [other for other in group if other.model == facts.model]
        seeds = [other.run.config.seed for other in alike]
        name = facts.model
        if len(alike) > 1:
            unique = len(set(seeds)) == len(seeds)
            name += f", seed {facts.run.config.seed}" if unique else f", {facts.run.folder.name}"
        names[facts.run.folder] = name
    return names
