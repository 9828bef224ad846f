"""The tables of the reproduction page, from the files in ``results``.

    python docs/_ext/results_tables.py

prints them as Markdown, with ``--write`` to ``results/README.md``; the page takes the same when it
is built. A number is shown only if a run folder holds it, and beside the settings of that run.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import enresnet
from enresnet.common.files import atomic_write
from enresnet.common.tables import as_markdown
from enresnet.common.text import brief
from enresnet.evaluation.results_folder import EVALUATION
from enresnet.models import count_parameters, is_noisy
from enresnet.paper import contents_of, outputs
from enresnet.report import find_runs
from enresnet.report.contents import Table, Verdict
from enresnet.training import Run

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
NOT_RUN = "not run"
LEFT_OUT = r"\S+ is left out: .*? PGD-2\."
FAST = RESULTS / "cifar10" / "fast"
USUAL = "best"  # the section of evaluation.json with the noise of the training
QUIET, NOISY = f"{USUAL}, with noise 0", f"{USUAL}, with noise 0.1"

# What noise does in training and in testing, each apart: (words, one side, the other side); a side
# is a network and a section.
NOISE_APART = (
    ("both", ("en1_resnet20", USUAL), ("resnet20", USUAL)),
    ("in training", ("en1_resnet20", QUIET), ("resnet20", USUAL)),
    ("in testing, after training with it", ("en1_resnet20", USUAL), ("en1_resnet20", QUIET)),
    ("in testing, after training without it", ("resnet20", NOISY), ("resnet20", USUAL)),
)
ATTACKS = (
    "clean",
    "fgsm",
    "ifgsm20",
    "cw",
    "cw_kappa0.5",
    "cw_pixel",
    "strongest",
    "autoattack_rand",
)
README = RESULTS / "README.md"
TOP = """# What was measured

`python docs/_ext/results_tables.py --write` makes this page from the run folders beside it. Each
folder holds a network, how it was trained (`config.yaml`, `metrics.csv`, `environment.json` with
the commit) and what was measured of it (`evaluation.json`; `scores.safetensors`, image by image).
`python benchmarks/evidence.py` lists what is to be run, and runs what is not here yet. How many
seeds decide a claim was fixed before the first was trained: five pairs for the networks of one
member, three for those of two. A verdict over fewer pairs may change when the others are there.
The networks in [cifar10](cifar10/README.md) itself are of an earlier recipe, one seed each; that
page tells why one of its verdicts was an artefact.
"""


def readme() -> str:
    """Return ``results/README.md``."""
    return f"{TOP}\n{reproduction()}\n"


def reproduction() -> str:
    """Return all tables as Markdown."""
    contents = contents_of(find_runs([RESULTS]).runs)
    parts = [claimed(contents.verdicts), *compared(contents.verdicts), *noise_apart()]
    parts += [evaluated(folder) for folder in groups()]
    if (study := RESULTS / "study" / "study.json").is_file():
        parts.append(studied(study))
    parts.append(not_run(contents.tables))
    return "\n\n".join(parts).replace(f"{ROOT}/", "")


def groups() -> list[Path]:
    """Return the folders in ``results`` that hold evaluated runs."""
    return sorted({path.parent.parent for path in RESULTS.rglob("evaluation.json")})


def claimed(verdicts: Sequence[Verdict]) -> str:
    """Return the claims of the paper that runs were measured for, with their verdicts."""
    told = [verdict for verdict in verdicts if verdict.effect is not None]
    rows = [
        {name: words for name, words in row.items() if name != "note"}
        for row in outputs.claim_rows(told)
    ]
    counts = outputs.claim_counts(verdicts)
    about = f"The claims of the paper: {counts}. {outputs.CLAIMS_CAPTION}"
    found = " ".join(dict.fromkeys(re.findall(LEFT_OUT, " ".join(v.note for v in verdicts))))
    hindered = [v for v in verdicts if v.decision == "not comparable"]
    listed = "".join(f"- {v.statement} {v.note}\n" for v in hindered)
    unknown = f"\n\nNot comparable, and why:\n\n{listed}" if hindered else ""
    return (
        "\n\n".join(filter(None, ["## Claims", as_markdown(rows), about, found])) + unknown.rstrip()
    )


def compared(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the comparison behind each claim that several seeds speak of, with its command."""
    told = [verdict for verdict in verdicts if verdict.effect is not None]
    decided = [verdict.runs for verdict in told if len(verdict.seeds) > 1]
    parts = []
    for runs in dict.fromkeys(decided):
        sides: dict[str, list[Path]] = {}
        for folder in runs:
            sides.setdefault(re.sub(r"-seed\d+$", "", folder.name), []).append(folder)
        if len(sides) != 2 or min(len(side) for side in sides.values()) < 2:
            continue  # a claim on one network alone, on blind attacks, or on one seed of a side
        (first, ours), (second, theirs) = sides.items()
        found = enresnet.compare(ours, theirs)
        about = " ".join([found.caption, *found.remarks])
        parts.append(
            f"## {first} less {second}\n\n```\n{_command(ours, theirs)}\n```\n\n"
            f"{as_markdown(found.table())}\n\n{about}"
        )
    return parts


def noise_apart() -> list[str]:
    """Return what noise is worth in training and in testing, each apart, with the commands."""
    rows: list[dict[str, str]] = []
    commands = []
    for words, (first, section), (second, other) in NOISE_APART:
        sides = _runs_with(first, section), _runs_with(second, other)
        pairs = [(sides[0][seed], sides[1][seed]) for seed in sides[0] if seed in sides[1]]
        known: set[str] = set()
        for some in (pairs, pairs[:1]):  # what all pairs have, then what only the first has
            if not some:
                continue
            ours, theirs = ([*side] for side in zip(*some, strict=True))
            found = enresnet.compare(ours, theirs, section=section, against_section=other)
            rows_of = zip(found.compared, found.table(), strict=True)
            new = {name: row for name, row in rows_of if name not in known}
            known |= set(new)
            if new:
                commands.append(_command(ours, theirs, section, other))
                rows += [{"noise": words} | _with_pairs(row, len(some)) for row in new.values()]
    if not rows:
        return []
    about = (
        "What single predictions gain by the noise of the residual mappings (a = 0.1), in points, "
        "with 95 % intervals: over pairs of seeds and images, or with one seed over images alone, "
        "which says something of these weights only."
    )
    listed = "\n".join(commands)
    return [
        f"## Noise in training and in testing, apart\n\n```\n{listed}\n```\n\n"
        f"{as_markdown(rows)}\n\n{about}"
    ]


def _runs_with(network: str, section: str) -> dict[int, Path]:
    """Return the runs of a network by today's recipe that have a section, by their seed."""
    folders = [path.parent for path in FAST.glob(f"{network}-seed*/{EVALUATION}")]
    with_it = [one for one in folders if section in json.loads((one / EVALUATION).read_text())]
    runs = [run for run in map(Run.open, with_it) if not run.collapse]
    return {run.config.seed: run.folder for run in sorted(runs, key=lambda run: run.config.seed)}


def _with_pairs(row: dict[str, str], pairs: int) -> dict[str, str]:
    """Return a row with its number of pairs; over one pair nothing is decided."""
    wanted = ("images", "difference", "p", "verdict", "images compared")
    found = {name: row[name] for name in wanted} | {"pairs of seeds": str(pairs)}
    return found | ({"p": "", "verdict": "undecided"} if pairs == 1 else {})


def _command(
    first: Sequence[Path], second: Sequence[Path], section: str = USUAL, other: str = USUAL
) -> str:
    """Return the command that compares two sides."""
    sides = (first, second)
    ours, theirs = (" ".join(str(one.relative_to(ROOT)) for one in side) for side in sides)
    sections = "" if section == other == USUAL else f' --section "{section}"'
    sections += "" if section == other else f' --against-section "{other}"'
    return f"enresnet compare {ours} \\\n    --against {theirs}{sections}"


def evaluated(folder: Path) -> str:
    """Return a table with a row for each evaluated run of a folder, and what is so for all.

    The hours are those of the training, validation included.
    """
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
        "number of test images is in the heading. All but C&W may change a pixel by epsilon. "
        "Passes are forward and backward passes over the training images. Core-hours are the time "
        "that training took, times its threads; the cores did other work beside it."
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
    run = Run.open(folder)
    recipe = run.config.recipe
    return {
        "objective": recipe.objective,
        "epochs": str(recipe.epochs),
        "passes": f"{_study().total_passes(recipe):g}",
        "seed": str(run.config.seed),
        "epsilon": brief(recipe.epsilon),
        "core-hours": _core_hours(run),
    }


def _core_hours(run: Run) -> str:
    """Return the time that a training took, times its threads; not known without its machine."""
    path = run.folder / "environment.json"
    if not path.is_file():
        return "not known"
    environment = json.loads(path.read_text())
    seconds = sum(row["seconds"] for row in run.metrics())
    return f"{seconds * max(one['threads'] for one in environment) / 3600:.2g}"


def _accuracies(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the accuracies of a run's best network and their numbers of images, by attack."""
    shown = {}
    for row in enresnet.load_results(folder, section="best").rows():
        value, low, high = (f"{100 * row[name]:.1f}" for name in ("accuracy", "low", "high"))
        shown[row["images"]] = f"{value} ({low}-{high})", row["number"]
    return shown


def not_run(tables: Sequence[Table]) -> str:
    """Return the rows of the paper's tables that no run here speaks of."""
    rows = []
    for table in tables:
        empty = [one.title for one in table.rows if all(c.measured is None for c in one.cells)]
        if empty:
            own = f"{len(empty)} of {len(table.rows)}"
            rows.append(
                {
                    "table": table.key,
                    "what it shows": f"{table.title}, {table.data}",
                    "rows not run": f"{own}: {'; '.join(empty)}",
                }
            )
    return f"## Not run\n\nRows of the paper's tables without a run here.\n\n{as_markdown(rows)}"


def studied(path: Path) -> str:
    """Return the table of the study of short recipes, on validation images."""
    rows = _study().table(json.loads(path.read_text()))
    about = (
        "Accuracy in % on 5,000 validation images of CIFAR-10; test images were not used. *Merit* "
        "is the mean of both accuracies, *sd* its standard deviation over seeds, *gain* what it is "
        "above that of the reference with the same seeds, *passes* are passes over the data. With "
        "one seed per row, differences below about a point mean nothing."
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
    if sys.argv[1:] == ["--write"]:
        with atomic_write(README) as temporary:
            temporary.write_text(readme())
    else:
        print(reproduction())
