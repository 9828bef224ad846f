"""The tables of the reproduction page, from the files in ``results``.

    python docs/_ext/results_tables.py

prints them as Markdown; the page takes the same when it is built. A number is shown only if a run
folder holds it, and beside the settings of that run.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import enresnet
from enresnet.common.tables import as_markdown
from enresnet.common.text import brief
from enresnet.models import count_parameters, is_noisy
from enresnet.paper import contents_of, outputs
from enresnet.report import find_runs
from enresnet.training import Run

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
NOT_RUN = "not run"
ATTACKS = ("clean", "fgsm", "ifgsm20", "cw", "cw_pixel", "strongest", "autoattack_rand")


def reproduction() -> str:
    """Return all tables as Markdown."""
    parts = [claimed(), *(evaluated(folder) for folder in groups())]
    if (study := RESULTS / "study" / "study.json").is_file():
        parts.append(studied(study))
    return "\n\n".join(parts)


def groups() -> list[Path]:
    """Return the folders in ``results`` that hold evaluated runs."""
    return sorted({path.parent.parent for path in RESULTS.rglob("evaluation.json")})


def claimed() -> str:
    """Return the claims of the paper that runs were measured for, with their verdicts."""
    contents = contents_of(find_runs([RESULTS]).runs)
    told = [verdict for verdict in contents.verdicts if verdict.effect is not None]
    rows = [
        {name: words for name, words in row.items() if name != "note"}
        for row in outputs.claim_rows(told)
    ]
    counts = outputs.claim_counts(contents.verdicts)
    about = f"The claims of the paper: {counts}. {outputs.CLAIMS_CAPTION}"
    return f"## Claims\n\n{as_markdown(rows)}\n\n{about}"


def evaluated(folder: Path) -> str:
    """Return a table with a row for each evaluated run of a folder, and what is so for all."""
    runs = [path.parent for path in sorted(folder.glob("*/evaluation.json"), key=_size)]
    settings = [_settings(run) for run in runs]
    accuracies = [_accuracies(run) for run in runs]
    common = [name for name in settings[0] if len({one[name] for one in settings}) == 1]
    attacks = [name for name in ATTACKS if any(name in one for one in accuracies)]
    rows = [
        {"run": run.name}
        | {name: value for name, value in own.items() if name not in common}
        | {_heading(name, accuracies): found.get(name, (NOT_RUN,))[0] for name in attacks}
        for run, own, found in zip(runs, settings, accuracies, strict=True)
    ]
    shared = ", ".join(f"{name} {settings[0][name]}" for name in common)
    about = (
        f"All runs: {shared}. Accuracy of a single prediction in %, with its 95 % interval; the "
        "number of test images is in the heading. All but C&W may change a pixel by epsilon."
    )
    return f"## Runs in {folder.relative_to(ROOT)}\n\n{as_markdown(rows)}\n\n{about}"


def _heading(attack: str, accuracies: list[dict[str, tuple[str, int]]]) -> str:
    numbers = sorted({one[attack][1] for one in accuracies if attack in one})
    return f"{attack}, {' or '.join(f'{number:,}' for number in numbers)} images"


def _size(path: Path) -> tuple[int, bool, str]:
    """Return what orders runs: small before large, without noise before with it."""
    model = Run.open(path.parent).config.model
    return count_parameters(model), is_noisy(model), path.parent.name


def _settings(folder: Path) -> dict[str, str]:
    config = Run.open(folder).config
    recipe = config.recipe
    return {
        "objective": recipe.objective,
        "epochs": str(recipe.epochs),
        "seed": str(config.seed),
        "epsilon": brief(recipe.epsilon),
    }


def _accuracies(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the accuracies of a run's best network and their numbers of images, by attack."""
    shown = {}
    for row in enresnet.load_results(folder, section="best").rows():
        value, low, high = (f"{100 * row[name]:.1f}" for name in ("accuracy", "low", "high"))
        shown[row["images"]] = f"{value} ({low}-{high})", row["number"]
    return shown


def studied(path: Path) -> str:
    """Return the table of the study of short recipes, on validation images."""
    rows = _study().table(json.loads(path.read_text()))
    about = (
        "Accuracy in % on 5,000 validation images of CIFAR-10; test images were not used. *Merit* "
        "is the mean of both accuracies, *gain* that over the reference, *passes* are passes over "
        "the data. With one seed per row, differences below about a point mean nothing."
    )
    return f"## What settings of a short training are worth\n\n{as_markdown(rows)}\n\n{about}"


def _study() -> ModuleType:
    """Return ``benchmarks/study.py``, which reads its own file."""
    spec = importlib.util.spec_from_file_location("study", ROOT / "benchmarks" / "study.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    print(reproduction())
