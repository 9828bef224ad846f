"""One self-contained HTML page: nothing is loaded from anywhere else."""

from __future__ import annotations

import base64
import platform
from importlib.metadata import version
from typing import Any

import jinja2
import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from enresnet.common.plotting import as_png, as_svg
from enresnet.report.figures import accuracy_bars, image_grid, training_curves
from enresnet.report.quickstart import (
    ATTACKS,
    BASE,
    DRAWS,
    ENSEMBLE,
    EOT,
    NETWORKS,
    Quickstart,
)


def quickstart_page(result: Quickstart) -> str:
    """Return the page of the quickstart, as self-contained HTML.

    Args:
        result: What :func:`run_quickstart` measured.

    Returns:
        The text of the page; figures are embedded.

    Example::

        from pathlib import Path
        from enresnet.paper import run_quickstart
        from enresnet.report import quickstart_page

        result = run_quickstart(seeds=1)
        Path("quickstart.html").write_text(quickstart_page(result), encoding="utf-8")
    """
    rows = result.rows()
    return _render(
        "quickstart.html",
        result=result,
        rows=rows,
        networks=NETWORKS,
        base=BASE,
        ensemble=ENSEMBLE,
        verdict=verdict(rows),
        bars=_svg(accuracy_bars(rows, NETWORKS)),
        curves=_svg(training_curves(_curves(result))),
        grid=_image(image_grid(*_grid(result)), "clean and attacked digits"),
        recipe=result.plan.recipe,
        eot=EOT,
        draws=DRAWS,
        settings=sorted({a.settings for a in result.attacked}),
        training_seconds={
            network: sum(t.seconds for t in result.trained if t.network == network) / result.seeds
            for network in NETWORKS
        },
        attack_seconds={
            (a.attack, a.source): sum(
                b.seconds for b in result.attacked if (b.attack, b.source) == (a.attack, a.source)
            )
            / result.seeds
            for a in result.attacked
        },
        versions=f"enresnet {version('enresnet')}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    )


def verdict(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return on which images the ensemble is better, worse, or neither clearly.

    Clearly means: the interval over the images excludes 0, and all seeds agree in sign.
    """
    sorted_rows: dict[str, list[str]] = {"better": [], "worse": [], "unclear": []}
    for row in rows:
        low, high = row["difference"]["interval"]
        seeds = row["difference"]["by_seed"]
        key = "unclear"
        if low > 0 and min(seeds) > 0:
            key = "better"
        elif high < 0 and max(seeds) < 0:
            key = "worse"
        sorted_rows[key].append(row["images"])
    return sorted_rows


def _curves(result: Quickstart) -> dict[str, Any]:
    return {
        network: [t.epochs for t in result.trained if t.network == network] for network in NETWORKS
    }


def _grid(result: Quickstart) -> tuple[Any, list[str], tuple[str, ...]]:
    classes = tuple("0123456789")
    columns: list[Any] = [("clean", result.examples, result.clean_answers)]
    for network in NETWORKS:
        (first,) = (
            a for a in result.attacked if (a.source, a.attack, a.seed) == (network, ATTACKS[1], 0)
        )
        columns.append((f"attacked: {ATTACKS[1]}\non {network}", first.images, first.answers))
        columns.append(
            ("the change\n(blue darker, red lighter)", first.images - result.examples, None)
        )
    return columns, [classes[label] for label in result.labels.tolist()], classes


def _render(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("enresnet.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda value: f"{100 * value:.1f}"
    environment.filters["signed"] = lambda value: f"{100 * value:+.1f}"
    return environment.get_template(template).render(**values)


def _svg(figure: Figure) -> Markup:
    return Markup(as_svg(figure))


def _image(figure: Figure, text: str) -> Markup:
    data = base64.b64encode(as_png(figure)).decode()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(text, data)
