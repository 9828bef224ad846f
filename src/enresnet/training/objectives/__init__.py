"""What training minimises: one objective a file, one table of names."""

from __future__ import annotations

from enresnet.training.objectives.base import Objective
from enresnet.training.objectives.natural import Natural
from enresnet.training.objectives.pgd import AdversarialPGD, training_attack

OBJECTIVES: dict[str, type[Objective]] = {
    "natural": Natural,
    "pgd": AdversarialPGD,
}

__all__ = ["OBJECTIVES", "Objective", "training_attack"]
