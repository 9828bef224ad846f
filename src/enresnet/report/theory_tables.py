"""Tables of the studies of the theory, in words for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from enresnet.pde.characteristics import CharacteristicStudy
from enresnet.pde.depth_levels import DepthLevel
from enresnet.pde.theorems import Break, Case, Smoothness
from enresnet.report.findings import (
    Check,
    ClassifierStudy,
    Figure4,
    MultilevelStudy,
    ParticleStudy,
    Trap,
)

Row = dict[str, str]


@dataclass(frozen=True)
class Table:
    """Rows of words, with what stands above and below them."""

    rows: list[Row]
    title: str | None = None
    caption: str = ""


def figure4_table(result: Figure4, *, steps: int) -> Table:
    """Return what the text claims of each panel, in numbers."""
    rows = [("u(x, 1)", result.terminal_row)]
    rows += [(f"sigma = {row.sigma:g}", row) for row in result.rows]
    return Table(
        [
            {
                "": name,
                "range": f"{row.lowest:.2f} to {row.highest:.2f}",
                "beyond f": f"{100 * row.overshoot:.2f} %",
                "|grad u|": f"{row.gradient:.3g}",
                "variation": f"{row.total_variation:.3g}",
                "wave": f"{row.mean_wave:.2f}",
                "fine": f"{100 * row.fine_share:.2g} %",
                "distance": f"{row.distance:.4f}",
                "near": f"{100 * row.near:.1f} %",
            }
            for name, row in rows
        ],
        title=f"Figure 4: {result.grid.size} x {result.grid.size}, {steps} steps",
        caption="|grad u|: root mean square; variation: total; wave: mean wave number, in waves a "
        "unit length; fine: power in those above 10; distance: of random points to the level set "
        "through the median, on average; near: those nearer than one spacing.",
    )


def trap_table(found: Sequence[Trap]) -> Table:
    """Return the largest values of plain pseudo-spectral solutions."""
    return Table(
        [
            {
                "velocity": "drawn once" if trap.frozen else "drawn in each step",
                "2/3 rule": "with" if trap.dealias else "without",
                **{f"sigma = {sigma:g}": f"{value:.2g}" for sigma, value in trap.largest.items()},
            }
            for trap in found
        ],
        title="largest |u(x, 0)| by plain pseudo-spectral steps; the truth is at most 1",
    )


def check_table(checks: Sequence[Check]) -> Table:
    """Return each check with its bound."""
    return Table(
        [
            {
                "check": check.name,
                "found": f"{check.found:.3g}",
                "allowed": f"{'at least' if check.at_least else 'at most'} {check.bound:g}",
                "": "holds" if check.holds else "FAILS",
            }
            for check in checks
        ],
    )


def particle_table(study: ParticleStudy) -> Table:
    """Return the agreement and the orders of each kind of paths."""
    last = study.path_numbers[-1]
    return Table(
        [
            {
                "paths": method,
                "largest deviation": f"{max(map(abs, study.scores[method])):.2f} s.e.",
                "standard error": f"{float(found.standard_error.mean()):.2g}",
                "Euler steps a point": f"{found.path_steps:,}",
                "order in the paths": f"{study.path_orders[method]:.2f}",
                f"error at {last:,} paths": f"{study.path_errors[method][-1]:.2g}",
            }
            for method, found in study.estimates.items()
        ],
        title="particles against the spectral solution",
        caption=f"Weak order in the time step: {study.weak.order:.3f}, from errors "
        f"{', '.join(f'{e:.3g}' for e in study.weak.errors)} at "
        f"{', '.join(map(str, study.weak.steps))} steps.",
    )


def level_table(study: MultilevelStudy) -> Table:
    """Return cost against error with and without levels."""
    return Table(
        [
            {
                "wanted error": f"{row.epsilon:g}",
                "levels": str(len(row.multilevel.levels)),
                "error, levels": f"{row.multilevel_error:.2g}",
                "error, plain": f"{row.plain_error:.2g}",
                "steps, levels": f"{row.multilevel.cost:,}",
                "steps, plain": f"{row.plain.cost:,}",
                "gain": f"{row.gain:.1f}",
                "gain in seconds": f"{row.gain_in_seconds:.1f}",
            }
            for row in study.rows
        ],
        title="multi-level Monte Carlo",
        caption=f"From the largest wanted error to the smallest the cost grows "
        f"{study.multilevel_growth:,.0f} times with levels and {study.plain_growth:,.0f} times "
        f"without. The variance of a level falls as step^{study.variance_order:.2f}.",
    )


def depth_table(depths: Sequence[DepthLevel]) -> Table:
    """Return the variance of differences between networks of two depths."""
    return Table(
        [
            {
                "deeper network": row.way,
                "layers": f"{row.coarse} to {row.fine}",
                "variance": f"{median(row.variances):.2g}",
                "of the difference": f"{median(row.difference_variances):.2g}",
                "ratio": f"{row.ratio:.2f}",
                "lowest and highest": f"{min(row.ratios):.2f} to {max(row.ratios):.2f}",
                "difference of means": f"{median(row.biases):.3f}",
            }
            for row in depths
        ],
        title="networks of different depth as levels",
        caption=f"Medians of {len(depths[0].ratios)} trainings. A level pays where the ratio is "
        "well below 1.",
    )


def theorem_table(cases: Sequence[Case]) -> Table:
    """Return the ratios of Theorem 2 by groups of fields."""
    rows = []
    for name, chosen in (
        ("all", list(cases)),
        ("forward (Eq. 12)", [case for case in cases if not case.backward]),
        ("backward (Remark 1)", [case for case in cases if case.backward]),
        ("gamma above 1", [case for case in cases if case.gamma > 1]),
    ):
        if chosen:
            ratios = [case.ratio for case in chosen]
            printed = [case.measured / case.printed for case in chosen]
            rows.append(
                {
                    "cases": name,
                    "number": str(len(chosen)),
                    "smallest": f"{min(ratios):.3f}",
                    "largest": f"{max(ratios):.4f}",
                    "largest with mu = 1": f"{max(c.measured / c.mu_one for c in chosen):.3f}",
                    "largest, printed": f"{max(printed):.3f}",
                    "printed broken": str(sum(ratio > 1 for ratio in printed)),
                }
            )
    return Table(
        rows,
        title="Theorem 2: measured over bound",
    )


def break_table(breaks: Sequence[Break]) -> Table:
    """Return the printed bound of Theorem 2 against a cosine that no wind blows."""
    return Table(
        [
            {
                "u0": f"cos {one.wave:g} x",
                "sigma": f"{one.sigma:g}",
                "measured": f"{one.measured:.3f}",
                "printed bound": f"{one.printed:.3f}",
                "mu = 1, lambda < 0": f"{one.unrestricted:.3f}",
                "corrected": f"{one.bound:.3f}",
                "": "printed bound broken" if one.measured > one.printed else "",
            }
            for one in breaks
        ],
        title="F = 0, u0 a cosine in a wide smooth window",
    )


def smoothness_table(smooth: Sequence[Smoothness]) -> Table:
    """Return Theorem 1's exponent and constant for each sigma."""
    return Table(
        [
            {
                "sigma": f"{one.sigma:g}",
                "exponent": f"{one.exponent:.3f}",
                "constant": f"{one.constant:.2f}",
            }
            for one in smooth
        ],
        title="Theorem 1: largest change against |delta| / sigma",
    )


def classifier_table(study: ClassifierStudy) -> Table:
    """Return the accuracies of the networks of each sigma."""
    rows = []
    for row in study.rows:
        error = "" if row.gain_error is None else f" +- {100 * row.gain_error:.1f}"
        rows.append(
            {
                "sigma": f"{row.sigma:g}",
                "|u - y|": f"{row.residual:.3f}",
                "clean": f"{100 * row.natural:.1f} %",
                "attacked": f"{100 * row.robust:.1f} %",
                f"gained over sigma = {study.rows[0].sigma:g}": f"{100 * row.gain:+.1f}{error}",
            }
        )
    count = len(study.rows[0].robusts)
    return Table(
        rows,
        title=f"two {study.data}, {study.layers} layers, attacks of {study.epsilon:g}: "
        f"{'one training' if count == 1 else f'{count} trainings'} a sigma",
    )


def agreement_table(study: ClassifierStudy) -> Table:
    """Return how far the first network of each sigma is from its equation."""
    return Table(
        [
            {
                "sigma": f"{row.sigma:g}",
                "net - equation, rms": f"{row.agreement.rms:.3f}",
                "largest": f"{row.agreement.largest:.3f}",
                "finer steps, rms": f"{row.agreement.refined_rms:.3f}",
                "Monte Carlo": f"{row.agreement.monte_carlo:.3f}",
                "steepest": f"{row.agreement.steepest:.2f}",
                "beyond f": f"{100 * row.agreement.overshoot:.1f} %",
                "attacked": f"{100 * row.robusts[0]:.1f} %",
                "worst case": f"{100 * row.agreement.exhaustive:.1f} %",
            }
            for row in study.rows
        ],
        title=f"two {study.data}, {study.layers} layers: the network and its equation",
    )


def characteristic_table(study: CharacteristicStudy) -> Table:
    """Return the error of a residual network against the transport equation."""
    return Table(
        [
            {"layers": str(layers), "error of u(x, 0)": f"{error:.4f}"}
            for layers, error in zip(study.layers, study.errors, strict=True)
        ],
        title=f"a residual network against the transport equation: order {study.order:.3f}",
        caption=f"Training (Eq. 9) takes the mean of |u(x_i, 0) - y_i| from "
        f"{study.residuals[0]:.3f} to {study.residuals[-1]:.3f}; the largest left is "
        f"{study.largest_residual:.3f}.",
    )
