"""``enresnet report``."""

from __future__ import annotations

from pathlib import Path

import tyro

from enresnet import paper
from enresnet.cli.output import check_outputs, say
from enresnet.common import checks
from enresnet.report import Figure4View, find_runs, write_report


def command(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("report.html"),
    images: int = 0,
    figure4: tuple[Path, ...] = (),
    solve_figure4: bool = False,
) -> None:
    """Write one self-contained page on runs: what they measured, and what that says of the paper.

    The page opens from disk and loads nothing from the network. It has the paper's tables and
    claims beside our figures, training curves, accuracy against epsilon and draws, blind attacks,
    and what each run cost. A run that cannot be read is named and left out.

    Args:
        runs: Folders of runs, or folders that hold some, such as results/.
        out: The page.
        images: Attack this many test images for Figure 6, on a network and an ensemble among the
            runs; 0 leaves the figure out.
        figure4: Files of Figure 4: the PNG picture and the JSON numbers that enresnet pde figure4
            wrote; by default those beside the runs.
        solve_figure4: Compute Figure 4 now, in about half a minute.
    """
    check_outputs(out)
    checks.integer("images", images, low=0)
    if figure4 and solve_figure4:
        raise ValueError("--figure4 and --solve-figure4 both give Figure 4: leave one of them out")
    found = find_runs(runs)
    contents = paper.contents_of(found.runs)
    left_out = write_report(
        out,
        found.runs,
        contents,
        transfers=found.transfers,
        figure4=Figure4View.of(paper.study_figure4())
        if solve_figure4
        else figure4 or found.figure4,
        images=images,
        skipped=found.skipped,
    )
    for sentence in (*left_out, *contents.remarks):
        say(sentence, error=True)
    say(f"{out}: {len(found.runs)} run{'s' * (len(found.runs) != 1)}")
