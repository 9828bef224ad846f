"""The model a command works on: a run, a file of weights, or the user's own function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import enresnet.data
from enresnet import models
from enresnet.common import checks
from enresnet.common.processes import first_process
from enresnet.common.reading import safetensors_digest
from enresnet.common.user_code import at_its_line, import_named, is_code_name
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.models.names import is_code
from enresnet.training import Run
from enresnet.training.run import CHECKPOINTS

if TYPE_CHECKING:
    from torch import Tensor

    from enresnet.data import Images
    from enresnet.evaluation import Session
    from enresnet.evaluation.sections import ChosenAttack, Sections
    from enresnet.models.ensemble import Average

DEFAULT_EPSILON = 8 / 255
PUBLISHED = "model.safetensors"  # the weights in a folder for the Hugging Face Hub


@dataclass(frozen=True)
class ModelSource:
    """A model, and where its results are kept."""

    name: str
    model: Callable[..., Any]
    source: str  # as it was typed
    data: str | None  # the data set it was trained on, if known
    epsilon: float  # the radius it was trained against, if known
    folder: Path
    run: Run | None = None
    classes: tuple[str, ...] = ()  # that it was trained to tell apart, if known
    variant: str = ""  # how it differs from what was stored
    checkpoint: str = "best"

    @property
    def record(self) -> ResultsFolder:
        """Its results."""
        return ResultsFolder(self.folder)

    def images(
        self, data: str | None, *, size: int | None = None, gray: bool = False
    ) -> tuple[str, Images]:
        """Return the name of the data asked for, or of its own, and the test images.

        Of a folder it is said which of its images these are; they are given ``size`` and ``gray``,
        by default as the run was.
        """
        name, images = self._find_images(data, size, gray)
        images = images.in_terms_of(self.classes or images.classes)
        if images.origin and first_process():
            print(f"test images: {len(images)}, {images.origin}", file=sys.stderr)
        return name, images

    def example(self, data: str | None, size: int | None) -> Tensor:
        """Return two images of the shape that the model takes: of the data, or of this size."""
        import torch

        if size is None:
            return self.images(data)[1].batch(slice(2))[0]
        module = self.model if isinstance(self.model, torch.nn.Module) else None
        first = (
            None
            if module is None
            else next((m for m in module.modules() if isinstance(m, torch.nn.Conv2d)), None)
        )
        channels = 3 if first is None else first.in_channels
        side = checks.integer("size", size, low=1)
        return torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0))

    def _find_images(self, data: str | None, size: int | None, gray: bool) -> tuple[str, Images]:
        if self.run is not None and (data is None or self._trained_within(Path(data))):
            if size is not None or gray:
                raise ValueError(
                    "--size and --gray are for a folder of other images, named by --data; the "
                    "run's own are read as it was trained"
                )
            return self.run.config.data, self.run.config.load_data().test
        data = data or self.data
        if data is None:
            raise ValueError(f"--data must be given with {self.source}: a name or a folder")
        folder = Path(data).is_dir() and not enresnet.data.is_adversarial_set(Path(data))
        if (size is not None or gray) and not folder:
            raise ValueError(f"--size and --gray are for folders of images; {data} has its own")
        if self.run is not None and folder:
            size, gray = size or self.run.config.size, gray or self.run.config.gray
        return data, enresnet.data.load_test_images(data, size=size, gray=gray)

    def _trained_within(self, folder: Path) -> bool:
        """Return whether a folder is the run's own, without a part for tests.

        Most of its images were trained on: a test takes those that the run kept for it.
        """
        assert self.run is not None
        own = Path(self.run.config.data)
        if not (folder.is_dir() and own.is_dir() and folder.samefile(own)):
            return False
        return enresnet.data.Layout.of(own).plain

    def stored(self) -> dict[str, str] | None:
        """Return the file of a run's best network and its digest, where results are kept beside."""
        if self.run is None or self.checkpoint != "best" or self.folder != self.run.folder:
            return None
        path = self.run.weights("best")
        digest = safetensors_digest(path)
        return None if digest is None else {"name": path.name, "sha256": digest}

    def section(self, epsilon: float, data: str) -> str:
        """Return the part of evaluation.json for results at this radius on these images."""
        own = self.checkpoint + self.variant
        own = own if data == (self.data or data) else f"{own} on {data}"
        return own if epsilon == self.epsilon else f"{own} at epsilon {epsilon:.6g}"

    def facts(self, data: str) -> dict[str, Any]:
        """Return what is stored of the model with results on these images, as plain JSON."""
        return {
            "model": self.name,
            "file": self.stored(),
            "data_name": data,
            "checkpoint": self.checkpoint,
        }

    def sections(
        self,
        data: str,
        session: Session,
        chosen: Sequence[ChosenAttack],
        radii: Sequence[float],
        conditions: dict[str, Any],
    ) -> Sections:
        """Return where the results of a session on these images belong."""
        from enresnet.evaluation.sections import Sections

        return Sections(
            self.record,
            lambda radius: self.section(radius, data),
            chosen,
            radii,
            session.digest,
            len(session.data),
            conditions,
        )

    def varied(
        self,
        *,
        noise: float | None = None,
        average: Average | None = None,
        paths: int | None = None,
    ) -> ModelSource:
        """Return the same network with another noise, another average, or more draws inside."""
        if noise is None and average is None and paths is None:
            return self
        if not isinstance(self.model, models.ResNet | models.Ensemble):
            raise ValueError(
                f"--noise, --average and --paths are for our networks; {self.source} is a "
                f"{type(self.model).__name__}"
            )
        model, words = self.model, []
        if noise is not None:
            models.set_noise(model, noise)
            words.append(f"noise {noise:g}")
        if average is not None or paths is not None:
            if not isinstance(model, models.Ensemble):
                model = models.Ensemble([model])
            model.average = average or model.average
            model.draws = model.draws if paths is None else checks.integer("paths", paths, low=1)
            words += [f"average of {average}"] * (average is not None)
            words += [f"{paths} path{'s' * (paths != 1)}"] * (paths is not None)
        return replace(self, model=model, variant=", with " + ", ".join(words))


def is_own(source: str) -> bool:
    """Return whether ``source`` names a model of the user's own, as module.path:name."""
    return not Path(source).exists() and is_code_name(source) and is_code(source)


def open_model(
    source: str,
    *,
    checkpoint: str = "best",
    out: Path | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    trust_code: bool = False,
) -> ModelSource:
    """Return what ``source`` names.

    A run's folder, weights that come with the package, a safetensors file, the folder that
    ``HubModel.save_pretrained`` writes with such a file in it, or module.path:name, which is given
    images normalised by ``mean`` and ``std``. Code that a run or a file names runs with
    ``trust_code`` alone.
    """
    path = Path(source)
    if bool(mean) != bool(std):
        raise ValueError("--mean and --std belong together, found only one of them")
    if mean and not is_own(source):
        raise ValueError(
            f"--mean and --std are for models of your own, module.path:name; {source} normalises "
            "inside, where it needs to"
        )
    published = path / PUBLISHED
    if path.is_dir() and not (path / "config.yaml").exists() and published.is_file():
        path = published
    if path.is_dir():
        run = Run.open(path)
        return ModelSource(
            name=run.config.model,
            model=run.load(
                checks.choice("checkpoint", checkpoint, CHECKPOINTS), trust_code=trust_code
            ),
            source=source,
            data=run.config.data,
            epsilon=run.config.recipe.epsilon,
            folder=out or path,
            run=run,
            classes=run.config.classes,
            checkpoint=checkpoint,
        )
    if "@" in source and not path.exists():
        card = models.find_pretrained(source)
        return ModelSource(
            name=card.name,
            model=models.load_model(source),
            source=source,
            data=card.data,
            epsilon=float(card.recipe["epsilon"]),
            classes=card.classes,
            folder=out or Path("evaluations") / card.name,
        )
    if checkpoint != "best":
        raise ValueError(f"--checkpoint is for runs; {source} is not a run")
    if path.is_file() or source.endswith(".safetensors"):
        model: Callable[..., Any] = models.load_model(path, trust_code=trust_code)
        name = path.resolve().parent.name if path is published else path.stem
    elif is_own(source):
        model, name = import_model(source), source.replace(":", ".")
        model = models.Normalized(model, mean, std) if mean else model
    else:
        raise FileNotFoundError(
            f"{source} {_what_is_missing(source)} the folder of a run, a safetensors file, or a "
            "function as module.path:name"
        )
    folder = out or Path("evaluations") / name
    return ModelSource(name, model, source, None, DEFAULT_EPSILON, folder)


def _what_is_missing(source: str) -> str:
    """Return why a name that is neither a file nor code names no trained model."""
    try:
        models.canonical_name(source)
    except ValueError:
        return "is not there; name"
    return (
        f"has no trained weights; train it first (enresnet train --model {source} --data NAME), "
        "and name"
    )


def import_model(source: str) -> Callable[..., Any]:
    """Return the model that ``module.path:name`` is, or that the function of that name builds."""
    found = import_named(source)
    if not callable(found):
        raise TypeError(f"{source} must be a model or a function, found {type(found).__name__}")
    from torch import nn

    if not isinstance(found, nn.Module) and _takes_nothing(found):
        try:
            found = found()
        except Exception as error:
            raise at_its_line(f"{source}() failed", error) from error
        if not callable(found):
            raise TypeError(
                f"{source}() must return a model, from images in [0, 1] to logits; found "
                f"{type(found).__name__}"
            )
    result: Callable[..., Any] = found
    return result


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called without arguments: then it builds the model."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in variable for p in parameters)
