"""The figure of accuracy against epsilon."""

from __future__ import annotations

from matplotlib.figure import Figure

from enresnet.common.plotting import COLOURS, blank, plain
from enresnet.common.text import for_picture
from enresnet.evaluation import AccuracyCurve


def curve_figure(curve: AccuracyCurve, title: str, *, trained: float | None = None) -> Figure:
    """Return a figure of accuracy against epsilon: a line for each attack, a panel for each norm.

    Bands are the 95 % intervals.

    Args:
        curve: What :func:`enresnet.evaluation.accuracy_curve` found.
        title: The title, such as the name of the network.
        trained: The radius in linf that the network was trained against, as a dotted line; by
            default there is none.

    Returns:
        The figure.

    Example::

        from enresnet.evaluation import accuracy_curve
        from enresnet.report import curve_figure

        curve = accuracy_curve(model, (images, labels), ["fmn5", "fgsm"], draws=2)
        curve_figure(curve, "resnet8").savefig("curve.png")
    """
    norms = list(dict.fromkeys(curve.norms.values()))
    figure = blank(5.6 * len(norms), 3.8)
    panels = figure.subplots(1, len(norms), sharey=True, squeeze=False)[0]
    for axes, norm in zip(panels, norms, strict=True):
        names = [name for name in curve.lines if curve.norms[name] == norm]
        for index, name in enumerate(names):
            colour = COLOURS[::-1][index] if len(names) <= len(COLOURS) else f"C{index}"
            line = curve.lines[name]
            places = [point.epsilon for point in line]
            heights = [100 * point.accuracy for point in line]
            axes.plot(places, heights, color=colour, marker="o", ms=3, lw=1.4, label=name)
            low, high = ([100 * getattr(p, side) for p in line] for side in ("low", "high"))
            axes.fill_between(places, low, high, color=colour, alpha=0.15, lw=0)
        if trained is not None and norm == "linf":
            axes.axvline(trained, color="#888", lw=0.8, ls=":")
        axes.set_xlabel(f"epsilon in {norm}")
        axes.set_ylim(0, 100)
        axes.set_xlim(left=0)
        axes.legend(frameon=False, fontsize=8)
        plain(axes)
    panels[0].set_ylabel("accuracy, %")
    figure.suptitle(f"{for_picture(title)}: bands are 95 % intervals", fontsize=10)
    return figure
