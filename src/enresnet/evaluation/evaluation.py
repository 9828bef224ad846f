"""What an evaluation finds: accuracy on clean images, and under each attack.

Stored results are read without torch: the command line shows them at once.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enresnet.common.files import atomic_write
from enresnet.common.tables import as_html, as_text
from enresnet.common.text import brief
from enresnet.evaluation.accuracy import NATURAL, Accuracy
from enresnet.evaluation.rows import Row, accuracy_rows, detail_rows

FILE, SCORES = "evaluation.json", "scores.safetensors"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Accuracy on clean images, and under each attack by its name.

    It prints as the table of ``enresnet evaluate``, also in a notebook.

    Attributes:
        natural: Accuracy on clean images.
        robust: Accuracy under each attack, by its name.

    Example::

        result = enresnet.evaluate(model, (images, labels), ["fgsm", "ifgsm5"], draws=2)
        print(result, result.robust["fgsm"].interval)
        result.save("evaluation.json", overwrite=True)  # result.rows() is for a data frame
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
        """Return a row of plain numbers for each accuracy, clean images first, for a data frame.

        Returns:
            Rows with ``images`` ("clean" or the attack's name), ``accuracy`` with its interval from
            ``low`` to ``high``, ``averaged``, ``always``, the ``number`` of images, ``draws``,
            ``gradients``, ``evaluations``, ``seconds`` and ``attack``; see :class:`Accuracy`.
        """
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

    def table(self, *, clean: str = "clean") -> list[Row]:
        """Return the accuracies as rows of words, in per cent, with intervals.

        Args:
            clean: What the images are called that no attack here has changed.
        """
        return accuracy_rows({clean: self.natural, **self.robust})

    def details(self, *, clean: str = "clean") -> list[Row]:
        """Return the worst class, the calibration error and the cost as rows of words.

        Args:
            clean: What the images are called that no attack here has changed.
        """
        return detail_rows({clean: self.natural, **self.robust})

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        section: str = "best",
        model: str = "model",
        data: str = "data",
        overwrite: bool = False,
    ) -> None:
        """Write the figures to a file that :meth:`load` reads.

        In a file called evaluation.json, ``enresnet results`` and :func:`load_results` show them
        too. The scores of single images go into scores.safetensors beside it, so that two
        evaluations can be compared image by image.

        Args:
            path: The file, usually evaluation.json in a folder of its own. Other sections that it
                holds stay.
            section: The part of the file that the figures become; "best" by default.
            model: What the model is called there; "model" by default.
            data: What the images are called there; "data" by default.
            overwrite: Whether the figures may replace those that the section holds.

        Raises:
            FileExistsError: The section is there, and ``overwrite`` is False.
            ValueError: The file is there, and is not one of ours.
            OSError: It cannot be written.
        """
        target = Path(path)
        stored = read_sections(target) if target.exists() else {}
        if section in stored and not overwrite:
            raise FileExistsError(
                f"{target} holds {section!r} already: give another section, or overwrite=True"
            )
        radii = {(value.settings or {}).get("epsilon") for value in self.robust.values()}
        stored[section] = {
            "model": model,
            "weights": None,
            "data_name": data,
            "checkpoint": None,
            "epsilon": radii.pop() if len(radii) == 1 else None,
            **self.to_json(),
        }
        if target.name == FILE:
            self._save_scores(target.with_name(SCORES), section)
        with atomic_write(target) as temporary:
            temporary.write_text(json.dumps(stored, indent=2) + "\n")

    def _save_scores(self, path: Path, section: str) -> None:
        """Write the scores of single images, where they are known; those of before go."""
        from enresnet.evaluation.score_file import add_scores  # needs torch, as reading does not

        measured = {
            name: value
            for name, value in {NATURAL: self.natural, **self.robust}.items()
            if value.scored is not None and value.data is not None
        }
        if measured or path.exists():
            add_scores(path, section, measured, data=str(self.natural.data), fresh=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, section: str | None = None) -> Evaluation:
        """Return the figures of a file or of a run's folder.

        Args:
            path: An evaluation.json, or the folder that holds it.
            section: Which part of it; may be left out where there is only one.

        Returns:
            The figures, without the scores of single images.

        Raises:
            FileNotFoundError: The file is not there.
            ValueError: The file is damaged, or the section is not there, or must be chosen.
        """
        target = Path(path)
        target = target / FILE if target.is_dir() else target
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
        return as_text(self.table(), caption=self._caption())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self.table(), caption=self._caption())

    def _caption(self) -> str:
        words = f"Accuracy in %, with 95 % intervals, on {self.natural.images} images"
        settings = [value.settings or {} for value in self.robust.values()]
        for norm, where in (("linf", ""), ("l2", " in l2")):
            own = [s for s in settings if s.get("norm", "linf") == norm]
            found = {s.get("epsilon", s.get("max_epsilon")) for s in own}
            radii = {radius for radius in found if radius is not None}
            if radii:
                words += f"; epsilon = {', '.join(map(brief, sorted(radii)))}{where}"
        draws = sorted({s["eot"] for s in settings if s.get("eot")})
        return words + (f"; EOT over {', '.join(map(str, draws))}." if draws else ".")


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
