"""A module whose ``forward`` is that of a torch.fx graph, and which is otherwise as it was.

It stays the same object: whoever holds it, under one name or several, calls the new ``forward``. It
stays an instance of its class, with its attributes and hooks.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import fx, nn

_ORIGINAL = "_class_before_rewriting"
_READ = "_read_when_traced"


@dataclass(frozen=True)
class _Package:
    """Stands for an imported package, which cannot be copied or pickled."""

    name: str


def rewrite(module: nn.Module, graph: fx.Graph, read: Iterable[str] = ()) -> None:
    """Let the ``forward`` of a module be that of a graph.

    The attributes that were ``read`` when it was traced can no longer be set to other values.
    """
    if isinstance(module, fx.GraphModule):  # it has a class of its own already
        module.graph = graph
        return
    code = graph.python_code("self")
    used = {
        name: _Package(value.__name__) if isinstance(value, ModuleType) else value
        for name, value in code.globals.items()
    }
    kind = type(module)
    module.__class__ = _subclass(
        getattr(kind, _ORIGINAL, kind),
        code.src,
        used,
        frozenset(read) | getattr(kind, _READ, set()),
    )


def _subclass(
    kind: type[nn.Module], source: str, used: dict[str, Any], read: frozenset[str]
) -> type[nn.Module]:
    """Return a class with the ``forward`` of a source, which uses some names."""
    scope = {
        name: importlib.import_module(value.name) if isinstance(value, _Package) else value
        for name, value in used.items()
    }
    exec(compile(source, f"<traced forward of {kind.__name__}>", "exec"), scope)

    def reduced(self: nn.Module, protocol: Any) -> Any:
        # A copy or a pickle finds no such class by its name, so it makes the class again.
        parts: Any = kind.__reduce_ex__(self, protocol)
        return _instance, (kind, source, used, read), *parts[2:]

    def set_attribute(self: nn.Module, name: str, value: Any) -> None:
        if name in read and name in vars(self):
            held = vars(self)[name]
            if held is not value and (type(held) is not type(value) or held != value):
                raise AttributeError(
                    f"{name} of {kind.__name__} was read when noise was added, and would have no "
                    "effect now: set it in the network, and convert that again by feynman_kac"
                )
        kind.__setattr__(self, name, value)

    of_torch = kind.__module__.startswith("torch.nn")  # which tracers do not look into
    parts = {
        "__module__": __name__ if of_torch else kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": reduced,
        "__setattr__": set_attribute,
        "forward": scope["forward"],
        _ORIGINAL: kind,
        _READ: read,
    }
    return type(kind.__name__, (kind,), parts)


def _instance(
    kind: type[nn.Module],
    source: str,
    used: dict[str, Any],
    read: frozenset[str] = frozenset(),  # pickles of earlier versions have none
) -> nn.Module:
    made = _subclass(kind, source, used, read)
    return made.__new__(made)
