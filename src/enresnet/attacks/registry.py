"""From an attack's name, as typed on the command line and found in results, to the attack."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Sequence
from typing import Any, TypedDict, Unpack

import torch

from enresnet.attacks.apgd import APGD, APGDLoss
from enresnet.attacks.autoattack import AutoAttack, Version, check_installed
from enresnet.attacks.base import Attack
from enresnet.attacks.carlini_wagner import CarliniWagner, Space
from enresnet.attacks.fgsm import FGSM
from enresnet.attacks.fmn import FMN
from enresnet.attacks.geometry import Norm
from enresnet.attacks.ifgsm import DEFAULT_EPSILON, IFGSM
from enresnet.attacks.pgd import PGD
from enresnet.attacks.random_noise import RandomNoise
from enresnet.attacks.square import Square
from enresnet.attacks.strongest.search import Strongest
from enresnet.attacks.targets import TARGETS, ChosenTargets, Goal
from enresnet.common import checks
from enresnet.common.precision import Precision
from enresnet.common.randomness import named_generator
from enresnet.common.text import brief

ATTACKS: dict[str, type[Attack]] = {
    "fgsm": FGSM,
    "ifgsm": IFGSM,
    "pgd": PGD,
    "apgd": APGD,
    "square": Square,
    "strongest": Strongest,
    "autoattack": AutoAttack,
    "cw": CarliniWagner,
    "fmn": FMN,
    "noise": RandomNoise,
}

# What `enresnet attacks` shows; any number of steps may stand in place of 20.
LISTED = (
    "fgsm",
    "ifgsm20",
    "pgd20",
    "apgd100",
    "apgd100_dlr",
    "apgd100_t",
    "square",
    "strongest",
    "autoattack",
    "autoattack_rand",
    "cw",
    "cw_pixel",
    "cw_kappa1",
    "fmn100",
    "noise",
    "fgsm_l2",
    "ifgsm20_l2",
    "pgd20_l2",
    "fmn100_l2",
    "noise_l2",
)

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_NAME = re.compile(
    rf"(?P<kind>{'|'.join(ATTACKS)})(?P<steps>[0-9]+)?(?P<version>_rand)?(?P<space>_pixel)?"
    rf"(?P<kappa>_kappa{_NUMBER})?"
    r"(?P<loss>_dlr|_t)?(?P<norm>_l2)?"
    rf"(?P<goal>_targeted|_runner_up)?(?P<targets>(?<=_targeted)_(?:{'|'.join(TARGETS)}))?"
)
# What the words of a name mean; an attack knows those that its constructor has an option for.
_MEANINGS = {"_rand": "rand", "_pixel": "pixel", "_dlr": "dlr", "_t": "targeted_dlr", "_l2": "l2"}


class AttackOptions(TypedDict, total=False):
    """The options of all attacks; each attack takes those of its own constructor."""

    epsilon: float | None
    max_epsilon: float | None
    step_size: float | None
    gamma: float
    steps: int
    restarts: int
    budget: int
    share: float
    c: float
    kappa: float
    space: Space
    loss: APGDLoss
    version: Version
    norm: Norm
    eot: int | None
    goal: Goal
    targets: ChosenTargets | int | None
    precision: Precision
    early_stop: bool
    generator: torch.Generator | None


def create_attack(name: str, **options: Unpack[AttackOptions]) -> Attack:
    """Return the attack called ``name``, such as ifgsm20 or pgd50_l2_targeted_random.

    The model decides over how many draws of its noise a gradient is averaged, unless ``eot`` says
    so: 1 if it always answers the same, else 5. AutoAttack has its own number. The command line
    means the same attack by the same name, but at the epsilon that a run was trained against.

    Args:
        name: One of :func:`list_attacks`. Any number of steps may follow ifgsm, pgd, apgd, cw,
            fmn and square, and ``_kappa1`` or another confidence in logits cw and cw_pixel.
            ``_runner_up`` or ``_targeted`` may follow the whole, and after
            ``_targeted`` how targets are chosen: ``_random``, ``_least_likely``, ``_runner_up`` or
            ``_all``.
        **options: Arguments of the attack's constructor, such as ``epsilon`` or ``eot``.

    Returns:
        The attack.

    Raises:
        TypeError: The attack has no such option, or an option has the wrong type.
        ValueError: The name is unknown (the error names near matches), or an option is out of range
            or contradicts the name.

    Example::

        attack = enresnet.create_attack("pgd50_l2", epsilon=0.25, restarts=2)
        attacked = attack(model, images, labels)
    """
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    said = {} if match is None else {k: v for k, v in match.groupdict().items() if v is not None}
    kind = said.pop("kind", None)
    if kind is None or not set(said) <= set(inspect.signature(ATTACKS[kind]).parameters):
        raise ValueError(
            f"unknown attack {checks.brief(name)}; known are {', '.join(LISTED)}. Where there is a "
            "number of steps it may be another. _runner_up may follow, or _targeted_random, "
            "_targeted_least_likely, _targeted_runner_up or _targeted_all, which say the target"
            + checks.did_you_mean(name, LISTED)
        )
    named = {option: _meaning(option, word) for option, word in said.items()}
    given: dict[str, Any] = {**options}
    _check_options(name, kind, given)
    for key, value in named.items():
        if given.get(key, value) != value:
            raise ValueError(f"{key}={given[key]!r} contradicts the name {name!r}")
    return ATTACKS[kind](**{**given, **named})


def _meaning(option: str, word: str) -> str | int | float:
    """Return what a word of a name means for an option."""
    if option == "steps":
        return int(word)
    if option == "kappa":
        return float(word.removeprefix("_kappa"))
    return _MEANINGS.get(word, word.removeprefix("_"))


def _check_options(name: str, kind: str, options: Collection[str]) -> None:
    """Raise for the first option that an attack does not have."""
    known = list(inspect.signature(ATTACKS[kind]).parameters)
    for option in options:
        if option not in known:
            raise TypeError(
                f"{option} is not an option of {name}, which takes {', '.join(known)}"
                + checks.did_you_mean(option, known)
            )


def list_attacks() -> list[str]:
    """Return the names of the attacks that :func:`create_attack` knows, with usual settings.

    Returns:
        The names; any number of steps may take the place of those in them.

    Example::

        print(enresnet.list_attacks())  # ['fgsm', 'ifgsm20', ...]
    """
    return list(LISTED)


def attack_at(
    name: str,
    epsilon: float = DEFAULT_EPSILON["linf"],
    *,
    eot: int | None = None,
    seed: int | None = None,
    budget: int | None = None,
    targets: ChosenTargets | None = None,
    restarts: int | None = None,
    early_stop: bool = False,
    epsilon_l2: float | None = None,
) -> Attack:
    """Return the attack called ``name`` for perturbations of about ``epsilon`` in linf.

    Unlike :func:`create_attack` it gives attacks of different kinds comparable sizes, and ignores
    a budget or targets that the attack does not have.

    Args:
        name: As in :func:`create_attack`.
        epsilon: The largest change of a pixel, in units of the image's range [0, 1]; 8/255 by
            default. Carlini and Wagner's attack has no epsilon: its step size grows in proportion,
            from the paper's at 8/255.
        eot: Draws of the model's noise that a gradient averages; by default the model decides.
            Not for AutoAttack, which has its own number.
        seed: Fixes random starts and targets; by default they start from the system's entropy.
        budget: Gradient evaluations an image, for ``"strongest"``; 1000 by default.
        targets: How targets are chosen, for names that contain ``_targeted``.
        restarts: Random starts, for pgd, apgd and noise; 1 by default.
        early_stop: True leaves an image once a deterministic model gets it wrong, for ifgsm, pgd
            and apgd.
        epsilon_l2: The radius of attacks in l2; 0.5 by default.

    Returns:
        The attack.

    Raises:
        TypeError: An option has the wrong type, or the attack has no restarts or no early stop.
        ValueError: The name is unknown (the error names near matches), an option is out of range or
            contradicts the name, or AutoAttack is not installed.

    Example::

        from enresnet.attacks import attack_at

        names = ("fgsm", "ifgsm20", "cw")
        attacks = [attack_at(name, 4 / 255, seed=0) for name in names]
    """
    options: AttackOptions = {"eot": eot}
    if name.startswith("autoattack"):  # it has a number of draws of its own
        check_installed()
        options = {}
    if name.startswith("cw"):
        options["step_size"] = 6e-4 * epsilon / DEFAULT_EPSILON["linf"]
    elif name.startswith("fmn"):
        usual = DEFAULT_EPSILON["l2"] if epsilon_l2 is None else epsilon_l2
        options["max_epsilon"] = usual if "_l2" in name else epsilon
    elif "_l2" not in name:
        options["epsilon"] = epsilon
    elif epsilon_l2 is not None:
        options["epsilon"] = epsilon_l2
    if restarts is not None:
        options["restarts"] = restarts
    if early_stop:
        options["early_stop"] = True
    if seed is not None:
        options["generator"] = named_generator(seed, f"attack {name}")
    if budget is not None and name == "strongest":
        options["budget"] = budget
    if targets is not None and "_targeted" in name:
        options["targets"] = targets
    return create_attack(name, **options)


def name_at(name: str, epsilon: float) -> str:
    """Return what an attack is called at one of several radii, as in "fgsm at 2/255"."""
    return f"{name} at {brief(epsilon)}"


def with_distinct_names(attacks: Sequence[Attack]) -> dict[str, Attack]:
    """Return attacks by name; those of one name are told apart by what they differ in.

    So FGSM at two radii becomes "fgsm at 2/255" and "fgsm at 8/255".
    """
    found: dict[str, Attack] = {}
    for attack in attacks:
        own, alike = attack.settings(), [a.settings() for a in attacks if a.name == attack.name]
        differing = [key for key in own if any(o.get(key, ...) != own[key] for o in alike)]
        name, radii = attack.name, {o.get("epsilon") for o in alike}
        if "epsilon" in differing:
            name = name_at(name, own["epsilon"])
        if len(radii) < len(alike):
            name += "".join(f", {k}={brief(own[k])}" for k in differing if k != "epsilon")
        if name in found:
            raise ValueError(f"attacks must differ in their settings, found {attack!r} twice")
        found[name] = attack
    return found
