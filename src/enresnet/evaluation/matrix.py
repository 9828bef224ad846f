"""What attacks on some models do to others: the class behind Tables 3 and 6."""

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
    """The accuracy of each target under each attack on each oracle.

    It prints as the tables of ``enresnet transfer``, one for each attack, also in a notebook.

    Attributes:
        natural: Accuracy on clean images, by target.
        robust: Accuracy under each attack, by the attack's name, then by oracle and target.

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
    def oracles(self) -> list[str]:
        """The names of the models that were attacked."""
        return list(dict.fromkeys(oracle for cells in self.robust.values() for oracle, _ in cells))

    @property
    def targets(self) -> list[str]:
        """The names of the models that classified."""
        return list(self.natural)

    def accuracy(self, oracle: str, target: str, attack: str) -> Accuracy:
        """Return the accuracy of ``target`` on the images that ``attack`` made against ``oracle``.

        Args:
            oracle: The name of the model that was attacked.
            target: The name of the model that classified.
            attack: The name of the attack.

        Raises:
            ValueError: One of the names is not in the matrix.
        """
        checks.choice("attack", attack, self.attacks)
        checks.choice("oracle", oracle, self.oracles)
        checks.choice("target", target, self.targets)
        return self.robust[attack][oracle, target]

    def evaluation(self, oracle: str = OWN, target: str = OWN) -> Evaluation:
        """Return what is found of one target, under the attacks on one oracle."""
        robust = {name: cells[oracle, target] for name, cells in self.robust.items()}
        return Evaluation(self.natural[target], robust, model=target)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of plain numbers for each accuracy, clean images first, for a data frame.

        Returns:
            Rows with ``images`` ("clean" or the attack's name), ``oracle`` ("" for clean images),
            ``target``, ``accuracy`` with its interval from ``low`` to ``high``, the ``number`` of
            images, and ``draws``.
        """
        clean = [("clean", "", target, value) for target, value in self.natural.items()]
        attacked = [
            (attack, oracle, target, value)
            for attack, cells in self.robust.items()
            for (oracle, target), value in cells.items()
        ]
        return [
            {
                "images": images,
                "oracle": oracle,
                "target": target,
                "accuracy": value.accuracy,
                "low": value.interval[0],
                "high": value.interval[1],
                "number": value.images,
                "draws": value.draws,
            }
            for images, oracle, target, value in clean + attacked
        ]

    def table(self, attack: str) -> list[Row]:
        """Return what one attack does in per cent: a row for each oracle, clean images first."""
        rows = [{"made against": "(clean)", **_words(self.natural)}]
        for oracle in self.oracles:
            own = {target: self.accuracy(oracle, target, attack) for target in self.targets}
            rows.append({"made against": oracle, **_words(own)})
        return rows

    def gradient_draws(self, attack: str) -> str:
        """Return over how many draws gradients were averaged, by oracle where they differ."""
        used = {o: (v.settings or {}).get("eot") for (o, _), v in self.robust[attack].items()}
        if len(set(used.values())) > 1:
            return ", EOT over " + ", ".join(f"{eot} ({oracle})" for oracle, eot in used.items())
        (eot,) = set(used.values())
        return "" if eot is None else f", EOT over {eot}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            NATURAL: {target: value.to_json() for target, value in self.natural.items()},
            "robust": {
                attack: [
                    {"oracle": oracle, "target": target, **value.to_json()}
                    for (oracle, target), value in cells.items()
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
