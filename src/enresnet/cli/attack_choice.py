"""The attacks that a command line asks for, each at its radius or at several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enresnet import attacks
from enresnet.cli.output import Ratio, Targets
from enresnet.common import checks
from enresnet.common.text import brief

if TYPE_CHECKING:
    from enresnet.evaluation.sections import ChosenAttack


@dataclass(frozen=True)
class AttackOptions:
    """How strong the attacks of a command are.

    Args:
        eot: Draws of the model's noise averaged in every gradient; 5 for a noisy model, else 1.
        epsilon: Largest change of a pixel, or several, as in 2/255 4/255 8/255; by default the one
            used in training.
        epsilon_l2: Largest l2 norm of the change, for attacks in l2, or several; 0.5 by default.
        restarts: Random starts of pgd, apgd and noise, of which the worst counts; 1 by default.
        early_stop: Leave an image of a deterministic model as soon as it is wrong: faster, with no
            higher accuracy; for ifgsm, pgd and apgd. Images that are saved are then weaker.
        targets: The classes that attacks named _targeted aim at: a random other class, the least
            likely, the runner-up, or all others in turn.
    """

    eot: int | None = None
    epsilon: tuple[Ratio, ...] = ()
    epsilon_l2: tuple[Ratio, ...] = ()
    restarts: int | None = None
    early_stop: bool = False
    targets: Targets | None = None

    def check(self) -> None:
        """Raise, before any work, unless gradients are averaged over at least one draw."""
        if self.eot is not None:
            checks.integer("eot", self.eot, low=1)

    def choose(self, names: Sequence[str], *, usual: float, **options: Any) -> list[ChosenAttack]:
        """Return the attacks called ``names``.

        Those in linf are at each ``epsilon``, or at the ``usual``; those in l2 at each
        ``epsilon_l2``, or at the radius that is theirs by default. What is given for attacks that
        are not there is refused.
        """
        self._check(names)
        found: dict[str, ChosenAttack] = {}
        for name in names:
            for radius in (self.epsilon_l2 if "_l2" in name else self.epsilon) or (None,):
                one = self._one(name, radius, usual, {"eot": self.eot, **options})
                if one.name in found:
                    raise ValueError(
                        f"--attacks must name every attack once, found {one.name} twice"
                    )
                found[one.name] = one
        return list(found.values())

    def radii(self, chosen: Sequence[ChosenAttack], *, usual: float) -> list[float]:
        """Return the radii in linf that attacks are at; with no attack, those of clean images."""
        return list(dict.fromkeys(one.radius for one in chosen)) or [*self.epsilon] or [usual]

    def choose_for_curve(
        self, names: Sequence[str], *, usual: float, **options: Any
    ) -> list[ChosenAttack]:
        """Return the attacks called ``names`` at all radii of a curve; FMN once, without a bound.

        The radii are those that are given, else the usual ones of a curve.
        """
        from enresnet.evaluation.curve import curve_attacks, is_minimal
        from enresnet.evaluation.sections import ChosenAttack

        self._check(names)
        if len(set(names)) < len(names):
            raise ValueError(f"--attacks must name every attack once, found {' '.join(names)}")
        radii, found = self.curve_radii(usual), []
        for name in names:
            if is_minimal(name):
                own = {"eot": self.eot, "targets": self.targets, **options}
                (attack,) = curve_attacks(name, (), **own).values()
                found.append(ChosenAttack(attack.name, attack, usual, f"{attack.name} unbounded"))
                continue
            l2 = "_l2" in name
            alone = AttackOptions(
                eot=self.eot,
                epsilon=() if l2 else tuple(filter(None, radii["linf"])),
                epsilon_l2=tuple(filter(None, radii["l2"])) if l2 else (),
                restarts=self.restarts if _has_restarts(name) else None,
                early_stop=self.early_stop and _stops_early(name),
                targets=self.targets if "_targeted" in name else None,
            )
            found += alone.choose([name], usual=usual, **options)
        return found

    def curve_radii(self, usual: float) -> dict[str, list[float]]:
        """Return the radii of a curve, for each norm."""
        from enresnet.evaluation.curve import usual_radii

        return {
            "linf": sorted(self.epsilon) or usual_radii(usual),
            "l2": sorted(self.epsilon_l2) or usual_radii(attacks.DEFAULT_EPSILON["l2"]),
        }

    def _one(
        self, name: str, radius: float | None, usual: float, options: dict[str, Any]
    ) -> ChosenAttack:
        from enresnet.attacks.registry import name_at
        from enresnet.evaluation.sections import ChosenAttack

        if self.restarts is not None and _has_restarts(name):
            options = {**options, "restarts": self.restarts}
        if self.early_stop and _stops_early(name):
            options = {**options, "early_stop": True}
        options = {**options, "targets": self.targets}
        if "_l2" not in name:
            own = usual if radius is None else radius
            attack = attacks.attack_at(name, own, **options)
            entry = attack.name  # it says which targets
            shown = name_at(entry, own) if len(self.epsilon) > 1 else entry
            return ChosenAttack(shown, attack, own, entry)
        attack = attacks.attack_at(name, usual, epsilon_l2=radius, **options)
        entry = attack.name
        if radius is not None and radius != attacks.DEFAULT_EPSILON["l2"]:
            entry = name_at(entry, radius)
        return ChosenAttack(entry, attack, usual, entry)

    def _check(self, names: Sequence[str]) -> None:
        """Raise where an option is for no attack, or does not say which it is for."""
        l2 = [name for name in names if "_l2" in name]
        if self.epsilon_l2 and not l2:
            raise ValueError("--epsilon-l2 is for attacks in l2, such as pgd20_l2; none is named")
        if self.epsilon and l2 and not self.epsilon_l2:
            raise ValueError(
                f"--epsilon is the radius in linf; {', '.join(l2)} has one in l2: give "
                "--epsilon-l2 too, or leave --epsilon out"
            )
        for option, radii in (("epsilon", self.epsilon), ("epsilon-l2", self.epsilon_l2)):
            if len(set(radii)) < len(radii):
                shown = " ".join(map(brief, radii))
                raise ValueError(f"--{option} must name every radius once, found {shown}")
        if self.restarts is not None:
            checks.integer("restarts", self.restarts, low=1)
            if not any(map(_has_restarts, names)):
                raise ValueError(
                    "--restarts is for attacks with a random start: pgd, apgd and noise; none is "
                    "named"
                )
        if self.early_stop and not any(map(_stops_early, names)):
            raise ValueError("--early-stop is for ifgsm, pgd and apgd; none is named")
        if self.targets is not None and not any("_targeted" in name for name in names):
            raise ValueError(
                f"--targets {self.targets} is for attacks that aim at a class; add _targeted to a "
                "name in --attacks, as in pgd20_targeted"
            )


def _has_restarts(name: str) -> bool:
    return name.startswith(("pgd", "apgd", "noise"))


def _stops_early(name: str) -> bool:
    return name.startswith(("ifgsm", "pgd", "apgd"))
