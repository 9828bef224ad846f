"""A network that the user trained, from the folder of its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enresnet.evaluation import load_results
from enresnet.evaluation.results_folder import EVALUATION, ResultsFolder
from enresnet.models.noise import noise_modules
from enresnet.models.pretrained import Measured

if TYPE_CHECKING:
    from torch import nn

    from enresnet.data import Images
    from enresnet.training import Run


@dataclass(frozen=True, eq=False)
class RunNetwork:
    """The best network of a run, with what a card says of one in the package.

    Attributes:
        name: NETWORK@FOLDER.
        data: The data set that it was trained on.
        classes: The names of the classes.
        image_shape: C, H and W of the images.
        recipe: The settings of the training that the demo needs.
        measured: What was measured of it; nothing where it was not evaluated.
        model: The network.
        images: The test images of the run.
    """

    name: str
    data: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    recipe: dict[str, Any]
    measured: tuple[Measured, ...]
    model: nn.Module
    images: Images

    @property
    def noisy(self) -> bool:
        """Whether it draws noise."""
        return any(place.noise > 0 for place in noise_modules(self.model))

    def accuracy(self, images: str) -> Measured | None:
        """Return the accuracy on ``"clean"`` images or under an attack; None if not measured."""
        return next((value for value in self.measured if value.images == images), None)

    @classmethod
    def of(cls, run: Run, images: Images, *, trust_code: bool = False) -> RunNetwork:
        """Return the best network of a run; ``images`` are the run's test images."""
        channels, height, width = images.pixels.shape[1:]
        return cls(
            name=f"{run.config.model}@{run.folder}",
            data=run.config.data,
            classes=run.config.classes or images.classes,
            image_shape=(channels, height, width),
            recipe={"epsilon": run.config.recipe.epsilon},
            measured=_measured(run),
            model=run.load("best", trust_code=trust_code).eval(),
            images=images,
        )


def _measured(run: Run) -> tuple[Measured, ...]:
    """Return the accuracies of these weights on the run's own images, at its epsilon."""
    if not (run.folder / EVALUATION).is_file() or ResultsFolder(run.folder).outdated("best"):
        return ()
    return tuple(
        Measured(
            images=row["images"],
            number=row["number"],
            accuracy=row["accuracy"],
            interval=(row["low"], row["high"]),
            draws=row["draws"],
            attack=row["attack"],
        )
        for row in load_results(run.folder).rows()
        if row["section"] == "best"
    )
