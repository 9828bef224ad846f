"""A run is a folder: config.yaml, metrics.csv, best.safetensors, last/, evaluation.json.

``environment.json`` says by which commit and versions, on what hardware, from which step on.
``last/`` holds the network after the last epoch and, until the run is finished, all that resuming
needs. A training stores a checkpoint before its first network, and removes the checkpoints when it
ends: a network without one is finished, and is never overwritten unless the user asks for it.

A folder is read without torch, so that runs are listed at once.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml

import enresnet.data
from enresnet import models
from enresnet.common import checks
from enresnet.common.files import (
    atomic_write,
    is_temporary,
    locked,
    remove,
    remove_leftovers,
    try_lock,
)
from enresnet.common.precision import TrainingPrecision, training_precision
from enresnet.common.randomness import named_generator
from enresnet.common.reading import is_folder, read_yaml
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.training.checkpoint import checkpoints
from enresnet.training.events import Epoch, selecting
from enresnet.training.recipe import Recipe, recipe_from

if TYPE_CHECKING:
    from torch import nn

    from enresnet.data import DataSet
    from enresnet.models import Ensemble, ExternalNetwork, ResNet

CheckpointName = Literal["best", "last"]
"""Which network of a run: the one that was selected, or that of the last epoch."""

RunState = Literal[
    "finished",
    "integrated",
    "running",
    "stopped",
    "finished, weights only",
    "stopped, weights only",
]
"""What can be done with a run; :attr:`Run.state` says what each means."""

CHECKPOINTS: tuple[CheckpointName, ...] = get_args(CheckpointName)
LOCK = ".lock"
_VALIDATED = ("natural", "robust")


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
        several = ("classes", "parts", "weights", "mean", "std")
        for name, kind in {**kinds, **dict.fromkeys(several, tuple)}.items():
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


class Run:
    """A run's folder: its configuration, its networks, its metrics and its results.

    :func:`train` and :func:`integrate` return one; :meth:`open` opens one that is there.

    Args:
        folder: The folder.
        config: What decides the run.

    Attributes:
        folder: The folder.
        config: What decides the run.

    Example::

        recipe = enresnet.load_recipe("natural", epochs=1)
        config = enresnet.RunConfig("resnet8", "digits", recipe, limit=100)
        enresnet.train(config, "runs/digits")
        run = enresnet.Run.open("runs/digits")
        print(run.state, run.kept_epoch()["validation_natural"])
        model = run.load("best")
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder, self.config = folder, config

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.config.model} on {self.config.data})"

    @classmethod
    def create(cls, folder: Path, config: RunConfig) -> Run:
        """Make a new folder; nothing is ever overwritten."""
        started = {LOCK}  # all that a start cut short may leave, beside half-written files
        if folder.exists() and (
            not folder.is_dir()
            or any(path.name not in started and not is_temporary(path) for path in folder.iterdir())
        ):
            raise FileExistsError(f"{folder} exists already; choose another --out, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            **asdict(config),
            "recipe": config.recipe.to_dict(),
            "classes": list(config.classes),
            "parts": list(config.parts),
            "weights": list(config.weights),
            "mean": list(config.mean),
            "std": list(config.std),
        }
        with atomic_write(folder / "config.yaml") as temporary:
            temporary.write_text(yaml.safe_dump(values, sort_keys=False))
        return cls(folder, config)

    @classmethod
    def start(cls, folder: Path, config: RunConfig) -> Run:
        """Make a new folder, or open the one that the same configuration made before."""
        if not (folder / "config.yaml").exists():
            return cls.create(folder, config)
        run = cls.open(folder)
        there, here = plain_config(run.config), plain_config(config)
        differing = [
            f"{name} {there[name]!r} there, {here[name]!r} here"
            for name in here
            if there[name] != here[name] and name not in ("fingerprint", "classes")
        ]
        if differing:
            raise FileExistsError(
                f"{folder} is a run of another configuration ({'; '.join(differing)}): "
                "choose another --out, or remove it"
            )
        if there["fingerprint"] != here["fingerprint"]:
            raise FileExistsError(
                f"{folder} is a run on other images than those now in {config.data}; "
                "choose another --out"
            )
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process; the system releases it when the process ends."""
        with (
            (self.folder / LOCK).open("a") as file,
            locked(file, f"{self.folder} is being trained"),
        ):
            remove_leftovers(self.folder)
            yield

    @property
    def running(self) -> bool:
        """Whether a process is training it now."""
        path = self.folder / LOCK
        if not path.is_file():
            return False
        try:
            with path.open("r") as file:
                return not try_lock(file)
        except OSError:
            return False

    @property
    def last(self) -> Path:
        """The folder of the last network and of what resuming needs."""
        return self.folder / "last"

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        if checkpoints(self.last) or not self.weights("best").is_file():
            return False
        if self.config.parts:
            return self.weights("last").is_file()
        return len(self.metrics()) == self.config.recipe.epochs

    @property
    def state(self) -> RunState:
        """What can be done with the run.

        "finished", "integrated" (joined from other runs), "running" or "stopped". "weights only"
        is added if there is a network, but neither all files that training writes nor a
        checkpoint to resume from.
        """
        whole = all(self.weights(name).is_file() for name in CHECKPOINTS)
        if self.finished and whole:
            return "integrated" if self.config.parts else "finished"
        if self.running:
            return "running"
        if self.config.parts or checkpoints(self.last) or not self.networks():
            return "stopped"
        done = len(self.metrics()) in (0, self.config.recipe.epochs)
        return "finished, weights only" if done else "stopped, weights only"

    def networks(self) -> list[Path]:
        """Return the files of weights that exist."""
        return [path for name in CHECKPOINTS if (path := self.weights(name)).is_file()]

    def check_resumable(self) -> None:
        """Raise if training would overwrite a network that it cannot resume from."""
        found = self.networks()
        if found and not checkpoints(self.last) and not self.finished:
            raise FileExistsError(
                f"{self.folder} holds a network, {found[0].name}, and no checkpoint to go on from: "
                "it is left as it is. Evaluate it, choose another --out, or train anew in its "
                "place with --overwrite"
            )

    def discard(self) -> None:
        """Remove what training wrote, so that it starts again; evaluations stay.

        Checkpoints go first: if this is interrupted, no training resumes from half of the files.
        """
        for path in checkpoints(self.last):
            path.unlink(missing_ok=True)
        written = ("metrics.csv", "environment.json", "curves.png", "tensorboard")
        for path in (self.weights("best"), self.last, *(self.folder / name for name in written)):
            remove(path)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """Return the run in an existing folder.

        Args:
            folder: The folder that :func:`train` or :func:`integrate` made.

        Raises:
            FileNotFoundError: The folder is not a run.
            ValueError: Its config.yaml is damaged or has unknown fields.
        """
        folder = Path(folder)
        path = folder / "config.yaml"
        if not path.exists():
            raise FileNotFoundError(f"{folder} is not a run: it has no config.yaml")
        values = read_yaml(path)
        known = [spec.name for spec in fields(RunConfig)]
        if not isinstance(values, dict) or not set(values) <= set(known):
            odd = (
                [key for key in values if key not in known] if isinstance(values, dict) else values
            )
            raise ValueError(f"{path} must hold {', '.join(known)}; found {checks.brief(odd)}")
        recipe = recipe_from(values.pop("recipe", {}), where=str(path))
        missing = [name for name in ("model", "data") if name not in values]
        if missing:
            raise ValueError(f"{path} lacks {' and '.join(missing)}")
        for name in ("classes", "parts", "weights", "mean", "std"):
            if isinstance(values.setdefault(name, ()), list):
                values[name] = tuple(values[name])
        try:
            return cls(folder, RunConfig(**values, recipe=recipe))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def record_environment(self, step: int, **facts: Any) -> None:
        """Add to environment.json the software and hardware that train from ``step`` on."""
        from enresnet.evaluation import hardware, versions

        path = self.folder / "environment.json"
        now = {"from_step": step, **versions(), **hardware(), **facts}
        try:
            stored = json.loads(path.read_text()) if path.is_file() else []
            if stored and {**stored[-1], "from_step": step} == now:
                return  # as before
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove it") from error
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps([*stored, now], indent=2) + "\n")

    def began_with_loops(self) -> bool | None:
        """Return whether the loops in C trained it last, by environment.json; None if not known."""
        try:
            found = json.loads((self.folder / "environment.json").read_text())[-1]["native_loops"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return found if isinstance(found, bool) else None

    def record(self, epochs: Sequence[Epoch]) -> None:
        """Write metrics.csv, as a whole: it is readable at any moment."""
        with (
            atomic_write(self.folder / "metrics.csv") as temporary,
            temporary.open("w", newline="") as file,
        ):
            writer = csv.DictWriter(file, [spec.name for spec in fields(Epoch)])
            writer.writeheader()
            writer.writerows(asdict(epoch) for epoch in epochs)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.csv, one an epoch."""
        words = ("weights", "note", "kept")
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        try:
            with path.open(newline="") as file:
                rows = [
                    {
                        key: value if key in words else float(value) if value else None
                        for key, value in row.items()
                    }
                    for row in csv.DictReader(file)
                ]
        except (ValueError, TypeError, csv.Error) as error:
            raise ValueError(f"{path} is damaged ({error}); put a copy in its place") from error
        for row in rows:
            if not row.get("epoch") or not {f"validation_{n}" for n in _VALIDATED} <= row.keys():
                raise ValueError(f"{path} is damaged: it lacks columns; put a copy in its place")
        return rows

    def kept_epoch(self) -> dict[str, Any] | None:
        """Return the row of metrics.csv of the epoch whose network is the best, if there is one.

        Runs of earlier versions do not mark it: there it is the highest validation accuracy.
        """
        rows = self.metrics()
        if any("kept" in row for row in rows):
            return next((row for row in rows if row["kept"]), None)
        scores = [selecting(row["validation_natural"], row["validation_robust"]) for row in rows]
        validated = [
            (score, row) for score, row in zip(scores, rows, strict=True) if score is not None
        ]
        if not validated:
            return None
        score, highest = max(validated, key=lambda found: found[0])
        return {**highest, "kept": f"highest validation accuracy, {100 * score:.1f} %"}

    def save(self, checkpoint: CheckpointName, model: nn.Module) -> None:
        """Store the weights of a network as best or last."""
        path = self.weights(checkpoint)
        path.parent.mkdir(exist_ok=True)
        models.save_model(model, path)

    def load(
        self, checkpoint: CheckpointName, *, trust_code: bool = False
    ) -> ResNet | ExternalNetwork | Ensemble:
        """Return the stored network; an integrated one keeps one part in memory at a time.

        Args:
            checkpoint: ``"best"`` or ``"last"``.
            trust_code: True imports and runs the code, ``module.path:name``, that builds the
                network, where the run names some.

        Raises:
            FileNotFoundError: There is no such network yet.
            ValueError: The file holds another network than config.yaml says, or names code.
        """
        path = self.weights(checkpoint)
        if not path.is_file():
            if self.weights("last").is_file():
                raise FileNotFoundError(
                    f"{self.folder} is not trained to the end, so none is the best yet: take "
                    "--checkpoint last, or resume the training"
                )
            raise FileNotFoundError(
                f"{self.folder} holds no network yet: its training did not finish an epoch"
            )
        model = models.load_model(path, trust_code=trust_code)
        if not self.config.parts and not models.same_architecture(model, self.config.model):
            raise ValueError(
                f"{path} holds another network than its config.yaml says, {self.config.model}: "
                "was it copied from another run?"
            )
        models.set_recompute(model, bool(self.config.parts))
        return model

    def weights(self, checkpoint: CheckpointName) -> Path:
        """Return the path of the weights of best or last."""
        checks.choice("checkpoint", checkpoint, CHECKPOINTS)
        return self.folder / (
            "best.safetensors" if checkpoint == "best" else "last/model.safetensors"
        )

    @property
    def results(self) -> ResultsFolder:
        """The evaluations of its networks."""
        return ResultsFolder(self.folder)

    def evaluation(self, checkpoint: CheckpointName) -> dict[str, Any] | None:
        """Return the evaluation of best or last in evaluation.json; None if there is none."""
        checks.choice("checkpoint", checkpoint, CHECKPOINTS)
        found: dict[str, Any] | None = self.results.sections().get(checkpoint)
        return found


def plain_config(config: RunConfig) -> dict[str, Any]:
    """Return all fields by name, those of the recipe as ``recipe.NAME``."""
    values = asdict(config)
    return {**{f"recipe.{name}": value for name, value in values.pop("recipe").items()}, **values}
