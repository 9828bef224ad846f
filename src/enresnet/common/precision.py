"""The names of the number formats that attacks and trainings compute in: one vocabulary for both.

``"32"`` is float32. ``"bf16"`` and ``"16"`` are bfloat16 and float16 where that is safe, with
float32 weights (PyTorch's autocast). ``"auto"`` is bfloat16 where the hardware computes in it.
"""

from __future__ import annotations

from typing import Literal, get_args

from enresnet.common import checks

Precision = Literal["auto", "32", "bf16"]
"""Of an attack's gradients."""

TrainingPrecision = Literal[Precision, "16"]
"""Of a training. Its float16 needs a GPU and scales the loss, which attacks do not do."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TRAINING_PRECISIONS: tuple[TrainingPrecision, ...] = get_args(TrainingPrecision)

# What earlier versions, and Lightning, call them: in config files and on the command line.
EARLIER_NAMES: dict[object, TrainingPrecision] = {"bf16-mixed": "bf16", "16-mixed": "16"}


def training_precision(name: object) -> TrainingPrecision:
    """Return the precision of a training by its name of today or of earlier versions."""
    known = EARLIER_NAMES.get(name, name) if isinstance(name, str) else name
    return checks.choice("precision", known, TRAINING_PRECISIONS)
