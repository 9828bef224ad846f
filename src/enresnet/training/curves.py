"""The picture of a training: loss, accuracies and rate against the epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from enresnet.common.plotting import COLOURS, blank, plain
from enresnet.common.text import for_picture
from enresnet.training.events import Epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROBUST, NATURAL = COLOURS


def draw_curves(model: str, epochs: Sequence[Epoch]) -> Figure:
    """Draw loss and learning rate on the left, accuracies on the right."""
    figure = blank(9.0, 3.4)
    left, right = figure.subplots(1, 2)
    numbers = [epoch.epoch for epoch in epochs]
    mark: dict[str, Any] = {"marker": "o", "ms": 3} if len(epochs) < 40 else {}
    plain(left).plot(numbers, [e.train_loss for e in epochs], color="#333", label="loss", **mark)
    left.set_ylabel("training loss")
    rates = left.twinx()
    rates.plot(numbers, [e.learning_rate for e in epochs], color="#999", ls=":")
    rates.set_ylabel("learning rate (dotted)", color="#777")
    rates.set_ylim(bottom=0)
    rates.spines["top"].set_visible(False)
    for column, colour, style, label in (
        ("train_natural", NATURAL, "--", "training, natural"),
        ("validation_natural", NATURAL, "-", "validation, natural"),
        ("train_robust", ROBUST, "--", "training, attacked"),
        ("validation_robust", ROBUST, "-", "validation, attacked"),
    ):
        known = [(e.epoch, 100 * v) for e in epochs if (v := getattr(e, column)) is not None]
        if known:
            right.plot(*zip(*known, strict=True), color=colour, ls=style, label=label, **mark)
    plain(right).set_ylabel("accuracy, %")
    for epoch in epochs:
        if epoch.note:
            right.axvline(epoch.epoch, color="#b42318", lw=0.8)
            right.text(
                epoch.epoch,
                0.99,
                " went back",
                transform=right.get_xaxis_transform(),
                va="top",
                fontsize=7,
                color="#b42318",
            )
    right.legend(frameon=False, fontsize=8, loc="best")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(for_picture(model), fontsize=11)
    return figure
