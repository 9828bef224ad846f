"""Figures 1, 2 and 3a of the paper, drawn from code: residual mapping, noise, ensemble."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from enresnet.common.plotting import blank

PLAIN, NOISY = "#e8eef7", "#fbe6da"


def _box(axes: Axes, x: float, y: float, text: str, *, w: float = 1.5, colour: str = PLAIN) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - w / 2, y - 0.25), w, 0.5, boxstyle="round,pad=0.03", fc=colour, ec="#333", lw=0.9
        )
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": "#333", "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def _clear(axes: Axes, width: float, height: float, title: str) -> None:
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_aspect("equal", anchor="N")
    axes.axis("off")
    axes.set_title(title, fontsize=10)


def _mapping(axes: Axes, title: str, *, noise: bool) -> None:
    _clear(axes, 4.4, 4.4, title)
    axes.text(1.5, 4.15, "$x_l$", ha="center", fontsize=11)
    _arrow(axes, (1.5, 4.0), (1.5, 3.2))
    _box(axes, 1.5, 2.9, "$F(x_l, w_l)$")
    _arrow(axes, (1.5, 2.6), (1.5, 1.72))
    axes.plot([1.5, 3.2, 3.2], [3.65, 3.65, 1.55], color="#333", lw=0.9)
    _arrow(axes, (3.2, 1.55), (1.67, 1.55))
    axes.text(3.3, 2.6, "identity", fontsize=8.5)
    axes.text(1.5, 1.55, "$\\oplus$", ha="center", va="center", fontsize=17)
    if noise:
        _box(axes, 1.5, 0.85, "$+\\ \\sigma N(0, I)$", colour=NOISY)
        _arrow(axes, (1.5, 1.37), (1.5, 1.14))
        _arrow(axes, (1.5, 0.56), (1.5, 0.25))
    else:
        _arrow(axes, (1.5, 1.37), (1.5, 0.25))
    axes.text(1.5, 0.02, "$x_{l+1}$", ha="center", fontsize=11)


def paper_figures() -> Figure:
    """Draw Figures 1a, 1b, 2 and 3a side by side."""
    figure = blank(12.0, 3.5)
    panels = figure.subplots(1, 4, width_ratios=(4.4, 4.4, 6.4, 2.6))  # one scale for all
    _mapping(panels[0], "Fig. 1a: residual mapping", noise=False)
    _mapping(panels[1], "Fig. 1b: with noise", noise=True)
    ensemble = panels[2]
    _clear(ensemble, 6.4, 4.4, "Fig. 2: the ensemble")
    _box(ensemble, 0.7, 2.2, "image", w=1.0)
    for y in (3.6, 2.2, 0.8):
        _box(ensemble, 3.0, y, "ResNet with noise", w=2.1, colour=NOISY)
        _arrow(ensemble, (1.25, 2.2), (1.9, y))
        _arrow(ensemble, (4.1, y), (4.9, 2.2))
    ensemble.text(3.0, 1.5, "⋮", ha="center", va="center", fontsize=13)
    _box(ensemble, 5.5, 2.2, "mean", w=1.1)
    block = panels[3]
    _clear(block, 2.6, 4.4, "Fig. 3a: $F$")
    words = ("BatchNorm", "ReLU", "convolution", "BatchNorm", "ReLU", "convolution")
    for row, word in enumerate(words):
        y = 3.85 - 0.68 * row
        _box(block, 1.3, y, word, w=1.9)
        if row:
            _arrow(block, (1.3, y + 0.40), (1.3, y + 0.28))
    figure.supxlabel(
        "The one change of the paper is the orange box: noise after each residual mapping makes a "
        "network a path of an Ito process, and the ensemble's mean the Feynman-Kac formula.",
        fontsize=8.5,
        x=0.01,
        ha="left",
        color="#333",
    )
    return figure
