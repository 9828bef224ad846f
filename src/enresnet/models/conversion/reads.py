"""What a ``forward`` reads of modules while it is traced: training flags and plain attributes.

A trace keeps the values that it met. The flag of a module can be read in every call instead; any
other attribute of a child must stay as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from enresnet.models.conversion.arguments import PLAIN

FLAG = "training"


class Reads:
    """Remembers the training flags and the plain attributes that are read of a module's parts.

    Attributes:
        flags: The names of the modules whose flag was read; "" is the module itself.
        values: The plain attributes that were read, by the module's name and their own.
        foreign: The class of a module that is not among the parts, and whose flag was read.

    Args:
        module: The module whose ``forward`` is traced.
    """

    def __init__(self, module: nn.Module) -> None:
        self.flags: set[str] = set()
        self.values: dict[tuple[str, str], Any] = {}
        self.foreign = ""
        self._names = {id(part): name for name, part in module.named_modules()}

    @property
    def own(self) -> frozenset[str]:
        """The plain attributes of the module itself that were read."""
        return frozenset(attribute for name, attribute in self.values if not name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Remember what is read inside. torch.fx replaces ``__getattr__`` of all modules, too."""
        original = nn.Module.__getattribute__
        inherited = "__getattribute__" not in vars(nn.Module)

        def get(module: nn.Module, name: str) -> Any:
            value = original(module, name)
            if _is_plain(value):
                self._remember(module, name, value)
            return value

        setattr(nn.Module, "__getattribute__", get)  # noqa: B010
        try:
            yield
        finally:
            if inherited:
                delattr(nn.Module, "__getattribute__")
            else:
                setattr(nn.Module, "__getattribute__", original)  # noqa: B010

    def _remember(self, module: nn.Module, attribute: str, value: Any) -> None:
        name = self._names.get(id(module))
        if attribute == FLAG:
            if name is None:
                self.foreign = type(module).__name__
            else:
                self.flags.add(name)
        elif name is not None and attribute in object.__getattribute__(module, "__dict__"):
            self.values[name, attribute] = value


def guard_values(graph: fx.Graph, reads: Reads, kind: str) -> None:
    """Let a graph refuse to run where an attribute that was read of a child has changed."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        for (name, attribute), value in reads.values.items():
            if name:
                path = f"{name}.{attribute}"
                now = graph.get_attr(path)
                graph.call_function(stays_as_read, (now, value, path, kind))


def stays_as_read(value: Any, before: Any, path: str, kind: str) -> None:
    """Raise unless an attribute of a child has the value that it had when it was traced."""
    if type(value) is not type(before) or value != before:
        raise ValueError(
            f"{path} of {kind} must stay {before!r}, found {value!r}: it was read when noise was "
            "added, and would have no effect now. Set it in the network, and convert that again by "
            "feynman_kac"
        )


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(part) in PLAIN for part in value)
    return type(value) in PLAIN
