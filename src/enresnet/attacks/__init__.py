"""What perturbs: attacks on any callable from images in [0, 1] to logits."""

from enresnet.attacks.apgd import APGD
from enresnet.attacks.autoattack import AutoAttack
from enresnet.attacks.base import Attack
from enresnet.attacks.carlini_wagner import CarliniWagner
from enresnet.attacks.fgsm import FGSM
from enresnet.attacks.gradient import frozen
from enresnet.attacks.ifgsm import IFGSM
from enresnet.attacks.names import attack_at, create_attack, list_attacks
from enresnet.attacks.pgd import PGD
from enresnet.attacks.random_noise import RandomNoise
from enresnet.attacks.square import Square
from enresnet.attacks.strongest import Strongest

__all__ = [
    "APGD",
    "FGSM",
    "IFGSM",
    "PGD",
    "Attack",
    "AutoAttack",
    "CarliniWagner",
    "RandomNoise",
    "Square",
    "Strongest",
    "attack_at",
    "create_attack",
    "frozen",
    "list_attacks",
]
