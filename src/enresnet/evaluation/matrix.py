"""What attacks on some models do to others: the class behind Tables 3 and 6.

A source is the model that an attack sees, a target one that classifies its images. The paper calls
the source an oracle, and so do the command line and stored results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from enresnet.common import checks
from enresnet.common.tables import as_html, as_text
from enresnet.evaluation.accuracy import NATURAL, Accuracy
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.rows import Row, with_interval

OWN = "model"  # what the only model of an evaluation is called


@dataclass(frozen=True, repr=False)
class TransferMatrix:
    """The accuracy of each target under each attack on each source, the model that it sees.

    It prints as the tables of ``enresnet transfer``, one for each attack, also in a notebook.

    Attributes:
        natural: Accuracy on clean images, by target.
        robust: Accuracy under each attack, by the attack's name, then by source and target.

    Example::

        models = {"resnet8": enresnet.create_model("resnet8"), "noisy": model}
        matrix = enresnet.transfer_matrix(models, models, (images, labels), "fgsm", draws=2)
        print(matrix, matrix.accuracy("resnet8", "noisy", "fgsm").interval)
    """

    natural: dict[str, Accuracy]
    robust: dict[str, dict[tuple[str, str], Accuracy]]

    @property
    def attacks(self) -> list[str]:
        """The names of the attacks."""
        return list(self.robust)

    @property
    def sources(self) -> list[str]:
        """The names of the models that were attacked."""
        return list(dict.fromkeys(source for cells in self.robust.values() for source, _ in cells))

    @property
    def targets(self) -> list[str]:
        """The names of the models that classified."""
        return list(self.natural)

    def accuracy(self, source: str, target: str, attack: str) -> Accuracy:
        """Return the accuracy of ``target`` on the images that ``attack`` made against ``source``.

        Args:
            source: The name of the model that was attacked.
            target: The name of the model that classified.
            attack: The name of the attack.

        Raises:
            ValueError: One of the names is not in the matrix.
        """
        checks.choice("attack", attack, self.attacks)
        checks.choice("source", source, self.sources)
        checks.choice("target", target, self.targets)
        return self.robust[attack][source, target]

    def evaluation(self, source: str = OWN, target: str = OWN) -> Evaluation:
        """Return what is found of one target, under the attacks on one source."""
        robust = {name: cells[source, target] for name, cells in self.robust.items()}
        return Evaluation(self.natural[target], robust, model=target)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of plain numbers for each accuracy, clean images first, for a data frame.

        Returns:
            Rows with ``images`` ("clean" or the attack's name), ``source`` ("" for clean images),
            ``target``, ``accuracy`` with its interval from ``low`` to ``high``, the ``number`` of
            images, and ``draws``.
        """
        clean = [("clean", "", target, value) for target, value in self.natural.items()]
        attacked = [
            (attack, source, target, value)
            for attack, cells in self.robust.items()
            for (source, target), value in cells.items()
        ]
        return [
            {
                "images": images,
                "source": source,
                "target": target,
                "accuracy": value.accuracy,
                "low": value.interval[0],
                "high": value.interval[1],
                "number": value.images,
                "draws": value.draws,
            }
            for images, source, target, value in clean + attacked
        ]

    def table(self, attack: str) -> list[Row]:
        """Return what one attack does in per cent: a row for each source, clean images first."""
        rows = [{"made against": "(clean)", **_words(self.natural)}]
        for source in self.sources:
            own = {target: self.accuracy(source, target, attack) for target in self.targets}
            rows.append({"made against": source, **_words(own)})
        return rows

    def gradient_draws(self, attack: str) -> str:
        """Return over how many draws gradients were averaged, by source where they differ."""
        used = {o: (v.settings or {}).get("eot") for (o, _), v in self.robust[attack].items()}
        if len(set(used.values())) > 1:
            return ", EOT over " + ", ".join(f"{eot} ({source})" for source, eot in used.items())
        (eot,) = set(used.values())
        return "" if eot is None else f", EOT over {eot}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            NATURAL: {target: value.to_json() for target, value in self.natural.items()},
            "robust": {
                attack: [
                    {"oracle": source, "target": target, **value.to_json()}
                    for (source, target), value in cells.items()
                ]
                for attack, cells in self.robust.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TransferMatrix:
        """Return what :meth:`to_json` stored."""
        return cls(
            {target: Accuracy.from_json(value) for target, value in values[NATURAL].items()},
            {
                attack: {(c["oracle"], c["target"]): Accuracy.from_json(c) for c in cells}
                for attack, cells in values["robust"].items()
            },
        )

    def __str__(self) -> str:
        return "\n".join(as_text(self.table(a), caption=self._caption(a)) for a in self.attacks)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(as_html(self.table(a), caption=self._caption(a)) for a in self.attacks)

    def _caption(self, attack: str) -> str:
        number = next(iter(self.natural.values())).images
        return (
            f"{attack}{self.gradient_draws(attack)}: accuracy in %, with 95 % intervals, on "
            f"{number} images."
        )


def _words(values: dict[str, Accuracy]) -> Row:
    return {name: with_interval(value.accuracy, value.interval) for name, value in values.items()}
