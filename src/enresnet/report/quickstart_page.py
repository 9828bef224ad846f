"""The page of the quickstart: one self-contained HTML file, which loads nothing."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from enresnet.common.plotting import as_svg
from enresnet.evaluation import AccuracyCurve, CurvePoint
from enresnet.report.curve import curve_figure
from enresnet.report.examples import Answer, Example
from enresnet.report.figures import accuracy_bars, training_curves
from enresnet.report.quickstart import (
    BASE,
    DRAWS,
    ENSEMBLE,
    EOT,
    NETWORKS,
    SHOWN_ATTACK,
    Quickstart,
)
from enresnet.report.templating import render
from enresnet.report.thumbnails import change_uri, image_uri

SHOWN = 8  # images: so many that were not chosen, and so many on which the networks differ


def render_quickstart(result: Quickstart) -> str:
    """Return the page of the quickstart, as self-contained HTML.

    Args:
        result: What :func:`run_quickstart` measured.

    Returns:
        The text of the page; figures are embedded.

    Example::

        from pathlib import Path
        from enresnet.paper import run_quickstart
        from enresnet.report import render_quickstart

        result = run_quickstart(seeds=1)
        Path("quickstart.html").write_text(render_quickstart(result), encoding="utf-8")
    """
    rows, curve_rows = result.rows(), result.curve_rows()
    epsilon = result.plan.recipe.epsilon
    examples, differing = result.examples(), result.differing()
    values = {
        "result": result,
        "rows": rows,
        "networks": NETWORKS,
        "base": BASE,
        "ensemble": ENSEMBLE,
        "verdict": verdict(rows),
        "bars": _svg(accuracy_bars(rows, NETWORKS), _said_of_bars(rows)),
        "shown_attack": SHOWN_ATTACK,
        "curve_rows": curve_rows,
        "curve_verdict": verdict([{**row, "images": f"{row['epsilon']:g}"} for row in curve_rows]),
        "against_epsilon": _svg(
            _against_epsilon(curve_rows, trained=epsilon), _said_of_curve(curve_rows)
        ),
        "attacked_images": len(examples),
        "differing": differing,
        "counts": differing.counts(),
        "places": SHOWN,
        "first_differing": {
            network: [_shown(example, epsilon) for example in chosen]
            for network, chosen in differing.first(SHOWN).items()
        },
        "first_examples": [_shown(example, epsilon) for example in examples[:SHOWN]],
        "curves": _svg(training_curves(_curves(result)), _said_of_training(result)),
        "recipe": result.plan.recipe,
        "eot": EOT,
        "draws": DRAWS,
        "settings": sorted({a.settings for a in result.attacked}),
        "training_seconds": {
            network: sum(t.seconds for t in result.trained if t.network == network) / result.seeds
            for network in NETWORKS
        },
        "attack_seconds": _attack_seconds(result),
        "versions": f"enresnet {version('enresnet')}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    }
    filters = {"percent": _percent, "signed": _signed}
    return render("quickstart.html", values, filters)


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


def _attack_seconds(result: Quickstart) -> dict[tuple[str, str, float], float]:
    """Return the mean time over the seeds by attack, network and epsilon."""
    total: dict[tuple[str, str, float], float] = {}
    for a in result.attacked:
        key = (a.attack, a.source, a.epsilon)
        total[key] = total.get(key, 0.0) + a.seconds / result.seeds
    return total


def _against_epsilon(rows: Sequence[dict[str, Any]], *, trained: float) -> Figure:
    """Draw a line for each network."""
    lines = {
        network: tuple(
            CurvePoint(row["epsilon"], row[network]["accuracy"], *row[network]["interval"])
            for row in rows
        )
        for network in reversed(NETWORKS)  # in the colours of the other charts
    }
    curve = AccuracyCurve(lines, dict.fromkeys(lines, "linf"), {}, rows[-1]["count"])
    return curve_figure(curve, f"{SHOWN_ATTACK}, white box", trained=trained)


def _shown(example: Example, epsilon: float) -> dict[str, Any]:
    """Return what the page shows of an image: it, clean and attacked, with all answers."""

    def tile(
        image: Any, answers: dict[str, Answer], attacked: str | None, alt: str
    ) -> dict[str, Any]:
        return {
            "image": image_uri(image),
            "change": change_uri(image - example.image, epsilon) if attacked else None,
            "attacked": attacked,
            "alt": alt,
            "answers": {
                network: {
                    "said": answer.said,
                    "confidence": f"{100 * answer.confidence:.0f} %",
                    "right": answer.said == example.label,
                }
                for network, answer in answers.items()
            },
        }

    digit = f"a handwritten {example.label}"
    attacked = [
        tile(image, example.answers[network], network, f"{digit}, after an attack on {network}")
        for network, image in example.attacked.items()
    ]
    return {
        "label": example.label,
        "row": example.row,
        "seed": example.seed,
        "tiles": [tile(example.image, example.clean_answers, None, digit), *attacked],
    }


def _said_of_bars(rows: Sequence[dict[str, Any]]) -> str:
    """Return the chart in words, for those who do not see it."""
    parts = [
        f"{row['images']}: "
        + ", ".join(f"{network} {100 * row[network]['accuracy']:.1f}" for network in NETWORKS)
        for row in rows
    ]
    return f"Bar chart of accuracies in %, also in the table. {'; '.join(parts)}."


def _said_of_curve(rows: Sequence[dict[str, Any]]) -> str:
    parts = [
        f"{network}: "
        + ", ".join(f"{100 * row[network]['accuracy']:.1f} at {row['epsilon']:g}" for row in rows)
        for network in NETWORKS
    ]
    return f"Line chart of accuracy in % against epsilon. {'; '.join(parts)}."


def _said_of_training(result: Quickstart) -> str:
    parts = []
    for network, seeds in _curves(result).items():
        clean, attacked = (
            sum(getattr(epochs[-1], column) for epochs in seeds) / len(seeds)
            for column in ("validation_natural", "validation_robust")
        )
        parts.append(f"{network} ends at {100 * clean:.1f} clean and {100 * attacked:.1f} attacked")
    return f"Line chart of validation accuracy in % by epoch. {'; '.join(parts)}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"


def _svg(figure: Figure, text: str) -> Markup:
    form = Markup('<div role="img" aria-label="{}">{}</div>')
    return form.format(text, Markup(as_svg(figure)))
