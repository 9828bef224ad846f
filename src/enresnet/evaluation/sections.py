"""Where the results of one evaluation belong: a section of evaluation.json for each radius."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from enresnet.attacks import Attack
from enresnet.evaluation.accuracy import NATURAL, Accuracy
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.evaluation.runner import Shard


@dataclass(frozen=True)
class ChosenAttack:
    """An attack, and where its result belongs."""

    name: str  # no other attack of the same evaluation has it
    attack: Attack
    radius: float  # in linf, of the section of results that it belongs to
    entry: str  # its name there

    @property
    def eight_bit(self) -> tuple[str, str]:
        """Its name and its name in the section, for its images rounded to 8 bits."""
        name, entry = (word.partition(" at ") for word in (self.name, self.entry))
        return "".join([f"{name[0]}_8bit", *name[1:]]), "".join([f"{entry[0]}_8bit", *entry[1:]])

    @property
    def file_name(self) -> str:
        """Its name for a folder."""
        return self.name.replace("/", "_").replace(" ", "-").replace(",", "")


@dataclass(frozen=True)
class Sections:
    """The results of a model under some attacks, in its record.

    Attributes:
        record: The folder that they are kept in.
        named: Returns the name of the section for a radius.
        chosen: The attacks.
        radii: The radii that they are at; with no attack, those of the clean images.
        data: Digest of the images.
        images: Their number.
        conditions: What decides the results besides the attacks, and is stored with them: the
            digest of the weights, seed, draws, batch size and more. Under ``eot`` the draws of
            attacks that leave them to the model: without it, their results are not recognised.
    """

    record: ResultsFolder
    named: Callable[[float], str]
    chosen: Sequence[ChosenAttack]
    radii: Sequence[float]
    data: str
    images: int
    conditions: dict[str, Any]

    def known(self, shard: Shard | None = None) -> dict[str, Accuracy]:
        """Return what was measured already, by the attacks' names of this evaluation.

        Of several processes only what all of them find: another evaluation may have ended between
        two looks.
        """
        found: dict[str, Accuracy] = {}
        clean: list[Accuracy] = []
        for radius in self.radii:
            own = {one.entry: one for one in self.chosen if one.radius == radius}
            there = self.record.known(
                self.named(radius),
                {NATURAL: None, **{entry: self._settings(one) for entry, one in own.items()}},
                data=self.data,
                images=self.images,
                conditions=self.conditions,
            )
            clean += [there.pop(NATURAL)] if NATURAL in there else []
            found |= {own[entry].name: value for entry, value in there.items()}
        if len(clean) == len(self.radii):
            found[NATURAL] = clean[0]
        shard, names = shard or Shard(), [NATURAL, *(one.name for one in self.chosen)]
        counts = shard.counted([name in found for name in names])
        return {
            n: found[n] for n, number in zip(names, counts, strict=True) if number == shard.count
        }

    def _settings(self, one: ChosenAttack) -> dict[str, Any]:
        """Return an attack's settings as results say them: with the draws that were used."""
        settings = one.attack.settings()
        if settings.get("eot", 1) is None:
            settings["eot"] = self.conditions.get("eot")
        return settings

    def add(self, result: Evaluation) -> list[str]:
        """Keep a result, and return what there is to say of those that were there."""
        said = []
        for radius in self.radii:
            own = {one.name: one.entry for one in self.chosen if one.radius == radius}
            own |= dict(one.eight_bit for one in self.chosen if one.radius == radius)
            robust = {own[name]: value for name, value in result.robust.items() if name in own}
            said += self.record.add(
                self.named(radius),
                replace(result, robust=robust),
                data=self.data,
                conditions={**self.conditions, "epsilon": radius},
            )
        return said
