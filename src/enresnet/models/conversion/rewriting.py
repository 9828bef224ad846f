"""A module whose ``forward`` is that of a torch.fx graph, and which is otherwise as it was.

It stays the same object: whoever holds it, under one name or several, calls the new ``forward``. It
stays an instance of its class, with its attributes and hooks.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import fx, nn

_ORIGINAL = "_class_before_rewriting"


@dataclass(frozen=True)
class _Package:
    """Stands for an imported package, which cannot be copied or pickled."""

    name: str


def rewrite(module: nn.Module, graph: fx.Graph) -> None:
    """Let the ``forward`` of a module be that of a graph."""
    if isinstance(module, fx.GraphModule):  # it has a class of its own already
        module.graph = graph
        return
    code = graph.python_code("self")
    used = {
        name: _Package(value.__name__) if isinstance(value, ModuleType) else value
        for name, value in code.globals.items()
    }
    kind = type(module)
    module.__class__ = _subclass(getattr(kind, _ORIGINAL, kind), code.src, used)


def _subclass(kind: type[nn.Module], source: str, used: dict[str, Any]) -> type[nn.Module]:
    """Return a class with the ``forward`` of a source, which uses some names."""
    scope = {
        name: importlib.import_module(value.name) if isinstance(value, _Package) else value
        for name, value in used.items()
    }
    exec(compile(source, f"<traced forward of {kind.__name__}>", "exec"), scope)

    def reduced(self: nn.Module, protocol: Any) -> Any:
        # A copy or a pickle finds no such class by its name, so it makes the class again.
        parts: Any = kind.__reduce_ex__(self, protocol)
        return _instance, (kind, source, used), *parts[2:]

    of_torch = kind.__module__.startswith("torch.nn")  # which tracers do not look into
    parts = {
        "__module__": __name__ if of_torch else kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": reduced,
        "forward": scope["forward"],
        _ORIGINAL: kind,
    }
    return type(kind.__name__, (kind,), parts)


def _instance(kind: type[nn.Module], source: str, used: dict[str, Any]) -> nn.Module:
    made = _subclass(kind, source, used)
    return made.__new__(made)
