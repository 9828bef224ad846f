"""Put the network of an evaluated run into the package, with its card.

    python benchmarks/keep.py RUN results/cifar10/fast/en2_resnet20-0   # weights in half precision
    enresnet evaluate results/cifar10/fast/en2_resnet20-0 --attacks fgsm ifgsm20
    python benchmarks/pack.py results/cifar10/fast/en2_resnet20-0 cifar10-fast

The network becomes `en2_resnet20@cifar10-fast`. What its card says was measured on the very weights
that are shipped: a run whose evaluation is of other weights is refused.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import tyro

from enresnet.common.files import atomic_write
from enresnet.evaluation.model_identity import digest_of
from enresnet.models import ModelCard
from enresnet.models.pretrained import FOLDER, Measured
from enresnet.report.model_card import model_card
from enresnet.training import Recipe, Run, load_recipe

sys.path.insert(0, str(Path(__file__).parent))

from study import total_passes


def main(
    run: tyro.conf.Positional[Path], trained: tyro.conf.Positional[str], recipe: str = "fast"
) -> None:
    """Copy the weights, and write the card from what the run's folder says."""
    opened = Run.open(run)
    if opened.collapse:
        raise SystemExit(f"{run}: {opened.collapse}: it was not trained by its recipe to the end")
    model, config = opened.load("best"), opened.config
    section = opened.results.section("best")
    data = config.load_data()
    shape = data.test.pixels.shape[1:]
    if section.about["weights"] != digest_of(model, shape):
        raise SystemExit(f"{run} was evaluated with other weights: evaluate it again")
    kept, environment = opened.kept_epoch(), json.loads((run / "environment.json").read_text())
    assert kept is not None
    values = {"clean": section.evaluation.natural, **section.evaluation.robust}
    source = opened.weights("best")
    card = ModelCard(
        name=f"{config.model}@{trained}",
        sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        data=config.data,
        classes=data.classes,
        image_shape=(int(shape[0]), int(shape[1]), int(shape[2])),
        recipe=config.recipe.to_dict(),
        command=command(opened, recipe),
        seed=config.seed,
        commit=environment[0]["commit"],
        kept=f"epoch {kept['epoch']:.0f} ({kept['kept']})",
        passes=total_passes(config.recipe),
        hours=sum(row["seconds"] for row in opened.metrics()) / 3600,
        processor=f"{environment[0]['threads']} thread(s) of an {environment[0]['processor']}",
        measured=tuple(
            Measured(
                images=name,
                number=value.images,
                accuracy=value.accuracy,
                interval=value.interval,
                draws=value.draws,
                attack=value.attack,
            )
            for name, value in values.items()
        ),
        chosen=chosen(opened),
    )
    target = FOLDER / trained / source.with_stem(config.model).name
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as temporary:
        shutil.copyfile(source, temporary)
    for suffix, text in (
        (".json", json.dumps(card.to_json(), indent=2) + "\n"),
        (".md", model_card(card)),
    ):
        with atomic_write(target.with_suffix(suffix)) as temporary:
            temporary.write_text(text)
    total = sum(path.stat().st_size for path in FOLDER.rglob("*.safetensors")) / 1e6
    print(f"{card.name}: {target.stat().st_size / 1e6:.2f} MB, all of them {total:.1f} MB")


def chosen(run: Run) -> str:
    """Return how a run was chosen among those beside it; refuse one that is not the best."""
    siblings = run.folder.parent.glob(f"{run.folder.name.removesuffix(str(run.config.seed))}[0-9]*")
    merits = {one.config.seed: merit(one) for one in map(Run.open, siblings) if not one.collapse}
    if len(merits) == 1:
        return ""
    best = max(merits, key=lambda seed: merits[seed])
    if best != run.config.seed:
        raise SystemExit(f"{run}: seed {best} is better on validation images: evaluate and pack it")
    return (
        f"Of {len(merits)} seeds it has the highest mean of natural and PGD-10 accuracy on the "
        "validation images."
    )


def merit(run: Run) -> float:
    """Return the mean of both validation accuracies of the network that is kept."""
    kept = run.kept_epoch()
    assert kept is not None
    return float(kept["validation_natural"] + kept["validation_robust"]) / 2


def command(run: Run, recipe: str) -> str:
    """Return the command that trains the run again."""
    config = run.config
    usual, options = load_recipe(recipe).to_dict(), []
    for name, value in config.recipe.to_dict().items():
        if value != usual.get(name, Recipe().to_dict()[name]):
            options += [f"--{name.replace('_', '-')}", *map(_word, _several(value))]
    words = ["enresnet", "train", "--model", config.model, "--data", config.data]
    return shlex.join([*words, "--recipe", recipe, "--seed", str(config.seed), *options])


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


if __name__ == "__main__":
    tyro.cli(main)
