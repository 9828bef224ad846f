"""``enresnet compare``."""

from __future__ import annotations

from pathlib import Path

import tyro

from enresnet import checks
from enresnet.cli.output import check_outputs, print_table, write_json
from enresnet.evaluation.record import Record
from enresnet.evaluation.statistics import Comparison
from enresnet.evaluation.work import NATURAL


def command(
    first: tyro.conf.Positional[Path],
    second: tyro.conf.Positional[Path],
    *,
    section: str = "best",
    tries: int = 1,
    json: Path | None = None,
) -> None:
    """Say whether one evaluated model is more accurate than another, with a p-value.

    Image by image, for every attack that both were evaluated under with the same settings on the
    same images.

    Args:
        first: The folder of a run, or of another evaluation.
        second: Another one.
        section: Of their evaluation.json: best, last, or another that is there.
        tries: How often an attacker may submit the same image, who needs to be lucky once.
        json: Also write the result to this file.
    """
    check_outputs(json)
    checks.integer("tries", tries, low=1)
    for folder in (first, second):
        Record(folder).section(section)
    found, skipped = Record(first).compare(section, Record(second), section, tries=tries)
    reasons = [f"{_shown(name)} is not compared: {reason}" for name, reason in skipped.items()]
    if not found:
        raise ValueError(
            f"{first} and {second} were not evaluated under the same attack on the same images; "
            "evaluate both again with the same options" + "".join(f"\n{r}" for r in reasons)
        )
    what = "Accuracy" if tries == 1 else f"Images that {tries} tries all get right,"
    write_json(json, {name: {**v.to_json(), "tries": tries} for name, v in found.items()})
    print_table(
        [_row(name, value) for name, value in found.items()],
        title=f"{first} less {second}",
        caption=f"{what} in points, paired by image, with the 95 % interval; the verdict is on "
        f"{first} at the 5 % level ({'; '.join(sorted({value.test for value in found.values()}))})."
        " Each row is a test of its own: of twenty, one errs.",
    )
    for reason in reasons:
        print(reason)


def _shown(name: str) -> str:
    return "clean" if name == NATURAL else name


def _row(name: str, value: Comparison) -> dict[str, str]:
    low, high = value.interval
    return {
        "images": _shown(name),
        "difference": f"{100 * value.difference:+.2f} ({100 * low:+.2f}, {100 * high:+.2f})",
        "p": f"{value.p_value:.2g}",
        "verdict": value.verdict,
        "images compared": str(value.images),
    }
