"""How our pictures look: one style, drawn without a screen, written as PNG or SVG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
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


def diverging() -> LinearSegmentedColormap:
    """Return a map from blue over white to red whose lightness changes evenly to both sides.

    Equal steps of a value look equally large, and neither side looks nearer to the middle. Made
    in CIELAB, where that is measured.
    """
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    middle = np.array([96.0, 0.0, 0.0])  # lightness, towards red, towards yellow
    ends = np.array([[34.0, 10.0, -48.0], [34.0, 52.0, 30.0]])
    share = np.linspace(0, 1, 128)[:, None]
    lab = np.concatenate(
        [ends[0] + share * (middle - ends[0]), middle + share[1:] * (ends[1] - middle)]
    )
    y = (lab[:, 0] + 16) / 116
    bent = np.stack([y + lab[:, 1] / 500, y, y - lab[:, 2] / 200], axis=1)
    xyz = np.where(bent > 6 / 29, bent**3, 3 * (6 / 29) ** 2 * (bent - 4 / 29))
    xyz *= np.array([0.95047, 1.0, 1.08883])  # daylight
    to_rgb = np.array(
        [[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]]
    )
    linear = np.clip(xyz @ to_rgb.T, 0, 1)
    rgb = np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
    return LinearSegmentedColormap.from_list("blue-white-red", [tuple(row) for row in rgb], N=512)


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
