"""The attacks that a command line asks for, each at its radius or at several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enresnet import attacks
from enresnet.common import checks
from enresnet.common.text import brief

if TYPE_CHECKING:
    from enresnet.attacks import Attack


@dataclass(frozen=True)
class Chosen:
    """An attack, and where its result belongs."""

    name: str  # no other attack of this command has it
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


def choose(
    names: Sequence[str],
    *,
    usual: float,
    epsilon: Sequence[float],
    epsilon_l2: Sequence[float] = (),
    restarts: int | None = None,
    targets: str | None = None,
    **options: Any,
) -> list[Chosen]:
    """Return the attacks called ``names``: those in linf at each ``epsilon``, or at the ``usual``.

    Those in l2 are at each ``epsilon_l2``, or at the radius that is theirs by default. What is
    given for attacks that are not there is refused.
    """
    _check(names, epsilon, epsilon_l2, restarts, targets)
    found: dict[str, Chosen] = {}
    for name in names:
        for radius in tuple(epsilon_l2 if "_l2" in name else epsilon) or (None,):
            one = _one(name, radius, usual, len(epsilon) > 1, restarts, targets, options)
            if one.name in found:
                raise ValueError(f"--attacks must name every attack once, found {one.name} twice")
            found[one.name] = one
    return list(found.values())


def _one(
    name: str,
    radius: float | None,
    usual: float,
    several: bool,
    restarts: int | None,
    targets: str | None,
    options: dict[str, Any],
) -> Chosen:
    if restarts is not None and _has_restarts(name):
        options = {**options, "restarts": restarts}
    options = {**options, "targets": targets}
    if "_l2" not in name:
        own = usual if radius is None else radius
        attack = attacks.attack_at(name, own, **options)
        name = attack.name  # it says which targets
        return Chosen(f"{name} at {brief(own)}" if several else name, attack, own, name)
    attack = attacks.attack_at(name, usual, epsilon_l2=radius, **options)
    name = attack.name
    if radius not in (None, attacks.DEFAULT_EPSILON["l2"]):
        name += f" at {brief(radius)}"
    return Chosen(name, attack, usual, name)


def _check(
    names: Sequence[str],
    epsilon: Sequence[float],
    epsilon_l2: Sequence[float],
    restarts: int | None,
    targets: str | None,
) -> None:
    """Raise where an option is for no attack, or does not say which it is for."""
    l2 = [name for name in names if "_l2" in name]
    if epsilon_l2 and not l2:
        raise ValueError("--epsilon-l2 is for attacks in l2, such as pgd20_l2; none is named")
    if epsilon and l2 and not epsilon_l2:
        raise ValueError(
            f"--epsilon is the radius in linf; {', '.join(l2)} has one in l2: give --epsilon-l2 "
            "too, or leave --epsilon out"
        )
    for option, radii in (("epsilon", epsilon), ("epsilon-l2", epsilon_l2)):
        if len(set(radii)) < len(radii):
            shown = " ".join(map(brief, radii))
            raise ValueError(f"--{option} must name every radius once, found {shown}")
    if restarts is not None:
        checks.integer("restarts", restarts, low=1)
        if not any(map(_has_restarts, names)):
            raise ValueError(
                "--restarts is for attacks with a random start: pgd, apgd and noise; none is named"
            )
    if targets is not None and not any("_targeted" in name for name in names):
        raise ValueError(
            f"--targets {targets} is for attacks that aim at a class; write --attacks with "
            "_targeted behind a name, as in pgd20_targeted"
        )


def _has_restarts(name: str) -> bool:
    return name.startswith(("pgd", "apgd", "noise"))
