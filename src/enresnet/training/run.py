"""A run is a folder: config.yaml, metrics.csv, best.safetensors, last/, evaluation.json.

``environment.json`` says by which commit and versions, on what hardware, from which step on.
``last/`` holds the network after the last epoch and, until the run is finished, all that resuming
needs. A training stores a checkpoint before its first network, and removes the checkpoints when it
ends: a network without one is finished, and is never overwritten unless the user asks for it.

A folder is read without torch, so that runs are listed at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

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
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.training.checkpoint import checkpoints
from enresnet.training.events import Epoch
from enresnet.training.metrics import collapse_in, kept_row, read_metrics, write_metrics
from enresnet.training.run_config import RunConfig, plain_config, read_config, write_config

if TYPE_CHECKING:
    from torch import nn

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
        write_config(folder / "config.yaml", config)
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
            return True  # best and last are the same network
        return len(self.metrics()) == self.config.recipe.epochs

    @property
    def state(self) -> RunState:
        """What can be done with the run.

        "finished", "integrated" (joined from other runs), "running" or "stopped". "weights only"
        is added if there is a network, but neither all files that training writes nor a
        checkpoint to resume from.
        """
        whole = all(self.weights(name).is_file() for name in CHECKPOINTS)
        if self.finished and self.config.parts:
            return "integrated"
        if self.finished and whole:
            return "finished"
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
        return cls(folder, read_config(path))

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
        write_metrics(self._metrics_file, epochs)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.csv, one an epoch."""
        return read_metrics(self._metrics_file)

    def kept_epoch(self) -> dict[str, Any] | None:
        """Return the row of metrics.csv of the epoch whose network is the best, if there is one.

        Runs of earlier versions do not mark it: there it is the highest validation accuracy.
        """
        return kept_row(self.metrics())

    @property
    def collapse(self) -> str:
        """How the training collapsed and what it went on with, by metrics.csv; "" if it did not.

        From then on it was another training than its recipe says.
        """
        return collapse_in(self.metrics())

    @property
    def _metrics_file(self) -> Path:
        return self.folder / "metrics.csv"

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
