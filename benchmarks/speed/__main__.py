"""``python -m speed`` in the folder benchmarks; ``make bench`` installs the rivals first."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from enresnet import evaluation
from enresnet.cli.output import check_outputs, write_json
from enresnet.common import checks
from enresnet.common.allocator import keep_memory
from enresnet.common.files import atomic_write
from enresnet.common.plotting import as_png, blank, plain
from enresnet.common.tables import as_markdown, print_table
from speed import BENCHMARKS
from speed.foreign import FOREIGN
from speed.foreign import table as foreign_table
from speed.steps import TINY, Setting
from speed.turns import MissingError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return the exit code, 2 for bad input."""
    keep_memory()  # as the command line does
    try:
        return tyro.cli(
            measure,
            prog="python -m speed",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except (ValueError, TypeError, OSError) as error:
        print(f"speed: {error}", file=sys.stderr)
        return 2


def measure(
    *,
    only: tuple[str, ...] = (),
    images: int | None = None,
    repeats: int | None = None,
    tiny: bool = False,
    json: Path | None = None,
    picture: Path | None = None,
) -> int:
    """Measure speed side by side with a plain loop, the hardware's limit and other libraries.

    Everything takes about an hour on two cores; exit code 1 means that a figure missed its bound.

    Args:
        only: Keys of single benchmarks, as in the output.
        images: Test images that attacks are compared on; 1,000 without a word.
        repeats: Turns of each comparison; 7 without a word, half as many where they take long.
        tiny: Only see that everything runs; the figures mean nothing.
        json: Also write the figures to this file. With only, the other figures that it holds stay,
            if they are of this machine.
        picture: Also draw the growth to this PNG file.
    """
    check_outputs(json, picture=picture)
    for key in only:
        checks.choice("only", key, BENCHMARKS)
    if picture is not None and only and "growth" not in only:
        raise ValueError("--picture draws the growth: add growth to --only")
    asked = {"images": images, "repeats": repeats}
    sizes = {n: checks.integer(n, value, low=1) for n, value in asked.items() if value is not None}
    if tiny and sizes:
        raise ValueError(f"--tiny has its own sizes: leave out --{' and --'.join(sizes)}")
    setting = TINY if tiny else Setting(**sizes)
    results = _known(json) if only else {"machine": evaluation.machine()}
    measured = []
    for key in only or BENCHMARKS:
        try:
            result = BENCHMARKS[key](setting)
        except MissingError as error:
            print(f"{key}: skipped, {error}")
            continue
        _put(results, key, result)
        measured.append(key)
        _tell(key, result)
        write_json(json, results)  # as they come: the rest takes long
        if picture is not None and key == "growth":
            draw_growth(result["tables"], picture)
    write_json(json, results)
    if any(key in FOREIGN for key in measured):
        print(as_markdown(foreign_table(results["foreign"])))
    missed = [key for key in measured if not _holds(_get(results, key))]
    if missed and not tiny:
        print("missed their bounds:", ", ".join(missed))
        return 1
    return 0


def _known(path: Path | None) -> dict[str, Any]:
    """Return the figures that a file holds, if there is one; they must be of this machine."""
    machine = evaluation.machine()
    if path is None or not path.exists():
        return {"machine": machine}
    known: dict[str, Any] = json_module.loads(path.read_text())
    if known.get("machine") != machine:
        raise ValueError(f"--json: {path} holds figures of another machine; name another file")
    return known


def _tell(key: str, result: dict[str, Any]) -> None:
    low, high = result["spread"]
    bound = "".join(
        f", {name.replace('_', ' ')} {result[name]:g}"
        for name in ("at_least", "at_most")
        if name in result
    )
    print(f"{key}: {result['median']:.2f} ({low:.2f} to {high:.2f}){bound}", flush=True)
    print(f"  {result['what']}")
    hidden = {"median", "spread", "repeats", "what", "at_least", "at_most", "tables", "best_ways"}
    for name, value in result.items():
        if name not in hidden:
            print(f"  {name.replace('_', ' ')}: {_shown(value)}")
    for name, rows in result.get("tables", {}).items():
        print_table([_row(name, row) for row in rows])


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {100 * share:.0f} %" for name, share in value.items())
    return f"{value:.2f}" if isinstance(value, float) else value


def _row(name: str, row: dict[str, float]) -> dict[str, str]:
    return {
        name: f"{row['size']}",
        "ms a step": f"{1000 * row['seconds']:.0f}",
        "of linear": f"{row['steepness']:.2f}" if "steepness" in row else "",
        "MB": f"{row['megabytes']:.0f}",
        "of linear ": f"{row['memory_steepness']:.2f}" if "memory_steepness" in row else "",
    }


def draw_growth(tables: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw time and memory against members, batch and depth, with a straight line to compare."""
    figure = blank(9.0, 3.2)
    panels = figure.subplots(1, len(tables))
    for axes, (name, rows) in zip(panels, tables.items(), strict=True):
        sizes = [row["size"] for row in rows]
        for key, colour, label in (
            ("seconds", "#c44e1c", "time"),
            ("megabytes", "#1f5fa8", "memory"),
        ):
            values = [row[key] / rows[0][key] for row in rows]
            axes.plot(sizes, values, color=colour, marker="o", ms=4, label=label)
        axes.plot(sizes, [size / sizes[0] for size in sizes], color="#999", ls=":", label="linear")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel(name)
        plain(axes)
    panels[0].set_ylabel("times that of the first")
    panels[0].legend(frameon=False, fontsize=8)
    with atomic_write(path) as temporary:
        temporary.write_bytes(as_png(figure))


def _holds(result: dict[str, Any]) -> bool:
    median = result["median"]
    return result.get("at_least", median) <= median <= result.get("at_most", median) and all(
        value for name, value in result.items() if name.endswith("_holds")
    )


def _put(results: dict[str, Any], key: str, value: dict[str, Any]) -> None:
    *above, last = key.split(".")
    for name in above:
        results = results.setdefault(name, {})
    results[last] = value


def _get(results: dict[str, Any], key: str) -> Any:
    for name in key.split("."):
        results = results[name]
    return results


if __name__ == "__main__":
    sys.exit(main())
