"""What the page shows of a result, as HTML: pictures are embedded, words from outside escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from markupsafe import escape
from PIL import Image
from torch import Tensor

from enresnet.common.plotting import COLOURS, diverging
from enresnet.common.text import for_terminal
from enresnet.demo.experiment import DemoResult, Side
from enresnet.demo.networks import Pair
from enresnet.demo.run_network import RunNetwork
from enresnet.demo.wording import how_attacked, what_happened
from enresnet.models import ModelCard

MOST_BARS = 10
LONGEST_NAME = 12  # letters; a longer one is cut, and shown whole under the pointer
TEMPLATES = Path(__file__).parent / "templates"


def style() -> str:
    """Return the page's style sheet."""
    return (TEMPLATES / "page.css").read_text(encoding="utf-8")


def result_html(result: DemoResult) -> str:
    """Return both networks side by side: pictures, bars, and the sentence above them."""
    factor = magnification(result)
    gray = result.image.shape[0] == 1
    colours = "Blue became darker, red lighter" if gray else "Mid-grey means no change"
    sides = zip(
        ("Plain network", "Feynman-Kac ensemble"),
        COLOURS,
        (result.base, result.ensemble),
        strict=True,
    )
    return _render(
        "result.html",
        sentence=what_happened(result),
        how=how_attacked(result),
        sides=[_side(result, *side, factor) for side in sides],
        change_note=f"{colours}; the change is shown {factor:g} times as large as it is.",
        seconds=result.seconds,
        measured=_measured(result.pair),
        tested=_tested(result.pair),
        epsilon=result.pair.epsilon,
    )


def preview_html(image: Tensor, lines: Sequence[str]) -> str:
    """Return the chosen image, with lines on it."""
    return _render("preview.html", source=_source(image), lines=[for_terminal(x) for x in lines])


def error_html(text: str) -> str:
    """Return a sentence on what went wrong."""
    return f'<p class="demo-error" id="demo-sentence">{escape(for_terminal(text))}</p>'


def magnification(result: DemoResult) -> float:
    """Return by how much the change is magnified: the same for both networks, at least 1."""
    largest = max(result.base.largest_change, result.ensemble.largest_change) / 255
    if largest == 0:
        return 1.0
    factor = max(1.0, 0.5 / largest)
    return float(f"{factor:.2g}") if factor < 100 else float(round(factor))


def magnified(change: Tensor, factor: float) -> Tensor:
    """Return a picture of a change, 3 x H x W in [0, 1].

    Of grey images blue means darker and red lighter; of colours each is shown around mid-grey.
    """
    picture = (0.5 + factor * change).clamp(0, 1)
    if len(change) == 3:
        return picture
    colours = diverging()(picture[0].numpy())[..., :3]
    return torch.from_numpy(np.asarray(colours)).permute(2, 0, 1).float()


def _side(result: DemoResult, title: str, colour: str, side: Side, factor: float) -> dict[str, Any]:
    before, after, classes = side.before, side.after, result.pair.classes
    said = [classes[answer.top] for answer in (before, after)]
    draws = after.draws
    change = side.attacked - result.image
    shown = _most_important(before.probabilities, after.probabilities, result.label)
    mean = f", mean of {draws} draws" if draws > 1 else ""
    won = [number for number in range(len(classes)) if before.wins[number] + after.wins[number]]
    won = sorted(sorted(won, key=lambda n: -before.wins[n] - after.wins[n])[:MOST_BARS])
    return {
        "title": title,
        "network": side.network,
        "colour": colour,
        "label_width": 3 + min(LONGEST_NAME, max(map(len, classes))),
        "pictures": [
            _picture(result.image, "the image", f"read as {said[0]}"),
            _picture(side.attacked, "attacked", f"read as {said[1]}"),
            _picture(magnified(change, factor), "the change", f"× {factor:g}"),
        ],
        "probabilities_title": f"Probability in %{mean}"
        if len(shown) == len(classes)
        else f"The {len(shown)} most probable classes, in %{mean}",
        "probabilities": [
            _bar(
                classes[number],
                100 * before.probabilities[number],
                100 * after.probabilities[number],
                1.0,
                right=number == result.label,
            )
            for number in shown
        ],
        "wins_title": f"How often each class wins in {draws} draws",
        "wins": [
            _bar(
                classes[number],
                before.wins[number],
                after.wins[number],
                100 / draws,
                right=number == result.label,
            )
            for number in won
        ]
        if draws > 1
        else [],
    }


def _picture(image: Tensor, *caption: str) -> dict[str, Any]:
    return {"source": _source(image), "caption": [for_terminal(line) for line in caption]}


def _bar(name: str, before: float, after: float, scale: float, *, right: bool) -> dict[str, Any]:
    return {
        "name": for_terminal(name),
        "right": right,
        "before": f"{before:.0f}",
        "after": f"{after:.0f}",
        "before_width": f"{before * scale:.2f}",
        "after_width": f"{after * scale:.2f}",
    }


def _most_important(
    before: Sequence[float], after: Sequence[float], label: int | None
) -> list[int]:
    """Return the classes to draw, in their order: all of a few, the most probable of many."""
    order = sorted(range(len(before)), key=lambda n: -(max(before[n], after[n]) + (n == label)))
    return sorted(order[:MOST_BARS])


def _measured(pair: Pair) -> list[dict[str, Any]]:
    """Return the accuracies on the two cards, by what was done to the images."""
    names = dict.fromkeys(
        value.images for card in (pair.base, pair.ensemble) for value in card.measured
    )
    return [
        {"images": name, "cells": [_accuracy(card, name) for card in (pair.base, pair.ensemble)]}
        for name in names
    ]


def _tested(pair: Pair) -> str:
    """Return on how many test images the accuracies were measured."""
    numbers = {value.number for card in (pair.base, pair.ensemble) for value in card.measured}
    return (
        " to ".join(f"{number:,}" for number in sorted({min(numbers), max(numbers)}))
        if numbers
        else ""
    )


def _accuracy(card: ModelCard | RunNetwork, images: str) -> str:
    found = card.accuracy(images)
    if found is None:
        return "not measured"
    low, high = found.interval
    return f"{100 * found.accuracy:.1f} ({100 * low:.1f}-{100 * high:.1f})"


def _source(image: Tensor) -> str:
    """Return an image in [0, 1] as the address of a PNG that holds it."""
    pixels = (255 * image).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _render(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
