"""The graph of a module's own ``forward``, by torch.fx.

Its children are called, not followed: all parameters keep their names.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx, nn

from enresnet.models.conversion.arguments import Given, optional_arguments, stays_at_default
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


def traced(module: nn.Module, given: Given = Given()) -> fx.Graph:  # noqa: B008
    """Return the graph of a module's own ``forward``, the same in training and in evaluation.

    Optional arguments that are never given stay at their defaults.
    """
    graphs = []
    before = module.training
    try:
        for mode in (True, False):
            module.training = mode  # its own flag alone: children are not followed
            with no_draws(module):
                graphs.append(_own_graph(module, given.never))
                _check_sometimes(module, given, graphs[-1])
    except DrawError as error:
        raise UntraceableError(
            "its forward draws random numbers: a trace would keep them"
        ) from error
    except UntraceableError:
        raise
    except Exception as error:  # anything may go wrong where a proxy stands for a tensor
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UntraceableError(f"its forward cannot be traced ({reason})") from error
    finally:
        module.training = before
    if str(graphs[0]) != str(graphs[1]):
        raise UntraceableError("its forward differs between training and evaluation")
    _guard(graphs[1], module, given.never)
    return graphs[1]


def _own_graph(module: nn.Module, left_out: Collection[str]) -> fx.Graph:
    """Trace a module; what its ``forward`` only passes on, as **kwargs, is left out."""
    kind = type(module)
    parameters = inspect.signature(kind.forward).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(named) == len(parameters) and not left_out:
        return _Shallow().trace(module)
    scope: dict[str, Any] = {
        "original": kind.forward,
        "defaults": {p.name: p.default for p in named},
    }
    taken = ", ".join(
        p.name if p.default is p.empty else f"{p.name}=defaults[{p.name!r}]" for p in named
    )
    given = ", ".join(
        p.name if p.kind is p.POSITIONAL_ONLY else f"{p.name}={p.name}"
        for p in named[1:]
        if p.name not in left_out
    )
    # torch.fx reads the names of arguments from a function's code, so there must be one.
    exec(f"def forward({taken}): return original({named[0].name}, {given})", scope)
    module.__class__ = type(kind.__name__, (kind,), {"forward": scope["forward"]})
    try:
        return _Shallow().trace(module)
    finally:
        module.__class__ = kind


def _check_sometimes(module: nn.Module, given: Given, graph: fx.Graph) -> None:
    """Raise where a ``forward`` asks whether an argument that is sometimes given was given."""
    if not given.sometimes:
        return
    defaults = optional_arguments(module)
    without = _own_graph(module, {*given.never, *given.sometimes})
    if _operations(graph, {name: defaults[name] for name in given.sometimes}) != _operations(
        without, {}
    ):
        raise UntraceableError(
            f"it is called with and without {', '.join(given.sometimes)}, and its forward asks "
            "which"
        )


def _operations(graph: fx.Graph, values: dict[str, Any]) -> list[str]:
    """Return what a graph does where some of its arguments have values."""

    def valued(node: fx.Node) -> Any:
        return (
            values[str(node.target)] if node.op == "placeholder" and node.target in values else node
        )

    return [
        str((node.op, node.target, fx.map_arg(node.args, valued), fx.map_arg(node.kwargs, valued)))
        for node in graph.nodes
        if node.op != "placeholder"
    ]


def _guard(graph: fx.Graph, module: nn.Module, left_out: Collection[str]) -> None:
    """Let a graph refuse arguments that it does not look at."""
    defaults, kind = optional_arguments(module), type(module).__name__
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    for node in arguments:
        if node.target in left_out and node.target in defaults:
            with graph.inserting_after(arguments[-1]):
                name = str(node.target)
                graph.call_function(stays_at_default, (node, defaults[name], kind, name))


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
