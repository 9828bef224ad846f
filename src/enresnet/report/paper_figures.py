"""Figure 5 of the paper: accuracy while networks are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from enresnet.common.plotting import blank, plain
from enresnet.common.text import for_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Distinct to colour-blind eyes (Okabe and Ito), and by their marks in print.
STYLES = (("#000000", "o"), ("#d55e00", "s"), ("#0072b2", "^"), ("#009e73", "D"))
FEW = 40  # epochs up to which every one has a mark


def accuracy_evolution(panels: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]) -> Figure:
    """Draw accuracy on attacked images against the epoch, one panel beside the other.

    A panel has the rows of metrics.csv of each network, by its name. Training is dashed, validation
    solid.
    """
    figure = blank(4.6 * len(panels), 3.6)
    for axes, networks in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for (colour, mark), (name, rows) in zip(STYLES, networks.items(), strict=False):
            for column, line in (("train_robust", "--"), ("validation_robust", "-")):
                known = [(row["epoch"], 100 * v) for row in rows if (v := row[column]) is not None]
                if known:
                    axes.plot(
                        *zip(*known, strict=True),
                        color=colour,
                        ls=line,
                        lw=1.3,
                        marker=mark if len(known) <= FEW else None,
                        ms=4,
                        label=for_picture(name) if column == "train_robust" else None,
                    )
        plain(axes).set_xlabel("epoch")
        axes.set_ylabel("accuracy on attacked images, %")
        axes.set_xlim(left=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if networks:
            axes.legend(frameon=False, fontsize=8)
    return figure
