"""``enresnet train``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from enresnet.cli.output import Ratio, write_json
from enresnet.files import writable
from enresnet.training import Epoch, Recipe, RunConfig, load_recipe, train


def _override(field: dataclasses.Field[Any]) -> tuple[str, Any, None]:
    kind = Recipe.__annotations__[field.name]
    kinds: dict[str, Any] = {
        "str": str,
        "int": int,
        "bool": bool,
        "float": Ratio,
        "int | None": int,
        "float | None": Ratio,
        "tuple[float, ...]": tuple[float, ...],
    }
    hint = f"(paper: {_shown(field.default)})"
    option = tyro.conf.arg(help=field.metadata["help"], help_behavior_hint=hint)
    return field.name, Annotated[kinds[kind] | None, option], None


def _shown(value: Any) -> str:
    if isinstance(value, float) and value * 255 == round(value * 255):
        return f"{round(value * 255)}/255"
    if value is None:
        return "none"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


# One option for every field of a recipe; None leaves the field as the recipe has it.
Overrides = dataclasses.make_dataclass("Overrides", map(_override, dataclasses.fields(Recipe)))


def command(
    *,
    model: str,
    data: str,
    recipe: str = "paper",
    overrides: Annotated[Any, tyro.conf.arg(name="", constructor=Overrides)],
    seed: int = 0,
    limit: int | None = None,
    size: int | None = None,
    gray: bool = False,
    out: Path | None = None,
    json: Path | None = None,
) -> None:
    """Train a network into a run folder.

    The folder holds config.yaml, metrics.csv, best.safetensors (best on validation images, under
    attack where the recipe is robust) and last/. Any field of the recipe can be overridden.

    Args:
        model: Such as en5_resnet20; see enresnet models.
        data: digits, cifar10, cifar100, or the path of a folder of images by class.
        recipe: paper, released, fast, natural, trades, or the path of a YAML file.
        overrides: Fields of the recipe.
        seed: Fixes weights, order, augmentation, noise and attacks.
        limit: Use only the first so many images.
        size: Side in pixels to which the images of a folder are scaled and cut; 32 by default.
        gray: Read the images of a folder as gray.
        out: The run folder; by default runs/DATA-MODEL-RECIPE-seedS.
        json: Also write the epochs to this file.
    """
    if json is not None:
        writable(json)
    changes = {key: value for key, value in vars(overrides).items() if value is not None}
    config = RunConfig(
        model=model,
        data=data,
        recipe=load_recipe(recipe, **changes),
        seed=seed,
        limit=limit,
        size=size,
        gray=gray,
    )
    if out is None:
        names = (Path(data).name, config.model, Path(recipe).stem, f"seed{seed}")
        out = Path("runs") / "-".join(names)
    console = Console()
    epochs: list[Epoch] = []

    def report(epoch: Epoch) -> None:
        epochs.append(epoch)
        console.print(_line(epoch, config.recipe.epochs), highlight=False, soft_wrap=True)

    run = train(config, out, report=report)
    write_json(json, [dataclasses.asdict(epoch) for epoch in epochs])
    best = max((epoch for epoch in epochs if epoch.score is not None), key=_score)
    console.print(
        f"best on validation: epoch {best.epoch}, {100 * _score(best):.1f} %. In {run.folder}; "
        f"next: enresnet evaluate {run.folder}",
        highlight=False,
        soft_wrap=True,
    )


def _score(epoch: Epoch) -> float:
    return -1.0 if epoch.score is None else epoch.score


def _line(epoch: Epoch, epochs: int) -> str:
    parts = [
        f"epoch {epoch.epoch}/{epochs}: loss {epoch.train_loss:.3f}",
        f"training {100 * epoch.train_accuracy:.1f} %",
    ]
    if epoch.validation_natural is not None:
        parts.append(f"validation natural {100 * epoch.validation_natural:.1f} %")
    if epoch.validation_robust is not None:
        parts.append(f"attacked {100 * epoch.validation_robust:.1f} %")
    if epoch.weights:
        parts.append(f"weights {epoch.weights}")
    parts += [
        f"rate {epoch.learning_rate:.3g}",
        f"{epoch.images_per_second:.0f} images/s",
        f"{epoch.seconds:.0f} s",
    ]
    return ", ".join(parts) + (f"\n  {epoch.note}" if epoch.note else "")
