"""``enresnet compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tyro

from enresnet.cli.output import check_outputs, say, write_json, write_text
from enresnet.common import checks
from enresnet.common.tables import as_markdown, print_table
from enresnet.training import compare


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
    """Test whether one model, or one training method, is more accurate than another.

    Two models: `compare RUN RUN`. Two training methods, with several seeds each:
    `compare RUN RUN RUN --against RUN RUN RUN`; the interval and the p-value then account for the
    variation between seeds. Runs are compared image by image, for every attack that was run on all
    of them with the same settings and the same images.

    Args:
        runs: Two folders of runs, or of other evaluations; with --against, those of the first side.
        against: Those of the second side. Runs with the same seed are paired.
        section: The section of evaluation.json to compare: best, last, or another in the file.
        against_section: The section of the second side, if different; without --against, the same
            runs are the second side.
        tries: How often an attacker may submit the same image; one success is enough.
        json: Also write the result to this file.
        markdown: Also write the table to this file.
    """
    check_outputs(json, markdown)
    checks.integer("tries", tries, low=1)
    other_section = against_section or section
    first, second = _sides(runs, against, same=other_section != section)
    found = compare(first, second, section=section, against_section=other_section, tries=tries)
    write_json(json, found.to_json())
    caption = " ".join([f"{found.title}. {found.caption}", *found.notes])
    write_text(markdown, as_markdown(found.table(), caption=caption))
    print_table(found.table(), title=found.title, caption=found.caption)
    for line in found.remarks:
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
