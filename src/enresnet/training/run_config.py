"""What decides a run: a network, data, a recipe and a seed, stored in its folder as config.yaml.

It is read and written without torch, so that runs are listed at once.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import enresnet.data
from enresnet import models
from enresnet.common import checks
from enresnet.common.files import atomic_write
from enresnet.common.precision import TrainingPrecision, training_precision
from enresnet.common.randomness import named_generator
from enresnet.common.reading import is_folder, read_yaml
from enresnet.training.recipe import Recipe, recipe_from

if TYPE_CHECKING:
    from enresnet.data import DataSet
    from enresnet.models import Ensemble, ExternalNetwork, ResNet

_SEVERAL = ("classes", "parts", "weights", "mean", "std")  # lists in YAML, tuples here


@dataclass(frozen=True)
class RunConfig:
    """All that decides a run, stored whole in its folder as config.yaml.

    Attributes:
        model: The name of the network, such as ``"en5_resnet20"``, ``"en2_timm:resnet18"`` or
            ``"en2_my_module:build"``; see :func:`create_model`.
        data: The name of a data set, or the path of a folder of images; see :func:`load_data`.
        recipe: How the network is trained.
        seed: Fixes weights, order, augmentation, noise and attacks; 0 by default.
        limit: The most images to use of each part, from the first on; all by default.
        size: The side of a folder's images, in pixels; 32 by default.
        gray: Whether a folder's images become gray; False by default.
        precision: ``"32"`` (float32), ``"bf16"`` (bfloat16 autocast), ``"16"`` (float16 autocast,
            on a GPU), or ``"auto"`` (the default): ``"bf16"`` where the hardware computes in it,
            else ``"32"``. :func:`train` stores the one it chose. The earlier names
            ``"bf16-mixed"`` and ``"16-mixed"`` are read too.
        mean: Subtracted from the images inside the network, one number a channel; by default
            nothing, for networks of a library what that library says.
        std: Divides the images after that; as ``mean``.
        fingerprint: The digest of the images; :func:`train` fills it in.
        classes: The names of the classes; :func:`train` fills them in. Empty in runs of earlier
            versions.
        parts: The runs that :func:`integrate` joined; empty for a trained run.
        weights: The weights of the parts in the average; empty for a trained run.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: The model or the precision is unknown (the error names near matches), or a
            number is out of range.

    Example::

        recipe = enresnet.load_recipe("fast", epochs=1)
        config = enresnet.RunConfig("en2_resnet8", "digits", recipe, limit=100)
        model = config.create_model(config.load_data())
    """

    model: str
    data: str
    recipe: Recipe
    seed: int = 0
    limit: int | None = None
    size: int | None = None
    gray: bool = False
    precision: TrainingPrecision = "auto"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    fingerprint: str = ""
    classes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", models.canonical_name(self.model))
        object.__setattr__(self, "precision", training_precision(self.precision))
        checks.integer("seed", self.seed, low=-(2**63))
        for name in ("limit", "size"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), low=1)
        if bool(self.mean) != bool(self.std):
            raise ValueError("mean and std belong together, found only one of them")
        kinds = {"data": str | os.PathLike, "gray": bool, "fingerprint": str}
        for name, kind in {**kinds, **dict.fromkeys(_SEVERAL, tuple)}.items():
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name} must be {_KINDS[name]}, found {checks.brief(value)}")
        for name in ("classes", "parts"):
            for word in getattr(self, name):
                if not isinstance(word, str):
                    raise TypeError(f"{name} must be {_KINDS[name]}, found {checks.brief(word)}")
        for name in ("weights", "mean", "std"):
            for number in getattr(self, name):
                checks.number(name, number)
        if is_folder(self.data):  # found again from wherever the run is evaluated
            object.__setattr__(self, "data", str(Path(self.data).resolve()))

    def load_data(self) -> DataSet:
        """Return the data set."""
        return enresnet.data.load_data(self.data, size=self.size, gray=self.gray, limit=self.limit)

    def create_model(self, data: DataSet) -> ResNet | ExternalNetwork | Ensemble:
        """Return the network with new random weights, for the data's classes, channels and size."""
        return models.create_model(
            self.model,
            num_classes=len(data.classes),
            in_channels=data.train.channels,
            noise=self.recipe.noise if models.is_noisy(self.model) else None,
            std_over=self.recipe.std_over,
            mean=self.mean or None,
            std=self.std or None,
            image_size=data.train.pixels.shape[-1],
            generator=named_generator(self.seed, "weights"),
        )


_KINDS = {
    "data": "the name of a data set or the path of a folder",
    "gray": "true or false",
    "fingerprint": "a text",
    "classes": "the names of the classes",
    "parts": "the names of the runs it was integrated from",
    "weights": "numbers, one a part",
    "mean": "numbers, one a channel",
    "std": "numbers, one a channel",
}


def read_config(path: Path) -> RunConfig:
    """Return the configuration in a config.yaml.

    Raises:
        ValueError: It is damaged or has unknown fields.
    """
    values = read_yaml(path)
    known = [spec.name for spec in fields(RunConfig)]
    if not isinstance(values, dict) or not set(values) <= set(known):
        odd = [key for key in values if key not in known] if isinstance(values, dict) else values
        raise ValueError(f"{path} must hold {', '.join(known)}; found {checks.brief(odd)}")
    recipe = recipe_from(values.pop("recipe", {}), where=str(path))
    missing = [name for name in ("model", "data") if name not in values]
    if missing:
        raise ValueError(f"{path} lacks {' and '.join(missing)}")
    for name in _SEVERAL:
        if isinstance(values.setdefault(name, ()), list):
            values[name] = tuple(values[name])
    try:
        return RunConfig(**values, recipe=recipe)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def write_config(path: Path, config: RunConfig) -> None:
    """Write a configuration as YAML, in the order of its fields."""
    lists = {name: list(getattr(config, name)) for name in _SEVERAL}
    values = {**asdict(config), "recipe": config.recipe.to_dict(), **lists}
    with atomic_write(path) as temporary:
        temporary.write_text(yaml.safe_dump(values, sort_keys=False))


def plain_config(config: RunConfig) -> dict[str, Any]:
    """Return all fields by name, those of the recipe as ``recipe.NAME``."""
    values = asdict(config)
    return {**{f"recipe.{name}": value for name, value in values.pop("recipe").items()}, **values}
