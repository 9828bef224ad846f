"""The report: one self-contained page that opens from disk, with all that runs and paper tell.

Nothing is loaded from anywhere: styles, script and pictures are in the page, and its security
policy forbids every request. Words from outside are escaped by the templates.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from enresnet.common import checks
from enresnet.common.files import atomic_write
from enresnet.common.text import brief
from enresnet.report.blind_matrix import HeatMap, read_heat_maps
from enresnet.report.contents import Contents, Drawing
from enresnet.report.figure4_view import Figure4View, read_png
from enresnet.report.paper_views import WIDE, PaperView
from enresnet.report.run_charts import (
    draw_charts,
    network_key,
    network_slots,
    radius_charts,
    training_charts,
)
from enresnet.report.run_facts import RunFacts
from enresnet.report.run_views import RunsView, duration
from enresnet.report.templating import render, template_file
from enresnet.training import Run

if TYPE_CHECKING:
    from enresnet.report.attacked_images import ImageGrid


def write_report(
    path: str | os.PathLike[str],
    runs: Sequence[Run],
    contents: Contents | None = None,
    *,
    transfers: Sequence[Path] = (),
    figure4: Figure4View | Sequence[Path] = (),
    images: int = 0,
    skipped: Sequence[str] = (),
    title: str = "EnResNet: what was measured",
) -> list[str]:
    """Write one self-contained HTML page on some runs and what they say of the paper.

    Args:
        path: The page; it is there as a whole or not at all.
        runs: The runs; :func:`find_runs` finds them.
        contents: The paper's tables and claims beside what was measured; by default none, and the
            page shows the runs alone.
        transfers: Files that ``enresnet transfer --json`` wrote.
        figure4: Figure 4, or files of it: a PNG picture, and the numbers as JSON.
        images: How many test images to attack for Figure 6; 0, the default, leaves it out.
        skipped: What else the page has to say was left out, a sentence each.
        title: The heading.

    Returns:
        What was left out, a sentence each: runs and files that cannot be read.

    Raises:
        ValueError: ``images`` is negative.
        OSError: The page cannot be written.

    Example::

        from enresnet.report import find_runs, write_report

        recipe = enresnet.load_recipe("natural", epochs=1)
        enresnet.train(enresnet.RunConfig("resnet8", "digits", recipe, limit=99), "runs/first")
        write_report("report.html", find_runs(["runs"]).runs)
    """
    checks.integer("images", images, low=0)
    left_out = list(skipped)
    facts = []
    for run in runs:
        try:
            facts.append(RunFacts.read(run))
        except Exception as error:  # whatever is wrong with one run, the others are shown
            left_out.append(f"{run.folder} is left out: {_in_a_line(error)}")
    facts.sort(key=_order)
    anchors = {one.run.folder.resolve(): f"run-{n}" for n, one in enumerate(facts, start=1)}
    slots = network_slots(facts)
    view4 = figure4 if isinstance(figure4, Figure4View) else _read_figure4(figure4, left_out)
    grid, no_grid = _images([one.run for one in facts], images)
    shown = contents or Contents()
    values = {
        "title": title,
        "today": date.today().isoformat(),
        "version": version("enresnet"),
        "paper": PaperView.of(shown, anchors),
        "effect_width": WIDE,
        "runs": RunsView.of(facts, anchors),
        "data": sorted({one.run.config.data for one in facts}),
        "training": training_charts(facts, slots),
        "radius": radius_charts(facts, slots),
        "draws": draw_charts(facts, slots),
        "heat_maps": _heat_maps(transfers, left_out),
        "figure4": view4,
        "drawings": _drawings(shown.drawings, left_out),
        "grid": grid,
        "no_grid": no_grid,
        "remarks": shown.remarks,
        "skipped": left_out,
    }
    text = render("report.html", {**values, **_looks()}, _numbers())
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return left_out


def _order(facts: RunFacts) -> tuple[Any, ...]:
    """Return by what runs are sorted: data, training, base network, members, seed, folder."""
    config = facts.run.config
    natural = config.recipe.objective == "natural"
    training = (natural, config.recipe.objective, config.recipe.epochs)
    return (config.data, *training, *network_key(config.model), config.seed, str(facts.run.folder))


def _heat_maps(paths: Sequence[Path], left_out: list[str]) -> list[HeatMap]:
    found = []
    for path in paths:
        try:
            found += read_heat_maps(path)
        except (ValueError, OSError) as error:
            left_out.append(f"{path} is left out: {_in_a_line(error)}")
    return found


def _read_figure4(paths: Sequence[Path], left_out: list[str]) -> Figure4View | None:
    try:
        return Figure4View.read(paths) if paths else None
    except (ValueError, OSError) as error:
        left_out.append(f"Figure 4 is left out: {_in_a_line(error)}")
        return None


def _drawings(drawings: Sequence[Drawing], left_out: list[str]) -> dict[str, list[dict[str, str]]]:
    """Return the figures that were drawn before, by their names on the command line."""
    found: dict[str, list[dict[str, str]]] = {}
    for one in drawings:
        try:
            own = {"title": one.title, "caption": one.caption, "source": read_png(one.picture)}
        except (ValueError, OSError) as error:
            left_out.append(f"{one.title} is left out: {_in_a_line(error)}")
            continue
        found.setdefault(one.key, []).append(own)
    return found


def _images(runs: Sequence[Run], number: int) -> tuple[ImageGrid | None, str]:
    """Return the attacked images, or a sentence on why there are none."""
    if not number:
        return None, "It was not asked for: enresnet report --images 6 makes it."
    from enresnet.report.attacked_images import attack_images

    try:
        return attack_images(runs, number), ""
    except (ValueError, OSError) as error:
        return None, f"It could not be made: {_in_a_line(error)}."


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _numbers() -> dict[str, Callable[..., str]]:
    """Return how the template prints numbers."""
    return {
        "one": lambda value: f"{value:.1f}",
        "two": lambda value: f"{value:.2f}",
        "signed": lambda value: f"{value:+.1f}".replace("-", "\N{MINUS SIGN}"),
        "signed_two": lambda value: f"{value:+.2f}".replace("-", "\N{MINUS SIGN}"),
        "brief": brief,
        "duration": duration,
        "grouped": lambda value: f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}"),
    }


def _looks() -> dict[str, str]:
    """Return style and script, and the digest by which the page's policy knows the script."""
    script = template_file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {
        "style": Markup(template_file("report.css")),
        "script": Markup(script),
        "script_digest": f"sha256-{digest}",
    }
