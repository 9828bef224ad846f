"""What an evaluation finds: accuracies, each with what it means and with its interval.

``accuracy`` is that of a single prediction, in the mean over images and draws; this is what the
word means everywhere. ``averaged`` is that of the mean prediction over so many draws, the
Feynman-Kac estimate. ``always`` is the share of images right in every draw, and ``broken_in[k]``
what an attacker gains who may submit the same image k times and needs to be lucky once. Each has an
interval that holds for other images and other draws, as many of them.

Stored results are read without torch: the command line shows them at once.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enresnet.common.files import atomic_write
from enresnet.common.tables import as_html, as_text
from enresnet.evaluation.rows import evaluation_rows

if TYPE_CHECKING:
    from torch import Tensor

    from enresnet.evaluation.scoring import Scored
    from enresnet.evaluation.statistics import SharedNoise

NATURAL = "natural"  # what accuracy on clean images is called, where attacks have their names
Interval = tuple[float, float]


@dataclass(frozen=True)
class Accuracy:
    """How many images are classified rightly, and how sure that is."""

    accuracy: float
    interval: Interval  # 95 %, over images and draws
    averaged: float
    averaged_interval: Interval
    always: float
    always_interval: Interval
    broken_in: dict[int, float]  # submissions of the same image -> share of images lost
    broken_in_intervals: dict[int, Interval]
    per_class: dict[str, float]
    calibration_error: float
    images: int
    draws: int
    seconds: float  # attack and predictions
    seconds_a_prediction: float  # of one image, once
    deterministic: bool = False  # two predictions of the first images were the same
    bad: int = 0  # predictions that were not numbers; they count as wrong
    shared_variance: float = 0.0  # of the accuracy, by noise that images may share
    attack: str | None = None
    settings: dict[str, Any] | None = None  # of the attack, exactly
    claimed: float | None = None  # what another library's attack says of itself
    gradients: float = 0.0  # gradient evaluations that the attack took, an image
    evaluations: float = 0.0  # and evaluations of the model altogether
    scored: Scored | None = field(default=None, repr=False, compare=False)

    @property
    def scores(self) -> Tensor:
        """The share of draws in which each image is right."""
        import torch

        return torch.empty(0) if self.scored is None else self.scored.scores

    @property
    def shared(self) -> SharedNoise:
        """How much the accuracy varies with noise that images may share."""
        from enresnet.evaluation.statistics import SharedNoise

        return SharedNoise(self.shared_variance, self.draws - 1)

    def convergence(self) -> list[dict[str, float]]:
        """Return both accuracies as they would be found with fewer draws."""
        assert self.scored is not None
        right, averaged = self.scored.right.float(), self.scored.averaged.float()
        return [
            {
                "draws": draws,
                "accuracy": float(right[:, :draws].mean()),
                "averaged": float(averaged[:, draws - 1].mean()),
            }
            for draws in range(1, right.shape[1] + 1)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the scores of single images, as plain JSON."""
        values = {name: value for name, value in vars(self).items() if name != "scored"}
        return {
            **values,
            "interval": list(self.interval),
            "averaged_interval": list(self.averaged_interval),
            "always_interval": list(self.always_interval),
            "broken_in": {str(k): value for k, value in self.broken_in.items()},
            "broken_in_intervals": {
                str(k): list(value) for k, value in self.broken_in_intervals.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Accuracy:
        """Return what :meth:`to_json` stored; the scores of single images are not among it."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        intervals = {name: tuple(value) for name, value in known.items() if "interval" in name}
        return cls(
            **known
            | {name: value for name, value in intervals.items() if name != "broken_in_intervals"}
            | {
                "broken_in": {int(k): value for k, value in values["broken_in"].items()},
                "broken_in_intervals": {
                    int(k): tuple(value) for k, value in values["broken_in_intervals"].items()
                },
            }
        )


@dataclass(frozen=True)
class Evaluation:
    """Accuracy on clean images, and under each attack by its name.

    It prints as the table of ``enresnet evaluate``, also in a notebook.

    Attributes:
        natural: Accuracy on clean images.
        robust: Accuracy under each attack, by its name.

    Example:
        >>> result = enresnet.evaluate(model, (images, labels), ["fgsm", "strongest"])
        >>> print(result)
        >>> result.robust["strongest"].interval
        >>> pandas.DataFrame(result.rows())
        >>> result.save("evaluation.json")
    """

    natural: Accuracy
    robust: dict[str, Accuracy]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        robust = {name: value.to_json() for name, value in self.robust.items()}
        return {NATURAL: self.natural.to_json(), "robust": robust}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Evaluation:
        """Return what :meth:`to_json` stored."""
        robust = {name: Accuracy.from_json(found) for name, found in values["robust"].items()}
        return cls(Accuracy.from_json(values[NATURAL]), robust)

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures as rows of plain numbers, clean images first, for a data frame."""
        return [
            {
                "images": "clean" if name == NATURAL else name,
                "accuracy": value.accuracy,
                "low": value.interval[0],
                "high": value.interval[1],
                "averaged": value.averaged,
                "always": value.always,
                "number": value.images,
                "draws": value.draws,
                "gradients": value.gradients,
                "evaluations": value.evaluations,
                "seconds": value.seconds,
                "attack": value.attack,
            }
            for name, value in {NATURAL: self.natural, **self.robust}.items()
        ]

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        section: str = "best",
        model: str = "model",
        data: str = "data",
    ) -> None:
        """Write the figures to a file that :meth:`load` and ``enresnet results`` read.

        Args:
            path: The file, usually evaluation.json in a folder of its own. Other sections that it
                holds stay.
            section: The part of the file that the figures become.
            model: What the model is called there.
            data: What the images are called there.
        """
        target = Path(path)
        stored = read_sections(target) if target.exists() else {}
        radii = {(value.settings or {}).get("epsilon") for value in self.robust.values()}
        stored[section] = {
            "model": model,
            "weights": None,
            "data_name": data,
            "checkpoint": None,
            "epsilon": radii.pop() if len(radii) == 1 else None,
            **self.to_json(),
        }
        with atomic_write(target) as temporary:
            temporary.write_text(json.dumps(stored, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, section: str | None = None) -> Evaluation:
        """Return the figures of a file or of a run's folder.

        Args:
            path: An evaluation.json, or the folder that holds it.
            section: Which part of it; may be left out where there is only one.

        Raises:
            ValueError: The file is damaged, or the section is not there, or must be chosen.
        """
        target = Path(path)
        target = target / "evaluation.json" if target.is_dir() else target
        stored = read_sections(target)
        if section is None and len(stored) == 1:
            (section,) = stored
        if section not in stored:
            found = "no section is chosen" if section is None else f"there is no {section!r}"
            raise ValueError(f"{found} in {target}: section must be one of {', '.join(stored)}")
        try:
            return cls.from_json(stored[section])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{target} is damaged: its section {section!r} is not whole "
                f"({type(error).__name__}: {error})"
            ) from error

    def __str__(self) -> str:
        return as_text(evaluation_rows(self), caption=self._caption())

    def _repr_html_(self) -> str:
        return as_html(evaluation_rows(self), caption=self._caption())

    def _caption(self) -> str:
        return f"Accuracy in %, with 95 % intervals, on {self.natural.images} images."


def read_sections(path: Path) -> dict[str, Any]:
    """Return what an evaluation.json holds, by section.

    Raises:
        ValueError: It is not JSON, or no mapping.
    """
    try:
        stored = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); remove it") from error
    if not isinstance(stored, dict):
        raise ValueError(f"{path} must hold sections, found a {type(stored).__name__}")
    return stored
