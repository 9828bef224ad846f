r"""What the settings of a short adversarial training are worth, on validation images alone.

    BASE="--model resnet20 --data cifar10 --recipe fast --epochs 15 --label-smoothing 0 \
        --epsilon-growth 0 --low-resolution 0 --shift none"
    enresnet train $BASE --seed 1 --out STUDY/base-1
    enresnet train $BASE --shift 0 --seed 1 --out STUDY/mirror-1
    enresnet train --model resnet20 --data cifar10 --recipe fast --seed 1 --out STUDY/fast-1
    python benchmarks/study.py STUDY [--kept results/study/study.json]

Every folder in STUDY named ARM-SEED is a run, made by `enresnet train` with the options of the arm;
`base-SEED` is the reference, 15 epochs of N-FGSM, which the recipe `fast` once was. A finished run
is read once: its accuracies on all 5,000 validation images (natural, and under PGD-10), what its
recipe has that the reference has not, the passes over the data (a forward and a backward pass each)
and the seconds. All that was ever read is kept in a JSON file and printed as a table; the figure of
merit is the mean of both accuracies, and *sd* its standard deviation over seeds, from three on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import tyro

from enresnet.common.files import atomic_write
from enresnet.common.tables import as_markdown
from enresnet.training import Recipe, Run
from enresnet.training.objectives import OBJECTIVES

BASE = "base"
SILENT = {"validation_images", "validate_from"}  # these change nothing of the network


def main(
    folder: tyro.conf.Positional[Path | None] = None,
    *,
    kept: Path = Path("results/study/study.json"),
) -> None:
    """Read what is finished in ``folder``, and print all that is known."""
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    for path in sorted(folder.iterdir()) if folder is not None else ():
        if path.name not in known and (path / "config.yaml").is_file():
            run = Run.open(path)
            if run.finished:
                known[path.name] = read(run)
            else:
                print(f"{path.name}: {len(run.metrics())} of {run.config.recipe.epochs} epochs")
    if folder is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(kept) as temporary:
            temporary.write_text(json.dumps(known, indent=2) + "\n")
    rows = table(known)
    if not rows:
        sys.exit("nothing is finished yet")
    print(as_markdown(rows))


def read(run: Run) -> dict[str, Any]:
    """Return what there is to know of a finished run."""
    recipe, rows, kept = run.config.recipe, run.metrics(), run.kept_epoch()
    assert kept is not None
    if len(rows) != kept["epoch"]:
        raise SystemExit(f"{run.folder}: the last epoch was not kept; it is no run of this study")
    if run.collapse:
        raise SystemExit(
            f"{run.folder}: {run.collapse}: it was not trained by its recipe to the end, and is no "
            "run of this study"
        )
    environment = run.folder / "environment.json"
    return {
        "model": run.config.model,
        "seed": run.config.seed,
        "recipe": recipe.to_dict(),
        "natural": kept["validation_natural"],
        "robust": kept["validation_robust"],
        "passes": total_passes(recipe),
        "seconds": sum(row["seconds"] for row in rows),
        "commit": json.loads(environment.read_text())[0]["commit"]
        if environment.is_file()
        else None,
    }


def total_passes(recipe: Recipe) -> float:
    """Return the forward and backward passes over the data that a training takes."""
    return sum(passes(recipe, epoch) for epoch in range(recipe.epochs))


def passes(recipe: Recipe, epoch: int) -> float:
    """Return the passes over the data that an epoch takes, in units of whole images."""
    done = epoch / recipe.epochs
    one_step = OBJECTIVES[recipe.objective].one_step
    steps = 0 if recipe.objective == "natural" else 1 if one_step else recipe.steps
    if recipe.final_steps and done >= recipe.final_from:
        steps = recipe.final_steps
    losses = OBJECTIVES[recipe.objective].passes
    return (steps + losses) * (0.25 if done < recipe.low_resolution else 1)


def table(known: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row an arm and network, over its seeds, less the same seeds of the reference."""
    rows = []
    arms = sorted({(name.rpartition("-")[0], value["model"]) for name, value in known.items()})
    for arm, model in sorted(arms, key=lambda pair: (pair[1], pair[0] != BASE, pair[0])):
        runs = {
            value["seed"]: value
            for name, value in known.items()
            if (name.rpartition("-")[0], value["model"]) == (arm, model)
        }
        reference = {
            value["seed"]: value
            for name, value in known.items()
            if name.rpartition("-")[0] == BASE and value["model"] == model
        }
        common = [seed for seed in runs if seed in reference]
        gains = {
            key: 100 * mean(runs[s][key] - reference[s][key] for s in common)
            for key in ("natural", "robust")
            if common
        }
        first = next(iter(runs.values()))
        merits = [50 * (run["natural"] + run["robust"]) for run in runs.values()]
        rows.append(
            {
                "network": model,
                "arm": arm,
                "recipe": _changes(first["recipe"], known),
                "seeds": " ".join(map(str, sorted(runs))),
                "natural": f"{100 * mean(run['natural'] for run in runs.values()):.1f}",
                "PGD-10": f"{100 * mean(run['robust'] for run in runs.values()):.1f}",
                "merit": f"{mean(merits):.2f}",
                "sd": f"{stdev(merits):.2f}" if len(merits) > 2 else "",
                "gain": "" if arm == BASE or not gains else f"{mean(gains.values()):+.2f}",
                "passes": f"{first['passes']:g}",
                "minutes": f"{mean(run['seconds'] for run in runs.values()) / 60:.0f}",
            }
        )
    return rows


def _changes(recipe: dict[str, Any], known: dict[str, Any]) -> str:
    """Return what a recipe has that the reference has not."""
    bases = [value["recipe"] for name, value in known.items() if name.startswith(f"{BASE}-")]
    if not bases:
        return ""
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in recipe.items()
        if name not in SILENT and value != bases[0].get(name, Recipe().to_dict()[name])
    )


if __name__ == "__main__":
    tyro.cli(main)
