"""The optional arguments of a ``forward``, and which of them a network gives.

A trace knows no "if mask is not None": what stands for an argument is never None. So arguments that
a network never gives stay at their defaults, and the traced ``forward`` refuses others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

PLAIN = (type(None), bool, int, float, str)  # what may stand in a graph


@dataclass(frozen=True)
class Given:
    """What the calls of a module have in common.

    Attributes:
        never: Optional arguments that no call gives.
        sometimes: Those that some calls give, and others do not.
    """

    never: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()


def optional_arguments(module: nn.Module) -> dict[str, Any]:
    """Return the arguments of a module's ``forward`` with a plain default, and their defaults."""
    try:
        parameters = inspect.signature(type(module).forward).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default for p in parameters if p.kind in named and type(p.default) in PLAIN}


class Watch:
    """Watches which optional arguments the modules of a network are given.

    Args:
        model: The network; it gets hooks, so it should be a copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self.seen: dict[str, list[set[str]]] = {}  # of each call, the names
        self._optional = {name: optional_arguments(m) for name, m in model.named_modules()}
        for name, module in model.named_modules():
            if self._optional[name]:
                module.register_forward_pre_hook(self._remember(name), with_kwargs=True)

    def given(self) -> dict[str, Given]:
        """Return what was seen of each module that was called."""
        found = {}
        for name, calls in self.seen.items():
            always, once = set.intersection(*calls), set.union(*calls)
            optional = self._optional[name]
            found[name] = Given(
                tuple(argument for argument in optional if argument not in once),
                tuple(argument for argument in optional if argument in once - always),
            )
        return found

    def _remember(self, name: str) -> Callable[..., None]:
        optional = self._optional[name]

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            try:
                bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
            except TypeError:  # the call is about to fail
                return
            values = bound.arguments
            given = {a for a in optional if a in values and not _same(values[a], optional[a])}
            self.seen.setdefault(name, []).append(given)

        return hook


def stays_at_default(value: Any, default: Any, kind: str, name: str) -> None:
    """Raise unless an argument that a traced ``forward`` left out has its default."""
    if not _same(value, default):
        raise ValueError(
            f"{name} of {kind}.forward must stay at its default, {default!r}, found "
            f"{type(value).__name__}: the network never gave it when noise was added. "
            "Name the block when you convert, feynman_kac(..., blocks=[...])"
        )


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
