"""The attacked images of an evaluation, kept as data sets: one folder for each attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from enresnet.data import AdversarialSet, Images, load_adversarial_set
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.runner import WorkItem
from enresnet.evaluation.sections import ChosenAttack

if TYPE_CHECKING:
    from enresnet.evaluation.session import Session

SAME = ("model", "weights", "seed", "limit", "batch_size")  # what a set says of its evaluation


@dataclass(frozen=True)
class AdversarialSets:
    """An image sink that keeps attacked images in a folder, a set for each attack.

    Attributes:
        images: The clean images.
        by_attack: The sets.
    """

    images: Images
    by_attack: dict[str, AdversarialSet]

    @classmethod
    def at(
        cls,
        folder: Path,
        images: Images,
        chosen: Sequence[ChosenAttack],
        conditions: dict[str, Any],
        *,
        png: bool = False,
    ) -> AdversarialSets:
        """Return sets in a folder.

        Args:
            folder: Where each attack gets a folder of its own.
            images: The clean images, all of them.
            chosen: The attacks.
            conditions: Those of the evaluation; a set that is there already must have the same.
            png: Whether to keep 8-bit PNG files, rounded inside the ball, rather than float32.

        Raises:
            FileExistsError: A set there is another evaluation's.
        """
        found = {
            one.name: AdversarialSet(
                folder / one.file_name,
                classes=images.classes,
                kind="png" if png else "float32",
                about={
                    "attack": repr(one.attack),
                    "settings": one.attack.settings(),
                    "data": conditions["data_name"],
                    "images": images.fingerprint(),
                    "count": len(images),
                    **{name: conditions[name] for name in SAME},
                },
                epsilon=getattr(one.attack, "epsilon", None),
                norm=getattr(one.attack, "norm", "linf"),
            )
            for one in chosen
        }
        first, _ = images.batch(slice(conditions["batch_size"]))
        for kept in found.values():
            kept.check(first)
        return cls(images, found)

    def write(self, item: WorkItem, images: Tensor, labels: Tensor) -> None:
        """Keep the attacked images of an item."""
        clean, _ = self.images.batch(item.rows)
        self.by_attack[item.attack].write(item.start, images, labels, clean)

    def has(self, item: WorkItem) -> bool:
        """Return whether the attacked images of an item are there."""
        return self.by_attack[item.attack].has(item.start, self.images.labels[item.rows])


def with_eight_bit(
    result: Evaluation,
    session: Session,
    chosen: Sequence[ChosenAttack],
    sets: AdversarialSets,
) -> Evaluation:
    """Return the result of a session with what its images do once they are rounded to 8 bits."""
    options = replace(
        session.options, limit=None, journal=None, shard=None, image_sink=None, warn=False
    )
    robust = {}
    for one in chosen:
        value = robust[one.name] = result.robust[one.name]
        rounded = load_adversarial_set(sets.by_attack[one.name].folder)
        again = session.on(rounded, options).measure().evaluation()
        robust[one.eight_bit[0]] = replace(
            again.natural,
            attack=value.attack,
            settings={**(value.settings or {}), "rounded": "to 8 bits"},
            gradients=value.gradients,
            evaluations=value.evaluations,
        )
    return replace(result, robust=robust)
