"""``enresnet train``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_origin, get_type_hints

import tyro

from enresnet import training
from enresnet.cli.output import Ratio, check_outputs, say, write_json
from enresnet.cli.terminal import Terminal
from enresnet.common import checks
from enresnet.common.precision import training_precision
from enresnet.common.processes import first_process
from enresnet.models import canonical_name, is_noisy
from enresnet.training import Recipe, Run, RunConfig, load_recipe

if TYPE_CHECKING:
    from enresnet.training.engine import Accelerator

AS_RECIPE = "as-recipe"  # an option that was not given
_HINTS = get_type_hints(Recipe)


def _override(field: dataclasses.Field[Any]) -> tuple[str, Any, str]:
    kinds: dict[Any, tuple[Any, str]] = {
        str: (str, "WORD"),
        str | None: (str, "WORD|none"),
        int: (int | Literal["as-recipe"], "INT"),
        bool: (bool | Literal["as-recipe"], "True|False"),
        float: (Ratio | Literal["as-recipe"], "NUMBER"),
        int | None: (int | Literal["none", "as-recipe"], "INT|none"),
        float | None: (Ratio | Literal["none", "as-recipe"], "NUMBER|none"),
        tuple[float, ...]: (tuple[Ratio, ...] | Literal["as-recipe"], "NUMBER ..."),
    }
    hint = _HINTS[field.name]
    kind, metavar = kinds[str if get_origin(hint) is Literal else hint]  # a recipe checks words
    paper = f"(paper: {_shown(field.name, field.default)})"
    option = tyro.conf.arg(help=field.metadata["help"], help_behavior_hint=paper, metavar=metavar)
    return field.name, Annotated[kind, option], AS_RECIPE


def _shown(name: str, value: Any) -> str:
    if name in ("epsilon", "step_size"):
        return f"{round(value * 255)}/255"
    if value is None:
        return "none"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


# One option for every field of a recipe.
Overrides = dataclasses.make_dataclass("Overrides", map(_override, dataclasses.fields(Recipe)))


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Where a training run is computed. It resumes with the number of processes it began with."""

    accelerator: str = "auto"
    """auto, cpu, gpu or mps."""
    devices: int = 1
    """Processes on this machine, one per device; batch_size is per process."""
    nodes: int = 1
    """Number of machines; see docs/clusters.md."""
    sync_batchnorm: bool = False
    """Share BatchNorm's statistics between GPUs within every step."""
    checkpoint_every: float | None = None
    """Seconds between two checkpoints; by default 10, or more where that would cost over 1 %."""
    other_loops: bool = False
    """Resume even if the loops in C were used before and are not available now, or vice versa."""


def command(
    *,
    model: str,
    members: int | None = None,
    data: str,
    recipe: str = "paper",
    overrides: Annotated[Any, tyro.conf.arg(name="", constructor=Overrides)],
    hardware: Annotated[Hardware, tyro.conf.arg(name="")],
    seed: int = 0,
    limit: int | None = None,
    size: int | None = None,
    gray: bool = False,
    precision: str = "auto",
    mean: tuple[Ratio, ...] = (),
    std: tuple[Ratio, ...] = (),
    out: Path | None = None,
    overwrite: bool = False,
    trust_code: bool = False,
    json: Path | None = None,
) -> None:
    """Train a network into a run folder, or resume a run that was stopped.

    The folder holds config.yaml, metrics.csv, curves.png, best.safetensors and last/. If the
    learning rate ends at zero (one_cycle), the best network is the last one; otherwise it is
    selected on validation images, attacked if the recipe is robust. Any field of the recipe can be
    overridden. After a crash, run the same command again: the result is the same as without it.

    Args:
        model: Such as en5_resnet20, see enresnet models; timm:NAME or torchvision:NAME of these
            libraries; or module.path:function, which builds a network of yours and is called with
            num_classes, in_channels and image_size if it takes them.
        members: Make it a Feynman-Kac ensemble of so many such networks, with noise after every
            residual mapping: --model timm:resnet18 --members 2 is --model en2_timm:resnet18.
        data: digits, cifar10, cifar100, or the path of a folder of images by class.
        recipe: paper, released, fast, long, natural, trades, or the path of a YAML file.
        overrides: Fields of the recipe.
        hardware: Where it runs.
        seed: Fixes weights, order, augmentation, noise and attacks.
        limit: Use only the first LIMIT images, for training and for tests alike.
        size: Side in pixels to which the images of a folder are resized and cropped; 32 by default.
        gray: Read the images of a folder as grayscale.
        precision: 32, bf16, 16 on a GPU, or auto: bf16 where it is fast.
        mean: Subtract this from the images inside the network, a number a channel; by default
            nothing, or what timm or torchvision say.
        std: Divide by this after that.
        out: The run folder; by default runs/DATA-MODEL-RECIPE-seedS.
        overwrite: Discard what the same command trained there before, and train anew.
        trust_code: Import and run the code that the file of --teacher names, module.path:name.
        json: Also write the epochs to this file.
    """
    check_outputs(json)
    changes: dict[str, Any] = {
        key: None if value == "none" else value
        for key, value in vars(overrides).items()
        if value != AS_RECIPE
    }
    model = _with_members(model, members)
    if not is_noisy(model):
        for name in {"noise", "std_over"} & changes.keys():
            raise ValueError(f"{name} is for noisy networks such as en1_{model}; {model} has none")
    config = RunConfig(
        model=model,
        data=data,
        recipe=load_recipe(recipe, **changes),
        seed=seed,
        limit=limit,
        size=size,
        gray=gray,
        precision=training_precision(precision),
        mean=mean,
        std=std,
    )
    if out is None:
        network = config.model.replace(":", "-")
        names = (Path(data).name, network, Path(recipe).stem, f"seed{seed}")
        out = Path("runs") / "-".join(names)
    begin = partial(training.train, config, out, overwrite=overwrite, trust_code=trust_code)
    train_and_tell(begin, config, hardware, json)


def _with_members(model: str, members: int | None) -> str:
    """Return the name of an ensemble of so many networks."""
    if members is None:
        return model
    if is_noisy(model) or "+" in canonical_name(model):
        raise ValueError(
            f"--members {members} is for the name of one network, such as resnet20 or "
            f"timm:resnet18; {model} says itself how many"
        )
    return f"en{checks.integer('members', members, low=1)}_{canonical_name(model)}"


def train_and_tell(
    begin: Callable[..., Run], config: RunConfig, hardware: Hardware, json: Path | None
) -> None:
    """Train, or go on, on this hardware, and print the result."""
    terminal = Terminal()
    run = begin(
        engine=training.Engine(
            accelerator=cast("Accelerator", hardware.accelerator),  # the engine checks it
            devices=hardware.devices,
            nodes=hardware.nodes,
            precision=config.precision,
            sync_batchnorm=hardware.sync_batchnorm,
        ),
        checkpoint_every=hardware.checkpoint_every,
        callbacks=[terminal],
        other_loops=hardware.other_loops,
    )
    if not first_process():
        return
    metrics = run.metrics()
    write_json(json, metrics)
    kept = run.kept_epoch()
    already = "" if terminal.epochs else "finished already; "
    which = "" if kept is None else f": epoch {kept['epoch']:.0f} ({kept['kept']})"
    command = f"enresnet evaluate {quote(str(run.folder))}"
    say(f"{already}kept as the best{which}. In {run.folder}; next: {command}")
