"""The graph of a module's own ``forward``, by torch.fx.

Its children are called, not followed: all parameters keep their names.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
from torch import fx, nn

from enresnet.models.conversion.draws import DrawError, no_draws
from enresnet.models.conversion.source import TORCH_BLOCKS
from enresnet.models.noise import NoiseInjection

_ADDITIONS = (operator.add, operator.iadd, torch.add)
_METHODS = ("add", "add_")
_TERMS = ("input", "other")


class UntraceableError(Exception):
    """A forward that torch.fx cannot follow."""


class _Shallow(fx.Tracer):
    """Follows a module's own ``forward``; its children are called, not followed."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        del m, module_qualified_name
        return True


def traced(module: nn.Module) -> fx.Graph:
    """Return the graph of a module's own ``forward``, the same in training and in evaluation."""
    graphs = []
    before = module.training
    try:
        for mode in (True, False):
            module.training = mode  # its own flag alone: children are not followed
            with no_draws(module):
                graphs.append(_own_graph(module))
    except DrawError as error:
        raise UntraceableError(
            "its forward draws random numbers: a trace would keep them"
        ) from error
    except Exception as error:  # anything may go wrong where a proxy stands for a tensor
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UntraceableError(f"its forward cannot be traced ({reason})") from error
    finally:
        module.training = before
    if str(graphs[0]) != str(graphs[1]):
        raise UntraceableError("its forward differs between training and evaluation")
    return graphs[1]


def _own_graph(module: nn.Module) -> fx.Graph:
    """Trace a module; what its ``forward`` only passes on, as **kwargs, is left out."""
    kind = type(module)
    parameters = inspect.signature(kind.forward).parameters.values()
    open_ended = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not open_ended:
        return _Shallow().trace(module)
    names = [p.name for p in parameters if p not in open_ended]
    taken = ", ".join(
        name if p.default is p.empty else f"{name}=None"
        for name, p in zip(names, (p for p in parameters if p not in open_ended), strict=True)
    )
    given = ", ".join(f"{name}={name}" for name in names if name != "self")
    scope: dict[str, Any] = {"original": kind.forward}
    # torch.fx reads the names of arguments from a function's code, so there must be one.
    exec(f"def forward({taken}): return original(self, {given})", scope)
    module.__class__ = type(kind.__name__, (kind,), {"forward": scope["forward"]})
    try:
        return _Shallow().trace(module)
    finally:
        module.__class__ = kind


def may_add(module: nn.Module) -> bool:
    """Return whether a module may have additions of its own: of torch's, few have."""
    kind = type(module)
    if issubclass(kind, NoiseInjection):
        return False
    return not kind.__module__.startswith("torch.nn") or issubclass(kind, TORCH_BLOCKS)


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
    name = node.target if isinstance(node.target, str) else node.target.__name__
    if (name.endswith("_") and not name.endswith("__")) or (
        node.target is operator.iadd or node.kwargs.get("inplace")
    ):
        changed = node.args[0] if node.args else node.kwargs.get("input")
        return changed if isinstance(changed, fx.Node) else None
    return None
