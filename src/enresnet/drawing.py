"""How our pictures look: one style, drawn without a screen, written as PNG or SVG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A colour for each of two networks, distinct to colour-blind eyes and in print.
COLOURS = ("#c44e1c", "#1f5fa8")


def blank(width: float, height: float) -> Figure:
    """Return an empty figure; the sides are in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes) -> Axes:
    """Take away what carries no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#ddd", lw=0.6)
    axes.set_axisbelow(True)
    return axes


def as_svg(figure: Figure) -> str:
    """Return a figure as SVG text to be put into a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue().partition("<svg")[1] + buffer.getvalue().partition("<svg")[2]


def as_png(figure: Figure, *, dpi: int = 110) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
