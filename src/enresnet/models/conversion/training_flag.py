"""One graph for training and evaluation, where a ``forward`` only hands flags on.

As in ``functional.dropout(x, p, self.training)``, or with the flag of a child: the graphs differ in
truth values alone, and the flags, read in every call, take their place.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import fx


def follow_training(
    evaluated: fx.Graph, trained: Mapping[str, fx.Graph], all_trained: fx.Graph
) -> bool:
    """Let the graph of a ``forward`` in evaluation mode be that in training too, by the flags.

    Args:
        evaluated: The graph where all flags are off; it is changed.
        trained: By the attribute that is one of the flags, the graph where that flag alone is on.
        all_trained: The graph where all flags are on.

    Returns:
        Whether that is all in which the graphs differ; if not, nothing is changed.
    """
    nodes = list(evaluated.nodes)
    arguments: list[Any] = [(node.args, node.kwargs) for node in nodes]
    try:
        for target, graph in trained.items():
            arguments = [
                _merged(one, (other.args, other.kwargs), target)
                for one, other in zip(arguments, _like(nodes, graph), strict=True)
            ]
        for one, other in zip(arguments, _like(nodes, all_trained), strict=True):
            if str(_filled(one, None)) != str(_filled((other.args, other.kwargs), None)):
                raise _DifferentError
    except _DifferentError:
        return False
    flags = _Flags(evaluated)
    for node, (args, kwargs) in zip(nodes, arguments, strict=True):
        if _has_flag((args, kwargs)):
            node.args, node.kwargs = _filled(args, flags), _filled(kwargs, flags)
    return True


class _DifferentError(Exception):
    """Two graphs differ in more than truth values."""


class _Flag:
    """Stands for a flag, or for its opposite."""

    def __init__(self, target: str, in_training: bool) -> None:
        self.target, self.in_training = target, in_training


class _Flags:
    """The nodes of a graph that read flags, made as they are asked for."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph, self._made = graph, dict[tuple[str, bool], fx.Node]()
        self._first = next(node for node in graph.nodes if node.op != "placeholder")

    def node(self, flag: _Flag) -> fx.Node:
        key = flag.target, flag.in_training
        if key not in self._made:
            with self._graph.inserting_before(self._first):
                self._made[key] = (
                    self._graph.get_attr(flag.target)
                    if flag.in_training
                    else self._graph.call_function(
                        operator.not_, (self.node(_Flag(flag.target, True)),)
                    )
                )
        return self._made[key]


def _like(nodes: list[fx.Node], graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes of a graph whose operations must be those of the nodes."""
    others = list(graph.nodes)
    if [(n.op, n.name, str(n.target)) for n in nodes] != [
        (n.op, n.name, str(n.target)) for n in others
    ]:
        raise _DifferentError
    return others


def _merged(one: Any, two: Any, target: str) -> Any:
    """Return what is the same in two arguments, and flags for truth values that are not."""
    if isinstance(one, _Flag):
        if two is not (not one.in_training):  # it depends on two flags
            raise _DifferentError
        return one
    if _is_sequence(one) and _is_sequence(two):
        if len(one) != len(two):
            raise _DifferentError
        return tuple(_merged(*pair, target) for pair in zip(one, two, strict=True))
    if isinstance(one, dict) and isinstance(two, dict):
        if list(one) != list(two):
            raise _DifferentError
        return {key: _merged(one[key], two[key], target) for key in one}
    if type(one) is not type(two):
        raise _DifferentError
    if isinstance(one, bool) and one != two:
        return _Flag(target, two)
    if str(one) != str(two):
        raise _DifferentError
    return one


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _has_flag(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_flag, value.values()))
    return any(map(_has_flag, value)) if _is_sequence(value) else isinstance(value, _Flag)


def _filled(value: Any, flags: _Flags | None) -> Any:
    """Return an argument with nodes that read its flags, or with their values in training."""
    if isinstance(value, _Flag):
        return value.in_training if flags is None else flags.node(value)
    if _is_sequence(value):
        return tuple(_filled(part, flags) for part in value)
    if isinstance(value, dict):
        return {key: _filled(part, flags) for key, part in value.items()}
    return value
