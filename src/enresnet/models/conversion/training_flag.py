"""One graph for training and evaluation, where a ``forward`` only hands its flag on.

As in ``functional.dropout(x, p, self.training)``: the two graphs differ in truth values alone, and
the module's flag, read in every call, takes their place.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx


def follow_training(evaluated: fx.Graph, trained: fx.Graph) -> bool:
    """Let the graph of a ``forward`` in evaluation mode be that in training too, by the flag.

    Returns whether that is all in which the two graphs differ; if not, nothing is changed.
    """
    nodes, others = list(evaluated.nodes), list(trained.nodes)
    if len(nodes) != len(others):
        return False
    changed: list[tuple[fx.Node, Any, Any]] = []
    for node, other in zip(nodes, others, strict=True):
        if (node.op, node.name, str(node.target)) != (other.op, other.name, str(other.target)):
            return False
        try:
            args, kwargs = _merged(node.args, other.args), _merged(node.kwargs, other.kwargs)
        except _DifferentError:
            return False
        if str((args, kwargs)) != str((node.args, node.kwargs)):
            changed.append((node, args, kwargs))
    if changed:
        first = next(node for node in nodes if node.op != "placeholder")
        with evaluated.inserting_before(first):
            flags = {True: evaluated.get_attr("training")}
            flags[False] = evaluated.call_function(operator.not_, (flags[True],))
        for node, args, kwargs in changed:
            node.args, node.kwargs = _filled(args, flags), _filled(kwargs, flags)
    return True


class _DifferentError(Exception):
    """Two graphs differ in more than truth values."""


class _Flag:
    """Stands for the module's flag, or for its opposite."""

    def __init__(self, in_training: bool) -> None:
        self.in_training = in_training


def _merged(one: Any, two: Any) -> Any:
    """Return what is the same in two arguments, and flags for truth values that are not."""
    if type(one) is not type(two):
        raise _DifferentError
    if isinstance(one, tuple | list):
        if len(one) != len(two):
            raise _DifferentError
        return tuple(_merged(*pair) for pair in zip(one, two, strict=True))
    if isinstance(one, dict):
        if list(one) != list(two):
            raise _DifferentError
        return {key: _merged(one[key], two[key]) for key in one}
    if isinstance(one, bool) and one != two:
        return _Flag(two)
    if str(one) != str(two):
        raise _DifferentError
    return one


def _filled(value: Any, flags: dict[bool, fx.Node]) -> Any:
    if isinstance(value, _Flag):
        return flags[value.in_training]
    if isinstance(value, tuple):
        return tuple(_filled(part, flags) for part in value)
    if isinstance(value, dict):
        return {key: _filled(part, flags) for key, part in value.items()}
    return value
