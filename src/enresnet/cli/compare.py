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
