"""EnResNet: Feynman-Kac ensembles of residual networks, and attacks that measure them honestly.

The names below load on first use, so that ``import enresnet`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enresnet.data import load_data
    from enresnet.evaluation import evaluate, transfer
    from enresnet.models import (
        Ensemble,
        NoiseInjection,
        create_model,
        inject_noise,
        list_models,
        list_pretrained,
        load_model,
        save_model,
        seed_noise,
        set_noise,
        using_noise,
        without_noise,
    )

__all__ = [
    "Ensemble",
    "NoiseInjection",
    "create_model",
    "evaluate",
    "inject_noise",
    "list_models",
    "list_pretrained",
    "load_data",
    "load_model",
    "save_model",
    "seed_noise",
    "set_noise",
    "transfer",
    "using_noise",
    "without_noise",
]

__version__ = version("enresnet")

_ROOM_OF = {
    **dict.fromkeys(__all__, "enresnet.models"),
    "evaluate": "enresnet.evaluation",
    "load_data": "enresnet.data",
    "transfer": "enresnet.evaluation",
}
_ROOMS = ("data", "models", "attacks", "evaluation", "training", "report")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"enresnet.{name}")
    if name in _ROOM_OF:
        return getattr(importlib.import_module(_ROOM_OF[name]), name)
    raise AttributeError(f"module 'enresnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
