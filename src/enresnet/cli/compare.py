"""``enresnet compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tyro

from enresnet import evaluation
from enresnet.cli.output import check_outputs, say, write_json, write_text
from enresnet.common import checks
from enresnet.common.tables import as_markdown, print_table
from enresnet.evaluation.accuracy import NATURAL
from enresnet.evaluation.results import Record
from enresnet.training.run_groups import RunGroup, pair_by_seed


def command(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    against: tuple[Path, ...] = (),
    section: str = "best",
    against_section: str | None = None,
    tries: int = 1,
    json: Path | None = None,
    markdown: Path | None = None,
) -> None:
    """Say whether one model, or one way of training, is more accurate than another.

    Of two models: `compare RUN RUN`. Of two ways of training, with several seeds each:
    `compare RUN RUN RUN --against RUN RUN RUN`; then the interval and the p-value know how much
    trainings differ. Image by image, for every attack that all were evaluated under with the same
    settings on the same images.

    Args:
        runs: Two folders of runs, or of other evaluations; with --against, those of the first side.
        against: Those of the second side. Runs with the same seed make a pair.
        section: Of their evaluation.json: best, last, or another that is there.
        against_section: That of the second side, where it is another one; without --against, of the
            same runs.
        tries: How often an attacker may submit the same image, who needs to be lucky once.
        json: Also write the result to this file.
        markdown: Also write the table to this file.
    """
    check_outputs(json, markdown)
    checks.integer("tries", tries, low=1)
    other_section = against_section or section
    first, second = _sides(runs, against, same=other_section != section)
    for folders, name in ((first, section), (second, other_section)):
        for folder in folders:
            Record(folder).section(name)
            if outdated := Record(folder).outdated(name):
                raise ValueError(outdated)
    apart = other_section != section
    words = [f" ({name})" if apart else "" for name in (section, other_section)]
    told: list[str] = []
    if len(first) == len(second) == 1:
        title = f"{first[0]}{words[0]} less {second[0]}{words[1]}"
        found, skipped = evaluation.compare_records(
            Record(first[0]),
            Record(second[0]),
            section=section,
            other_section=other_section,
            tries=tries,
        )
        how = "paired by image"
        told.append(
            "One run a side: the verdict is on these weights, not on the way they were trained."
        )
    else:
        sides = RunGroup.of(first, section=section), RunGroup.of(second, section=other_section)
        mine, other, paired, told = pair_by_seed(*sides)
        title = f"{mine.name}{words[0]} less {other.name}{words[1]}"
        found, skipped = evaluation.compare_record_groups(
            mine.records,
            other.records,
            paired=paired,
            section=section,
            other_section=other_section,
            tries=tries,
        )
        how = f"over {'pairs of seeds' if paired else 'seeds'} and images"
    reasons = [f"{_shown(name)} is not compared: {reason}" for name, reason in skipped.items()]
    if not found:
        raise ValueError(
            f"{title}: they were not evaluated under the same attack on the same images; "
            "evaluate all again with the same options" + "".join(f"\n{r}" for r in reasons)
        )
    what = "Accuracy" if tries == 1 else f"Images that {tries} tries all get right,"
    rows = [_row(name, value) for name, value in found.items()]
    caption = (
        f"{what} in points, {how}, with the 95 % interval; the verdict is on the first at the 5 % "
        f"level ({'; '.join(sorted({value.test for value in found.values()}))}). Each row is a "
        "test of its own: of twenty, one errs."
    )
    write_json(
        json,
        {
            "first": [str(folder) for folder in first],
            "second": [str(folder) for folder in second],
            "tries": tries,
            "section": section,
            "against_section": other_section,
            "notes": told,
            "compared": {name: value.to_json() for name, value in found.items()},
        },
    )
    write_text(markdown, as_markdown(rows, caption=" ".join([f"{title}. {caption}", *told])))
    print_table(rows, title=title, caption=caption)
    for line in (*told, *reasons):
        say(line)


def _sides(
    runs: Sequence[Path], against: Sequence[Path], *, same: bool
) -> tuple[list[Path], list[Path]]:
    if same and runs and not against:  # two sections of the same runs
        return list(runs), list(runs)
    if against:
        if not runs:
            raise ValueError("name the runs of the first side before --against")
        return list(runs), list(against)
    if len(runs) != 2:
        raise ValueError(
            f"found {len(runs)} runs: name two, or more with --against between the two sides"
        )
    return [runs[0]], [runs[1]]


def _shown(name: str) -> str:
    return "clean" if name == NATURAL else name


def _row(name: str, value: evaluation.Comparison) -> dict[str, str]:
    low, high = value.interval
    row = {"images": _shown(name)}
    if isinstance(value, evaluation.GroupComparison):
        row |= {"first": f"{100 * value.first:.2f}", "second": f"{100 * value.second:.2f}"}
    row |= {
        "difference": f"{100 * value.difference:+.2f} ({100 * low:+.2f}, {100 * high:+.2f})",
        "p": f"{value.p_value:.2g}",
        "verdict": value.verdict,
    }
    if isinstance(value, evaluation.GroupComparison) and value.by_seed:
        row["by seed"] = " ".join(f"{100 * found:+.1f}" for found in value.by_seed.values())
    return row | {"images compared": str(value.images)}
