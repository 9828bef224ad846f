"""Figures of accuracies: quickstart, convergence, transfer, diagnosis."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from enresnet.common.plotting import COLOURS, blank, plain
from enresnet.common.text import brief, for_picture
from enresnet.evaluation import Diagnosis, Evaluation
from enresnet.evaluation.masking.diagnosis import Point
from enresnet.training import Epoch

RIGHT, WRONG = "#1a7f37", "#b42318"


def accuracy_bars(rows: Sequence[dict[str, Any]], networks: Sequence[str]) -> Figure:
    """Return a bar chart of two networks' accuracies, side by side with their 95 % intervals.

    Args:
        rows: One group of bars each: ``"images"``, the label below it, and for each network its
            ``"accuracy"`` and ``"interval"`` in [0, 1]; :meth:`Quickstart.rows` returns them.
        networks: The names of the two networks.

    Returns:
        The figure.

    Example::

        from enresnet.report import NETWORKS, accuracy_bars

        bar = {"accuracy": 0.6, "interval": (0.55, 0.65)}
        rows = [{"images": "clean images", "resnet8": bar, "en3_resnet8": bar}]
        accuracy_bars(rows, NETWORKS).savefig("accuracies.png")
    """
    figure = blank(9.0, 3.6)
    axes = plain(figure.subplots())
    for index, network in enumerate(networks):
        places = [row + (index - 0.5) * 0.36 for row in range(len(rows))]
        heights = [100 * row[network]["accuracy"] for row in rows]
        bounds = [[100 * bound for bound in row[network]["interval"]] for row in rows]
        below = [max(0.0, height - low) for height, (low, _) in zip(heights, bounds, strict=True)]
        above = [max(0.0, high - height) for height, (_, high) in zip(heights, bounds, strict=True)]
        axes.bar(places, heights, 0.34, color=COLOURS[index], label=network)
        axes.errorbar(places, heights, [below, above], fmt="none", ecolor="#222", capsize=2, lw=1)
        for place, height, top in zip(places, heights, above, strict=True):
            axes.text(place, height + top + 1.2, f"{height:.0f}", ha="center", fontsize=8)
    axes.set_xticks(range(len(rows)), [row["images"].replace(", ", "\n") for row in rows])
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylabel("accuracy, %")
    axes.legend(frameon=False, ncols=2, loc="upper left", bbox_to_anchor=(0, 1.13))
    return figure


def training_curves(runs: dict[str, list[list[Epoch]]]) -> Figure:
    """Draw validation accuracy against the epoch: a thin line for each seed, a thick mean."""
    figure = blank(9.0, 3.2)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    panels: list[tuple[Axes, str, str]] = [
        (left, "validation_natural", "clean validation images"),
        (right, "validation_robust", "validation images under PGD"),
    ]
    for axes, column, title in panels:
        for colour, (network, seeds) in zip(COLOURS, runs.items(), strict=True):
            curves = [[100 * getattr(epoch, column) for epoch in epochs] for epochs in seeds]
            numbers = [epoch.epoch for epoch in seeds[0]]
            for curve in curves:
                axes.plot(numbers, curve, color=colour, lw=0.8, alpha=0.4)
            mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
            axes.plot(numbers, mean, color=colour, lw=2.2, label=network)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.set_xticks(numbers)
        plain(axes)
    left.set_ylabel("accuracy, %")
    left.legend(frameon=False, loc="lower right")
    return figure


def image_grid(
    columns: Sequence[tuple[str, Tensor, dict[str, Tensor] | None]],
    labels: Sequence[str],
    classes: Sequence[str],
) -> Figure:
    """Draw images, one in a row; under those with predictions, each network's prediction.

    A column is a title, images N x C x H x W (changes in [-1, 1] where there are no predictions),
    and each network's predicted classes.
    """
    count = len(labels)
    figure = blank(2.05 * len(columns), 1.62 * count)
    grid = figure.subplots(count, len(columns), squeeze=False)
    for across, (title, images, answers) in enumerate(columns):
        for down in range(count):
            axes = grid[down][across]
            _show(axes, images[down], change=answers is None)
            if down == 0:
                axes.set_title(title, fontsize=9)
            if across == 0:
                label = for_picture(f"a {labels[down]}")
                axes.set_ylabel(label, fontsize=10, rotation=0, labelpad=14)
            if answers is not None:
                for line, (network, said) in enumerate(answers.items()):
                    word = classes[int(said[down])]
                    axes.text(
                        0.5,
                        -0.05 - 0.15 * line,
                        for_picture(f"{network}: {word}"),
                        transform=axes.transAxes,
                        ha="center",
                        va="top",
                        fontsize=7.5,
                        color=RIGHT if word == labels[down] else WRONG,
                    )
    return figure


def _show(axes: Axes, image: Tensor, *, change: bool) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    pixels = image.permute(1, 2, 0).squeeze(-1)
    if change:
        pixels = pixels if pixels.ndim == 2 else pixels.mean(dim=-1)
        bound = max(float(pixels.abs().max()), 1e-6)
        axes.imshow(pixels.numpy(), cmap="RdBu_r", vmin=-bound, vmax=bound)
    else:
        axes.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1)


def convergence_figure(result: Evaluation, title: str) -> Figure:
    """Return a figure of both accuracies against the number of draws of the noise.

    One panel is for single predictions, one for the mean of the draws. Bands are the 95 % intervals
    with all draws.

    Args:
        result: The evaluation of a noisy network, over several draws.
        title: The title, such as the name of the network.

    Returns:
        The figure.

    Example::

        from enresnet.report import convergence_figure

        digits = enresnet.load_data("digits").test.first(20)
        noisy = enresnet.create_model("en1_resnet8", in_channels=1)
        result = enresnet.evaluate(noisy, digits, ["fgsm"], draws=4)
        convergence_figure(result, "en1_resnet8").savefig("draws.png")
    """
    figure = blank(9.0, 3.6)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    panels = ((left, "accuracy", "single prediction"), (right, "averaged", "mean of the draws"))
    names = {"clean": result.natural, **result.robust}
    for axes, key, heading in panels:
        for index, (name, value) in enumerate(names.items()):
            points = value.convergence()
            numbers = [point["draws"] for point in points]
            line = [100 * point[key] for point in points]
            colour = f"C{index}"
            axes.plot(numbers, line, color=colour, marker="o", ms=3, lw=1.4, label=name)
            interval = value.interval if key == "accuracy" else value.averaged_interval
            axes.fill_between(
                [numbers[0], numbers[-1] + (len(numbers) == 1)],
                *(100 * bound for bound in interval),
                color=colour,
                alpha=0.12,
                lw=0,
            )
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel("draws of the noise")
        plain(axes)
    left.set_ylabel("accuracy, %")
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    heading = f"{for_picture(title)}: bands are the 95 % intervals with all draws"
    figure.suptitle(heading, fontsize=10)
    return figure


def transfer_heat_map(
    accuracies: Sequence[Sequence[float]],
    sources: Sequence[str],
    targets: Sequence[str],
    title: str,
) -> Figure:
    """Return a heat map of each target's accuracy on the images made against each source.

    Args:
        accuracies: In [0, 1]; a row for each source, a column for each target.
        sources: The names of the models that were attacked.
        targets: The names of the models that classify the attacked images.
        title: The title.

    Returns:
        The figure. Where source and target have one name, the number is bold.

    Example::

        from enresnet.report import transfer_heat_map

        names = ["resnet20", "en5_resnet20"]
        figure = transfer_heat_map([[0.4, 0.6], [0.5, 0.5]], names, names, "IFGSM-20 on CIFAR-10")
    """
    rows, columns = ([for_picture(_folded(name)) for name in names] for names in (sources, targets))
    longest = max(len(line) for name in (*rows, *columns) for line in name.splitlines())
    figure = blank(
        2.0 + 0.05 * longest + 1.1 * len(targets), 1.5 + 0.04 * longest + 0.7 * len(sources)
    )
    axes = figure.subplots()
    values = [[100 * value for value in row] for row in accuracies]
    image = axes.imshow(values, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            own = sources[row] == targets[column]
            axes.text(
                column,
                row,
                f"{value:.1f}",
                ha="center",
                va="center",
                color="white" if value < 55 else "black",
                fontweight="bold" if own else "normal",
            )
    axes.set_xticks(range(len(targets)), columns, rotation=20, ha="right")
    axes.set_yticks(range(len(sources)), rows)
    axes.set_xlabel("classified by")
    axes.set_ylabel("made against")
    axes.set_title(for_picture(textwrap.fill(title, 64)), fontsize=10)
    figure.colorbar(image, ax=axes, label="accuracy, %")
    return figure


def _folded(name: str, width: int = 30) -> str:
    """Return a name, which may be a long path, in short lines."""
    return "\n".join(name[start : start + width] for start in range(0, len(name), width))


def diagnosis_figure(result: Diagnosis, title: str) -> Figure:
    """Return a figure of accuracy against the radius and against the steps of the attack.

    Bands are the 95 % intervals.

    Args:
        result: What :func:`diagnose` found.
        title: The title, such as the name of the network.

    Returns:
        The figure.

    Example::

        from enresnet.report import diagnosis_figure

        digits = enresnet.load_data("digits").test.first(8)
        small = enresnet.create_model("resnet8", in_channels=1)
        result = enresnet.diagnose(small, digits, epsilon=0.1)
        diagnosis_figure(result, "resnet8").savefig("diagnosis.png")
    """
    figure = blank(9.0, 3.6)
    left, right = figure.subplots(1, 2, sharey=True)
    panels: list[tuple[Axes, Sequence[Point], str]] = [
        (left, result.against_epsilon, "epsilon (IFGSM-20)"),
        (right, result.against_steps, f"steps of IFGSM at epsilon = {brief(result.epsilon)}"),
    ]
    for axes, points, label in panels:
        places = [point.at for point in points]
        axes.plot(places, [100 * p.accuracy for p in points], color=COLOURS[1], marker="o", ms=4)
        low, high = ([100 * getattr(p, side) for p in points] for side in ("low", "high"))
        axes.fill_between(places, low, high, color=COLOURS[1], alpha=0.15, lw=0)
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.set_ylim(0, 100)
        plain(axes)
    left.axvline(result.epsilon, color="#888", lw=0.8, ls=":")
    left.set_ylabel("accuracy, %")
    figure.suptitle(f"{for_picture(title)}: with 95 % intervals", fontsize=10)
    return figure
