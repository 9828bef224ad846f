"""The additions in the graph of a ``forward``, and what is put after them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_ATEN = torch.ops.aten
_ADDITIONS = (
    operator.add,
    operator.iadd,
    torch.add,
    *(_ATEN.add, _ATEN.add.Tensor, _ATEN.add_, _ATEN.add_.Tensor),
)
_METHODS = ("add", "add_")
_FUSED = "addcmul addcdiv addmm addbmm baddbmm addmv addr lerp sub isub subtract rsub".split()
_TERMS = ("input", "other")


def additions(graph: fx.Graph) -> list[fx.Node]:
    """Return the additions of two values that are computed in a graph."""
    return [
        node
        for node in graph.nodes
        if (
            (node.op == "call_function" and node.target in _ADDITIONS)
            or (node.op == "call_method" and node.target in _METHODS)
        )
        and all(isinstance(term, fx.Node) for term in terms(node))
    ]


def last_of_chain(node: fx.Node, nodes: Sequence[fx.Node]) -> fx.Node:
    """Return the last addition of the chain that an addition, one of all nodes, belongs to.

    In x + f(x) + g(x) the first sum is used by nothing but the second: together they are one
    residual mapping, x + (f(x) + g(x)).
    """
    while True:
        names = _names_of(node)
        later = {user for name in names for user in name.users if user > node}
        if not later:
            return node
        follows = min(later)
        if follows not in nodes or (len(later) > 1 and _changed_by(follows) not in names):
            return node
        node = follows  # one that adds in place is what all others read


def fused_sums(graph: fx.Graph) -> dict[fx.Node, str]:
    """Return the operations that add while they do something else, with their names."""
    found = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or not node.all_input_nodes:
            continue
        name = _operation(node)
        if name.rstrip("_") in _FUSED:
            found[node] = name
    return found


def terms(node: fx.Node) -> tuple[Any, Any]:
    """Return the two terms of an addition, which may be given by name."""
    given = [*node.args[:2], *(node.kwargs[key] for key in _TERMS if key in node.kwargs)]
    first, second, *_ = (*given, None, None)
    return first, second


def replace_first_term(node: fx.Node, first: fx.Node) -> None:
    """Let something else be the first term of an addition."""
    if node.args:
        node.args = (first, *node.args[1:])
    else:
        node.kwargs = {**node.kwargs, "input": first}


def insert_after(graph: fx.Graph, node: fx.Node, target: str) -> None:
    """Let a module change the result of an addition, for all that use it later.

    An addition in place also changes its first term, which later code may know by an older name.
    """
    with graph.inserting_after(node):
        after = graph.call_module(target)
    names = _names_of(node)
    for user in graph.nodes:
        if user > after:
            for name in names:
                user.replace_input_with(name, after)
    after.args = (node,)


def _names_of(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that are known to stand for the tensor of a node when it is done."""
    names = [node]
    for name in names:  # which grows
        others = [user for user in name.users if user < node and _changed_by(user) is name]
        if (changed := _changed_by(name)) is not None:
            others.append(changed)
        names += [other for other in others if other not in names]
    return names


def _changed_by(node: fx.Node) -> fx.Node | None:
    """Return the tensor that an operation changes in place and returns."""
    if node.op not in ("call_method", "call_function"):
        return None
    name = _operation(node)
    if (name.endswith("_") and not name.endswith("__")) or (
        node.target is operator.iadd or node.kwargs.get("inplace")
    ):
        changed = node.args[0] if node.args else node.kwargs.get("input")
        return changed if isinstance(changed, fx.Node) else None
    return None


def _operation(node: fx.Node) -> str:
    """Return the name of what a node calls, without the overload, as of aten's add.Tensor."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.split(".")[0]
