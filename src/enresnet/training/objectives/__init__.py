"""What training minimises: one objective a file, one table of names."""

from __future__ import annotations

from enresnet.training.objectives.base import Objective
from enresnet.training.objectives.fgsm_rs import FGSMRS
from enresnet.training.objectives.mart import MART
from enresnet.training.objectives.n_fgsm import NFGSM
from enresnet.training.objectives.natural import NaturalTraining
from enresnet.training.objectives.pgd import AdversarialPGD, training_attack
from enresnet.training.objectives.rslad import RSLAD, OneStepRSLAD
from enresnet.training.objectives.trades import TRADES
from enresnet.training.recipe import ObjectiveName

OBJECTIVES: dict[ObjectiveName, type[Objective]] = {
    "natural": NaturalTraining,
    "pgd": AdversarialPGD,
    "trades": TRADES,
    "mart": MART,
    "n_fgsm": NFGSM,
    "fgsm_rs": FGSMRS,
    "rslad": RSLAD,
    "rslad_one_step": OneStepRSLAD,
}

__all__ = ["OBJECTIVES", "Objective", "training_attack"]
