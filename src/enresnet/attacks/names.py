"""From an attack's name, as typed on the command line and found in results, to the attack."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from enresnet import checks
from enresnet.attacks.base import Attack
from enresnet.attacks.carlini_wagner import CarliniWagner
from enresnet.attacks.fgsm import FGSM
from enresnet.attacks.ifgsm import DEFAULT_EPSILON, IFGSM
from enresnet.attacks.pgd import PGD
from enresnet.attacks.random_noise import RandomNoise


def _pixel_space(**options: Any) -> CarliniWagner:
    return CarliniWagner(space="pixel", **options)


ATTACKS: dict[str, Callable[..., Attack]] = {
    "fgsm": FGSM,
    "ifgsm": IFGSM,
    "pgd": PGD,
    "cw": CarliniWagner,
    "cw_pixel": _pixel_space,
    "noise": RandomNoise,
}

# What `enresnet attacks` shows; any number of steps may stand in place of 20.
LISTED = (
    "fgsm",
    "ifgsm20",
    "pgd20",
    "cw",
    "cw_pixel",
    "noise",
    "fgsm_l2",
    "ifgsm20_l2",
    "pgd20_l2",
    "noise_l2",
)

_NAME = re.compile(
    r"(?P<attack>fgsm|ifgsm|pgd|cw|noise)(?P<steps>\d+)?(?P<pixel>_pixel)?(?P<l2>_l2)?"
)


def create_attack(name: str, **options: Any) -> Attack:
    """Return the attack called ``name``, such as ifgsm20 or pgd50_l2, with further options."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    kind = "" if match is None else match["attack"] + (match["pixel"] or "")
    steps = None if match is None else match["steps"]
    stepless = kind in ("fgsm", "noise")
    if (
        match is None
        or kind not in ATTACKS
        or (stepless and steps)
        or (match["l2"] and "cw" in kind)
    ):
        raise ValueError(
            f"unknown attack {name!r}; known are {', '.join(LISTED)}, with any number of steps"
            + checks.did_you_mean(name, LISTED)
        )
    if steps is not None:
        options["steps"] = int(steps)
    if match["l2"]:
        options["norm"] = "l2"
    return ATTACKS[kind](**options)


def list_attacks() -> list[str]:
    """Return the names of the attacks with the paper's settings, and their l2 versions."""
    return list(LISTED)


def attack_at(name: str, epsilon: float, **options: Any) -> Attack:
    """Return the attack called ``name`` for perturbations of about ``epsilon`` in linf.

    Carlini and Wagner's has no epsilon: its step is scaled, so that it can go as far as the
    paper's goes at 8/255. An l2 attack keeps its own default radius.
    """
    if name.startswith("cw"):
        options["step_size"] = 6e-4 * epsilon / DEFAULT_EPSILON["linf"]
    elif not name.endswith("_l2"):
        options["epsilon"] = epsilon
    return create_attack(name, **options)
