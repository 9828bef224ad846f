"""How messages name the modules of a network, and the blocks that a user may choose."""

from __future__ import annotations

from torch import nn

from enresnet.models.conversion.source import adds_activations
from enresnet.models.conversion.tracing import may_add


def place_of(name: str, module: nn.Module) -> str:
    """Return a module's name and class."""
    return f"{name or 'the network itself'} ({type(module).__name__})"


def candidates(model: nn.Module) -> list[str]:
    """Return the classes of the network's own modules, those that seem to add first."""
    kinds = {type(m).__name__: m for m in model.modules() if may_add(m)}
    return sorted(kinds, key=lambda kind: (not adds_activations(kinds[kind]), kind))[:8]


def name_blocks(model: nn.Module) -> str:
    """Return what to do where the additions of a network cannot be used."""
    return f"name the blocks whose output gets the noise, blocks=[...]; {made_of(model)}"


def made_of(model: nn.Module) -> str:
    """Return which classes of modules a network has."""
    return f"it is made of {', '.join(candidates(model)) or 'layers of torch alone'}"
