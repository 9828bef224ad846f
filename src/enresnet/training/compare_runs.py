"""Two models, or two ways of training over several seeds, compared image by image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from enresnet.common import checks
from enresnet.evaluation import Evaluation
from enresnet.evaluation.results_folder import EVALUATION, SCORES, ResultsFolder
from enresnet.training.run import Run
from enresnet.training.run_groups import RunGroup, pair_by_seed, training_notes

if TYPE_CHECKING:
    from enresnet.evaluation import ComparisonTable

Source = str | os.PathLike[str] | Run | ResultsFolder | Evaluation
"""What holds results: a run, its folder, the evaluation.json there, or an evaluation in memory."""


def compare(
    first: Source | Sequence[Source],
    second: Source | Sequence[Source],
    *,
    section: str = "best",
    against_section: str | None = None,
    tries: int = 1,
) -> ComparisonTable:
    """Return whether one model, or one way of training, is more accurate than another.

    They are compared image by image, on clean images and under every attack that all were evaluated
    under with the same settings on the same images. With one source a side the verdict is on these
    two models. With several a side, which differ in nothing but their seed, it is on the two ways
    of training: the interval and the p-value then know how much trainings differ.

    Args:
        first: One source or several: a run's folder or its evaluation.json, a
            :class:`~enresnet.training.Run`, or an :class:`~enresnet.Evaluation` in memory.
        second: The other side, alike. Runs with the same seed make a pair.
        section: The part of evaluation.json that is compared; "best" by default. Evaluations in
            memory have none.
        against_section: That of the second side, where it is another one: with the same runs on
            both sides, two sections are compared.
        tries: How often an attacker may submit the same image, who needs to be lucky once; 1 by
            default. With more, an image counts as right only if so many draws all get it right.

    Returns:
        The differences with their intervals and p-values, by attack. It prints as the table of
        ``enresnet compare``.

    Raises:
        FileNotFoundError: A folder has no such evaluation.
        ValueError: Nothing can be compared, results are of other weights than the run holds now,
            or runs of one side differ in more than their seed.
        TypeError: A source is none of these, or an argument has the wrong type.

    Example::

        other = enresnet.create_model("resnet8")
        one, two = (enresnet.evaluate(m, (images, labels), draws=2) for m in (model, other))
        print(enresnet.compare(one, two))  # or enresnet.compare("runs/one", "runs/two")
    """
    checks.integer("tries", tries, low=1)
    sides = _side("first", first), _side("second", second)
    sections = section, against_section or section
    for side, name in zip(sides, sections, strict=True):
        for folder in side:
            if isinstance(folder, Path):
                ResultsFolder(folder).section(name)
                if outdated := ResultsFolder(folder).outdated(name):
                    raise ValueError(outdated)
    one_each = len(sides[0]) == len(sides[1]) == 1
    found = (_two_models if one_each else _two_methods)(*sides, sections, tries)
    if not found.compared:
        silent = [
            f"{source} has no {SCORES}, the scores of single images: evaluate it by the command"
            for side in sides
            for source in side
            if isinstance(source, Path) and not (source / SCORES).is_file()
        ]
        raise ValueError(
            f"{found.title}: they were not evaluated under the same attack on the same images; "
            "evaluate all again with the same options"
            + "".join(f"\n{line}" for line in (*found.remarks[len(found.notes) :], *silent))
        )
    return found


def _side(name: str, given: Source | Sequence[Source]) -> list[Path | Evaluation]:
    """Return the folders and evaluations of one side."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    sources: list[object] = [*given] if several else [given]  # type: ignore[misc]
    if not sources:
        raise ValueError(f"{name} must hold at least one run or evaluation, found none")
    found: list[Path | Evaluation] = []
    for source in sources:
        if isinstance(source, Evaluation):
            found.append(source)
        elif isinstance(source, Run | ResultsFolder):
            found.append(source.folder)
        elif isinstance(source, str | os.PathLike):
            path = Path(source)
            found.append(path.parent if path.name == EVALUATION and not path.is_dir() else path)
        else:
            raise TypeError(
                f"{name} must be a run, its folder or an Evaluation, or several of them; found "
                f"{checks.brief(source)}"
            )
    return found


def _two_models(
    first: list[Path | Evaluation],
    second: list[Path | Evaluation],
    sections: tuple[str, str],
    tries: int,
) -> ComparisonTable:
    from enresnet.evaluation import ComparisonTable
    from enresnet.evaluation.comparison import compare_records

    labels = _labels("the first", first), _labels("the second", second)
    words = _section_words(sections)
    found, skipped = compare_records(
        _record(first[0]),
        _record(second[0]),
        section=sections[0],
        other_section=sections[1],
        tries=tries,
    )
    note = "One run per side: the verdict is on these weights, not on the training method."
    runs = [_runs(side) for side in (first, second)]
    notes = [note, *training_notes(*runs)]
    if _weights(first[0], sections[0]) == _weights(second[0], sections[1]):
        notes.append("Both sides hold the same weights.")
    return ComparisonTable(
        f"{labels[0][0]}{words[0]} less {labels[1][0]}{words[1]}",
        "paired by image",
        found,
        skipped,
        tuple(notes),
        tries,
        *labels,
        *sections,
    )


def _two_methods(
    first: list[Path | Evaluation],
    second: list[Path | Evaluation],
    sections: tuple[str, str],
    tries: int,
) -> ComparisonTable:
    from enresnet.evaluation import ComparisonTable
    from enresnet.evaluation.comparison import compare_record_groups

    words = _section_words(sections)
    one, two, paired, notes = pair_by_seed(_group(first, sections[0]), _group(second, sections[1]))
    found, skipped = compare_record_groups(
        one.records,
        two.records,
        paired=paired,
        section=sections[0],
        other_section=sections[1],
        tries=tries,
    )
    return ComparisonTable(
        f"{one.name}{words[0]} less {two.name}{words[1]}",
        f"over {'pairs of seeds' if paired else 'seeds'} and images",
        found,
        skipped,
        tuple(notes),
        tries,
        _labels("the first", first),
        _labels("the second", second),
        *sections,
    )


def _group(side: list[Path | Evaluation], section: str) -> RunGroup:
    folders = [source for source in side if isinstance(source, Path)]
    if len(folders) == len(side):
        return RunGroup.of(folders, section=section)
    if len({id(source) for source in side}) < len(side):
        raise ValueError("an evaluation is given twice: name each training once")
    records = {str(number): _record(source) for number, source in enumerate(side)}
    return RunGroup(f"evaluations ({len(side)} runs)", records, False, frozenset())


def _runs(side: list[Path | Evaluation]) -> list[Run]:
    """Return the runs of a side; evaluations of other models are none."""
    return [
        Run.open(source)
        for source in side
        if isinstance(source, Path) and (source / "config.yaml").is_file()
    ]


def _weights(source: Path | Evaluation, section: str) -> object:
    """Return what tells the weights behind results apart; evaluations in memory are all unlike."""
    if isinstance(source, Evaluation):
        return id(source)
    return ResultsFolder(source).section(section).about["weights"], section


def _record(source: Path | Evaluation) -> ResultsFolder | Evaluation:
    return source if isinstance(source, Evaluation) else ResultsFolder(source)


def _labels(name: str, side: list[Path | Evaluation]) -> tuple[str, ...]:
    """Return folders as they were named; evaluations in memory go by their side."""
    return tuple(str(source) if isinstance(source, Path) else name for source in side)


def _section_words(sections: tuple[str, str]) -> list[str]:
    """Return the sections in brackets where the two sides differ in them; else nothing."""
    return [f" ({name})" if sections[0] != sections[1] else "" for name in sections]
