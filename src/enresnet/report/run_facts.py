"""What a report shows of one run, read from its folder without torch.

A run is read whole or refused: whatever is malformed in it is named in one sentence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enresnet.evaluation import Accuracy, load_results
from enresnet.evaluation.accuracy import NATURAL
from enresnet.evaluation.results_folder import EVALUATION, ResultsFolder, Section
from enresnet.evaluation.rows import radius_of
from enresnet.training import Run
from enresnet.training.recipe import ONE_STEP

LARGEST_JSON = 1 << 24  # bytes
TWO_LOSSES = ("trades", "mart", "rslad", "rslad_one_step")  # whose loss runs the network twice
BASE_SECTION = "best"


@dataclass(frozen=True)
class RadiusPoint:
    """The accuracy at one radius, in [0, 1], with the ends of its 95 % interval."""

    epsilon: float
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class RadiusCurve:
    """Accuracy against epsilon under one attack, and the file it was read from."""

    attack: str
    norm: str
    images: int
    points: tuple[RadiusPoint, ...]
    file: str


@dataclass(frozen=True)
class RunFacts:
    """One run as the page shows it.

    Attributes:
        run: The run.
        state: As :attr:`Run.state` says.
        epochs: The rows of metrics.csv.
        kept: The epoch whose network is the best, if there is one.
        sections: What was measured, by section of evaluation.json.
        environment: By which versions and on what hardware it was trained, one entry for each
            change.
        curves: Accuracy against epsilon, by attack.
        warnings: A sentence on each section that was measured with other weights.
    """

    run: Run
    state: str
    epochs: tuple[dict[str, Any], ...]
    kept: dict[str, Any] | None
    sections: dict[str, Section]
    environment: tuple[dict[str, Any], ...]
    curves: tuple[RadiusCurve, ...]
    warnings: tuple[str, ...]

    @classmethod
    def read(cls, run: Run) -> RunFacts:
        """Return what there is to show of a run.

        Raises:
            ValueError: A file of the run is malformed.
            OSError: A file cannot be read.
        """
        folder = run.folder
        sections: dict[str, Section] = {}
        warnings: tuple[str, ...] = ()
        if (folder / EVALUATION).exists():
            results = load_results(folder)
            record, sections = ResultsFolder(folder), dict(results.sections)
            for name, section in results.sections.items():
                _check_section(folder / EVALUATION, name, section)
                if record.outdated(name):
                    del sections[name]  # it tells of another network than the run holds
            warnings = results.outdated
        epochs = tuple(run.metrics())
        if not all(is_number(row["epoch"]) for row in epochs):
            raise ValueError(f"{folder / 'metrics.csv'} is damaged: an epoch is no number")
        return cls(
            run=run,
            state=run.state,
            epochs=epochs,
            kept=run.kept_epoch(),
            sections=sections,
            environment=_environment(folder / "environment.json"),
            curves=tuple(_curves(folder, sections)),
            warnings=warnings,
        )

    @property
    def model(self) -> str:
        """The name of its network."""
        return self.run.config.model

    @property
    def main(self) -> Section | None:
        """What was measured of its best network on its own test images, or of the first section."""
        return self.sections.get(BASE_SECTION) or next(iter(self.sections.values()), None)

    @property
    def training_seconds(self) -> float | None:
        """What its epochs took, validation included; None if no epoch is known."""
        found = [row["seconds"] for row in self.epochs if is_number(row.get("seconds"))]
        return sum(found) if found else None

    @property
    def cores(self) -> int | None:
        """Threads of all processes of its training; None if not known or not always as many."""
        used = {
            entry["threads"] * entry.get("processes", 1)
            for entry in self.environment
            if "threads" in entry
        }
        return used.pop() if len(used) == 1 else None

    @property
    def training_passes(self) -> float | None:
        """Passes of each training image through the network and back, over all epochs so far."""
        recipe = self.run.config.recipe
        if not self.epochs or self.run.config.parts:
            return None
        losses, total = 1 + (recipe.objective in TWO_LOSSES), 0.0
        for epoch in range(len(self.epochs)):
            done = epoch / recipe.epochs
            steps = 1 if recipe.objective in ONE_STEP else recipe.steps
            if recipe.final_steps and done >= recipe.final_from:
                steps = recipe.final_steps
            steps = 0 if recipe.objective == "natural" else steps
            # Images of half the side cost a quarter.
            total += (steps + losses) * (0.25 if done < recipe.low_resolution else 1)
        return total

    def accuracies(self) -> dict[str, Accuracy]:
        """Return what the main section holds, clean images first as "clean"."""
        if self.main is None:
            return {}
        evaluation = self.main.evaluation
        return {"clean": evaluation.natural, **evaluation.robust}

    def all_accuracies(self) -> Iterator[Accuracy]:
        """Yield every accuracy of every section."""
        for section in self.sections.values():
            yield section.evaluation.natural
            yield from section.evaluation.robust.values()


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        ValueError: It is no JSON, or larger than any file of ours.
    """
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{path} is larger than {LARGEST_JSON >> 20} MB; remove it")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); remove it") from error


def check_accuracy(where: str, value: Accuracy) -> None:
    """Raise unless everything that the page prints of an accuracy is a number."""
    pairs = [value.interval, value.averaged_interval, value.always_interval]
    pairs += value.broken_in_intervals.values()
    numbers = [value.accuracy, value.averaged, value.always, *value.broken_in.values()]
    numbers += [value.seconds, value.seconds_a_prediction, value.gradients, value.evaluations]
    numbers += [value.calibration_error, *value.per_class.values()]
    good = all(map(is_number, numbers)) and all(
        len(pair) == 2 and all(map(is_number, pair)) for pair in pairs
    )
    good = good and value.broken_in.keys() <= value.broken_in_intervals.keys()
    counts = isinstance(value.images, int) and isinstance(value.draws, int)
    settings = value.settings is None or isinstance(value.settings, dict)
    if not (good and counts and settings):
        raise ValueError(f"{where} is damaged: it holds what is no number; evaluate again")


def _check_section(path: Path, name: str, section: Section) -> None:
    evaluation = section.evaluation
    for images, value in {NATURAL: evaluation.natural, **evaluation.robust}.items():
        check_accuracy(f"{path} ({name}, {images})", value)


def _environment(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.is_file():
        return ()
    found = read_json(path)
    counts = ("threads", "processes")
    if not isinstance(found, list) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(key, 1), int) for key in counts)
        for entry in found
    ):
        raise ValueError(f"{path} must list where it was trained; remove it")
    return tuple(found)


def _curves(folder: Path, sections: Mapping[str, Section]) -> Iterator[RadiusCurve]:
    """Yield a curve for each attack: of files with a curve, of sections, and of the diagnosis."""
    seen = set()
    for curve in (*_stored_curves(folder), *_section_curves(sections), *_diagnosed(folder)):
        if (curve.attack, curve.norm) not in seen and len(curve.points) > 1:
            seen.add((curve.attack, curve.norm))
            yield curve


def _stored_curves(folder: Path) -> Iterator[RadiusCurve]:
    """Yield what ``enresnet evaluate --curve ... --json FILE`` left in the folder."""
    for path in sorted(folder.glob("*.json")):
        if path.name in (EVALUATION, "environment.json", "diagnosis.json"):
            continue
        found = read_json(path)
        curve = found.get("curve") if isinstance(found, dict) else None
        if curve is None:
            continue
        try:
            for attack, line in curve["lines"].items():
                points = tuple(_point(path, point["epsilon"], point) for point in line)
                norm, images = str(curve["norms"][attack]), int(curve["images"])
                yield RadiusCurve(attack, norm, images, points, path.name)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: its curve is not whole; remove it") from error


def _section_curves(sections: Mapping[str, Section]) -> Iterator[RadiusCurve]:
    """Yield the curves that sections of one network at different radii amount to."""
    lines: dict[tuple[str, str, str, int], dict[float, RadiusPoint]] = {}
    for name, section in sections.items():
        natural = section.evaluation.natural
        for entry, value in section.evaluation.robust.items():
            radius, norm = radius_of(value)
            if radius is None or "epsilon" not in (value.settings or {}):
                continue  # one that minimises has no radius
            attack = entry.partition(" at ")[0]
            key = (name.partition(" at epsilon ")[0], attack, str(norm), value.images)
            line = lines.setdefault(key, {})
            if natural.images == value.images:
                line[0.0] = RadiusPoint(0.0, natural.accuracy, *natural.interval)
            line[radius] = RadiusPoint(radius, value.accuracy, *value.interval)
    for (name, attack, norm, images), line in lines.items():
        if name == BASE_SECTION and len(line.keys() - {0.0}) > 1:
            ordered = tuple(line[radius] for radius in sorted(line))
            yield RadiusCurve(attack, norm, images, ordered, EVALUATION)


def _diagnosed(folder: Path) -> Iterator[RadiusCurve]:
    """Yield the curve that ``enresnet diagnose --json RUN/diagnosis.json`` left."""
    path = folder / "diagnosis.json"
    if not path.is_file():
        return
    found = read_json(path)
    try:
        points = tuple(_point(path, point["at"], point) for point in found["against_epsilon"])
        yield RadiusCurve("ifgsm20", "linf", int(found["images"]), points, path.name)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: its curve is not whole; remove it") from error


def _point(path: Path, epsilon: object, values: Mapping[str, Any]) -> RadiusPoint:
    numbers = (epsilon, values["accuracy"], values["low"], values["high"])
    if not all(map(is_number, numbers)):
        raise ValueError(f"{path} is damaged: a point of its curve is no number; remove it")
    return RadiusPoint(*numbers)  # type: ignore[arg-type]
