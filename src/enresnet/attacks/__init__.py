"""What perturbs: attacks on any callable from images in [0, 1] to logits."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.attacks.apgd import APGD as APGD
    from enresnet.attacks.autoattack import AutoAttack as AutoAttack
    from enresnet.attacks.base import Attack as Attack
    from enresnet.attacks.base import AttackResult as AttackResult
    from enresnet.attacks.carlini_wagner import CarliniWagner as CarliniWagner
    from enresnet.attacks.fgsm import FGSM as FGSM
    from enresnet.attacks.fmn import FMN as FMN
    from enresnet.attacks.ifgsm import DEFAULT_EPSILON as DEFAULT_EPSILON
    from enresnet.attacks.ifgsm import IFGSM as IFGSM
    from enresnet.attacks.pgd import PGD as PGD
    from enresnet.attacks.random_noise import RandomNoise as RandomNoise
    from enresnet.attacks.registry import attack_at as attack_at
    from enresnet.attacks.registry import create_attack as create_attack
    from enresnet.attacks.registry import list_attacks as list_attacks
    from enresnet.attacks.square import Square as Square
    from enresnet.attacks.strongest.search import Strongest as Strongest

__all__ = load_on_first_use(
    __name__,
    {
        "apgd": "APGD",
        "autoattack": "AutoAttack",
        "base": "Attack AttackResult",
        "carlini_wagner": "CarliniWagner",
        "fgsm": "FGSM",
        "fmn": "FMN",
        "ifgsm": "DEFAULT_EPSILON IFGSM",
        "registry": "attack_at create_attack list_attacks",
        "pgd": "PGD",
        "random_noise": "RandomNoise",
        "square": "Square",
        "strongest.search": "Strongest",
    },
)
