"""Pictures of the studies: perceptual colour maps, shared scales, captions that say what to see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from string import ascii_lowercase
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from enresnet.common.plotting import COLOURS, blank, diverging, plain
from enresnet.pde.characteristics import CharacteristicStudy
from enresnet.pde.depth_levels import WAYS, DepthLevel
from enresnet.pde.flow import HALF_WIDTH
from enresnet.pde.theorems import Break, Case, Smoothness
from enresnet.report.findings import (
    Check,
    ClassifierStudy,
    Figure4,
    MultilevelStudy,
    ParticleStudy,
)

# Distinct to colour-blind eyes (Okabe and Ito), for lines that share a panel.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#555555")
CAPTION = 8.5


def _caption(figure: Figure, text: str) -> None:
    figure.supxlabel(text, fontsize=CAPTION, x=0.01, ha="left", color="#333")


def _ticks(axes: Axes, values: Sequence[float]) -> None:
    """Mark what was measured along a logarithmic axis, and nothing between."""
    axes.set_xticks(list(values), [f"{value:.3g}" for value in values])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)


def figure4_panels(result: Figure4) -> Figure:
    """Draw the panels of Figure 4 on one colour scale, and their regularity."""
    figure = blank(11.0, 6.7)
    panels = [*((f"$\\sigma = {s:g}$: $u(x, 0)$", u) for s, u in result.solutions.items())]
    panels.append(("terminal values $u(x, 1)$", result.terminal))
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.05, 1))[:, 0]
    line = (result.grid.points[:, 0, 0]).tolist()
    tops = upper.subplots(1, len(panels), squeeze=False)[0]
    shown = None
    for number, (axes, (title, values)) in enumerate(zip(tops, panels, strict=True)):
        table = values.T.cpu().numpy()
        shown = axes.pcolormesh(
            line, line, table, cmap=diverging(), vmin=-1, vmax=1, rasterized=True, shading="nearest"
        )
        axes.contour(line, line, table, levels=10, colors="k", linewidths=0.45)
        axes.set_aspect("equal")
        axes.set_title(f"({ascii_lowercase[number % 26]}) {title}", fontsize=9.5)
        axes.set_xticks([0, 0.5, 1], ["0", "", "1"])
        axes.set_yticks([0, 0.5, 1], ["0", "", "1"] if number == 0 else [])
    assert shown is not None
    upper.colorbar(shown, ax=list(tops), shrink=0.85, pad=0.01)
    left, right = (plain(axes) for axes in lower.subplots(1, 2))
    for colour, (sigma, (waves, power)) in zip(cycle(LINES), result.spectra.items(), strict=False):
        name = "f" if sigma is None else f"$\\sigma = {sigma:g}$"
        left.loglog(waves, [max(p, 1e-20) for p in power], color=colour, lw=1.6, label=name)
        distances = result.distances[sigma].sort().values.cpu()
        share = [(k + 1) / len(distances) for k in range(len(distances))]
        right.plot(distances, share, color=colour, lw=1.6, label=name)
    left.set_ylim(1e-10, 1)
    left.set_xlabel("waves a unit length", fontsize=9)
    left.set_ylabel("power in a ring", fontsize=9)
    left.legend(frameon=False, fontsize=8.5)
    right.set_xlim(0, 0.2)
    right.set_ylim(0, 1)
    right.set_xlabel("distance to the level set through the median", fontsize=9)
    right.set_ylabel("share of random points nearer", fontsize=9)
    _caption(
        figure,
        "Ten level lines a panel, one colour scale. Below, left: the power of each solution in "
        "waves of a given length; right: the share of points that\nare nearer than a given "
        "distance to the level set through the median.",
    )
    return figure


def verification(checks: Sequence[Check]) -> Figure:
    """Draw each check as found over bound, or as bound over found where more is better."""
    figure = blank(9.5, 0.29 * len(checks) + 1.5)
    axes = figure.subplots()
    for place, check in enumerate(checks):
        share = check.bound / check.found if check.at_least else check.found / check.bound
        share = min(max(share, 0.0), 1.15) if math.isfinite(share) else 1.15
        colour = COLOURS[1] if check.holds else COLOURS[0]
        axes.barh(place, share, color=colour, height=0.55)
        sign = "$\\geq$" if check.at_least else "$\\leq$"
        words = f"{check.found:.3g} {sign} {check.bound:g}" + ("" if check.holds else "  FAILS")
        axes.text(
            1.01, place, words, fontsize=7.5, va="center", transform=axes.get_yaxis_transform()
        )
    axes.axvline(1, color="k", lw=1)
    axes.set_xlim(0, 1.15)
    axes.set_yticks(range(len(checks)), [check.name for check in checks], fontsize=8)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("share of what is allowed", fontsize=9)
    _caption(figure, "Each solver against what is known: right of the line a check fails.")
    return figure


def particle_errors(study: ParticleStudy) -> Figure:
    """Draw the weak error against the step, and the sampling error against the paths."""
    figure = blank(9.0, 3.9)
    left, right = (plain(axes) for axes in figure.subplots(1, 2))
    lengths = [1 / count for count in study.weak.steps]
    left.errorbar(
        lengths, study.weak.errors, study.weak.bars, color=LINES[0], marker="o", capsize=3, lw=1.5
    )
    guide = [study.weak.errors[-1] * length / lengths[-1] for length in lengths]
    left.plot(lengths, guide, color="#888", ls="--", lw=1, label="order 1")
    left.set(xscale="log", yscale="log", xlabel="time step 1/L", ylabel="error of the mean")
    _ticks(left, lengths)
    left.set_title(f"bias of Euler-Maruyama: order {study.weak.order:.2f}", fontsize=10)
    left.legend(frameon=False, fontsize=8.5)
    for colour, (method, errors) in zip(cycle(LINES), study.path_errors.items(), strict=False):
        label = f"{method}: order {study.path_orders[method]:.2f}"
        right.loglog(study.path_numbers, errors, color=colour, marker="o", lw=1.5, label=label)
    first = study.path_errors["independent"][0]
    guide = [first * math.sqrt(study.path_numbers[0] / n) for n in study.path_numbers]
    right.loglog(study.path_numbers, guide, color="#888", ls="--", lw=1, label="order -1/2")
    right.set(xlabel="paths", ylabel="error of sampling")
    right.set_title("error of the number of paths", fontsize=10)
    right.legend(frameon=False, fontsize=8.5)
    _caption(
        figure,
        "Particles against the spectral solution: the bias falls with the step, the noise with the "
        "number of paths. Dashed lines have the slope that theory gives.",
    )
    return figure


def multilevel_costs(study: MultilevelStudy, depths: Sequence[DepthLevel]) -> Figure:
    """Draw variances by level, cost against error, and the same for depths of networks."""
    figure = blank(11.0, 3.9)
    first, second, third = (plain(axes) for axes in figure.subplots(1, 3))
    levels = study.rows[-1].multilevel.levels
    numbers = list(range(len(levels)))
    first.semilogy(numbers, [level.variance for level in levels], "o-", color=LINES[0])
    first.set(xlabel="level l (2$^l$ steps)", ylabel="variance of $P_l - P_{l-1}$")
    first.set_title(f"variance: order {study.variance_order:.2f} in the step", fontsize=10)
    sizes = [row.epsilon for row in study.rows]
    plain_costs = [row.plain.cost for row in study.rows]
    second.loglog(sizes, plain_costs, "s-", color=LINES[1], label="plain Monte Carlo")
    second.loglog(
        sizes, [row.multilevel.cost for row in study.rows], "o-", color=LINES[0], label="levels"
    )
    second.set(xlabel="wanted error", ylabel="Euler steps")
    _ticks(second, sizes)
    second.set_title(f"cost: {study.rows[-1].gain:.0f} times less at the left", fontsize=10)
    second.legend(frameon=False, fontsize=8.5)
    for colour, way in zip(cycle(LINES), WAYS, strict=False):
        rows = [row for row in depths if row.way == way]
        names = [f"{row.coarse} to {row.fine}" for row in rows]
        middle = [row.ratio for row in rows]
        reach = [
            [row.ratio - min(row.ratios) for row in rows],
            [max(row.ratios) - row.ratio for row in rows],
        ]
        third.errorbar(names, middle, reach, fmt="o-", color=colour, capsize=3, label=way)
    third.set_yscale("log")
    third.axhline(1, color="k", lw=0.8)
    third.set(xlabel="layers", ylabel="variance of difference / of output")
    third.set_title("networks of different depth", fontsize=10)
    third.legend(frameon=False, fontsize=8.5)
    _caption(
        figure,
        "Levels pay where the variance of a difference falls with the level. Right: the variance "
        "of the difference of two networks over that\nof one; bars are from the lowest to the "
        "highest of several trainings.",
    )
    return figure


def theorem_checks(
    cases: Sequence[Case], breaks: Sequence[Break], smooth: Sequence[Smoothness]
) -> Figure:
    """Draw Theorem 2 on random fields, where the printed one breaks, and Theorem 1."""
    figure = blank(11.0, 4.0)
    first, second, third = (plain(axes) for axes in figure.subplots(1, 3))
    shown = first.scatter(
        [case.bound for case in cases],
        [case.measured for case in cases],
        c=[case.sigma for case in cases],
        cmap="viridis",
        s=11,
    )
    ends = [min(case.measured for case in cases), max(case.bound for case in cases)]
    first.plot(ends, ends, color="k", lw=1)
    first.set(xscale="log", yscale="log", xlabel="corrected bound", ylabel="measured")
    first.set_title("Theorem 2: largest $|\\nabla u|$", fontsize=10)
    figure.colorbar(shown, ax=first, label="$\\sigma$", pad=0.01)
    sigmas = [one.sigma for one in breaks]
    second.semilogy(sigmas, [one.measured for one in breaks], "ko-", label="measured")
    second.semilogy(sigmas, [one.printed for one in breaks], "s--", color=LINES[1], label="printed")
    second.semilogy(sigmas, [one.bound for one in breaks], "^-", color=LINES[0], label="corrected")
    second.set(xlabel="$\\sigma$", ylabel="largest $|\\nabla u(x, 1)|$")
    second.set_title("$F = 0$, $u_0 = \\cos x$ in a window", fontsize=10)
    second.legend(frameon=False, fontsize=8.5)
    for colour, row in zip(cycle(LINES), smooth, strict=False):
        third.loglog(row.distances, row.changes, color=colour, lw=1.5, label=f"{row.sigma:g}")
    third.set(xlabel="$|\\delta| / \\sigma$", ylabel="largest change of $u(x, 0)$")
    third.set_title("Theorem 1", fontsize=10)
    third.legend(frameon=False, fontsize=8.5, title="$\\sigma$")
    constants = [row.constant for row in smooth]
    _caption(
        figure,
        "Left: a point above the line would break the bound. Middle: the printed bound and what is "
        "measured. Right: the constant lies between "
        f"{min(constants):.2f} and {max(constants):.2f}.",
    )
    return figure


def classifier_surfaces(study: ClassifierStudy) -> Figure:
    """Draw each network's surface above the spectral solution of its own velocity."""
    count = len(study.rows)
    figure = blank(2.75 * count + 0.7, 6.1)
    panels = figure.subplots(2, count, squeeze=False, sharex=True, sharey=True)
    shown = None
    for column, row in enumerate(study.rows):
        pair = (row.agreement.network, row.agreement.spectral)
        for axes, values in zip(panels[:, column], pair, strict=True):
            shown = _surface(axes, study.line, values.T.numpy())
            for label, colour, edge in ((0, "white", "black"), (1, "black", "white")):
                chosen = study.points[study.labels == label]
                axes.scatter(
                    chosen[:, 0], chosen[:, 1], s=8, color=colour, edgecolors=edge, linewidths=0.4
                )
        panels[0][column].set_title(
            f"$\\sigma = {row.sigma:g}$: clean {100 * row.naturals[0]:.1f} %, attacked "
            f"{100 * row.robusts[0]:.1f} %",
            fontsize=8.2,
        )
        panels[1][column].set_title(f"rms difference {row.agreement.rms:.3f}", fontsize=9)
    panels[0][0].set_ylabel("the noisy network", fontsize=10)
    panels[1][0].set_ylabel("its equation, by Fourier series", fontsize=10)
    assert shown is not None
    figure.colorbar(shown, ax=panels, shrink=0.6, pad=0.01, label="u(x, 0), probability of class 1")
    _caption(
        figure,
        f"Two {study.data}, {study.layers} layers, attacks of {study.epsilon:g} a coordinate. "
        "Points are the training data, white those of class 0.\nAbove the network, below the "
        "spectral solution of its equation; between the classes the answer is unsure where it is "
        "white.",
    )
    return figure


def _surface(axes: Axes, line: list[float], table: Any) -> Any:
    shown = axes.pcolormesh(
        line, line, table, cmap=diverging(), vmin=0, vmax=1, shading="gouraud", rasterized=True
    )
    axes.contour(line, line, table, levels=[0.5], colors="k", linewidths=1)
    axes.set_aspect("equal")
    axes.set_xlim(-HALF_WIDTH, HALF_WIDTH)
    axes.set_ylim(-HALF_WIDTH, HALF_WIDTH)
    return shown


def characteristic_curves(study: CharacteristicStudy) -> Figure:
    """Draw Figure 3b: characteristics, a network's order, and the control problem."""
    figure = blank(11.0, 3.9)
    first, second, third = figure.subplots(1, 3)
    paths = [path.numpy() for path in study.paths]
    for index in range(0, len(study.labels), 3):
        colour = COLOURS[int(study.labels[index])]
        first.plot(
            [path[index, 0] for path in paths],
            [path[index, 1] for path in paths],
            color=colour,
            lw=0.6,
        )
        first.scatter(*paths[0][index], color=colour, s=6)
        first.scatter(*paths[-1][index], color=colour, s=10, marker="x", lw=0.8)
    first.set_aspect("equal", adjustable="datalim")
    first.set_title("characteristics of a trained network", fontsize=10)
    first.set(xlabel="$x_1$", ylabel="$x_2$")
    lengths = [1 / count for count in study.layers]
    plain(second).loglog(lengths, study.errors, "o-", color=LINES[0])
    second.set(xlabel="1 / layers", ylabel="error of u(x, 0)")
    _ticks(second, lengths)
    second.set_title(f"network against equation: order {study.order:.2f}", fontsize=10)
    plain(third).semilogy(study.residuals, color=LINES[0], lw=1.5)
    third.set(xlabel="iteration", ylabel="mean $|u(x_i, 0) - y_i|$")
    third.set_title("training as control (Eq. 9)", fontsize=10)
    _caption(
        figure,
        "Dots are data, crosses where the layers carry it: u is constant along each line, so the "
        "classes must part. A residual network is Euler's method for these lines.",
    )
    return figure
