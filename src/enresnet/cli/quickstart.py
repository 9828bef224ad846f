"""``enresnet quickstart``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from enresnet import paper, report
from enresnet.cli.output import check_outputs, write_json
from enresnet.common import checks
from enresnet.common.files import atomic_write
from enresnet.common.plotting import as_png
from enresnet.common.tables import print_table


def command(
    *,
    out: Path = Path("quickstart.html"),
    seeds: int = 3,
    picture: Path | None = None,
    json: Path | None = None,
) -> None:
    """Train a small ResNet and its Feynman-Kac ensemble on digits, attack both, write a page.

    Takes about a minute on two cores. Prints one table of all results, whatever the outcome.

    Args:
        out: The page, self-contained HTML.
        seeds: Number of repetitions, each with different random numbers.
        picture: Also write the chart of accuracies to this PNG file.
        json: Also write everything measured to this file.
    """
    checks.integer("seeds", seeds, low=1)
    check_outputs(out, json, picture=picture)
    result = paper.run_quickstart(seeds=seeds)
    rows = result.rows()
    if picture is not None:
        with atomic_write(picture) as temporary:
            temporary.write_bytes(as_png(report.accuracy_bars(rows, report.NETWORKS)))
    write_json(json, result.to_json())
    print_table(
        [_shown(row) for row in rows],
        title=f"accuracy in % over {seeds} seeds, epsilon = {result.plan.recipe.epsilon:g}",
        caption="With 95 % intervals over the images, for the networks of these seeds; the "
        "difference is paired. Blind: on the images made against the other network. epsilon is a "
        "fifth of the range, so that the attacked resnet8 keeps some of the digits and loses some. "
        f"{result.seconds:.0f} s of work. The page: {out}",
    )
    with atomic_write(out) as temporary:
        temporary.write_text(report.render_quickstart(result), encoding="utf-8")


def _shown(row: dict[str, Any]) -> dict[str, str]:
    cells = {
        network: _interval("{:.1f} ({:.1f}-{:.1f})", row[network]["accuracy"], row[network])
        for network in report.NETWORKS
    }
    difference = row["difference"]
    text = _interval("{:+.1f} ({:+.1f}, {:+.1f})", difference["difference"], difference)
    return {"images": row["images"].removesuffix(", white box"), **cells, "difference": text}


def _interval(form: str, value: float, cell: dict[str, Any]) -> str:
    return form.format(100 * value, *(100 * bound for bound in cell["interval"]))
