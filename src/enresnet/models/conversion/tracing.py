"""The graph of a module's own ``forward``, by torch.fx.

Its children are called, not followed: all parameters keep their names.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from enresnet.models.conversion.arguments import (
    Given,
    optional_arguments,
    stays_at_default,
)
from enresnet.models.conversion.contexts import all_switched, contexts
from enresnet.models.conversion.draws import DrawError, no_draws
from enresnet.models.conversion.reads import FLAG, Reads, guard_values
from enresnet.models.conversion.source import TORCH_BLOCKS
from enresnet.models.conversion.training_flag import follow_training
from enresnet.models.noise import NoiseInjection
from enresnet.models.side_effects import StateBefore


class UntraceableError(Exception):
    """A forward that torch.fx cannot follow."""


@dataclass(frozen=True)
class Traced:
    """What a trace of a module's own ``forward`` gives.

    Attributes:
        graph: What the ``forward`` does.
        read: The module's plain attributes that it read, whose values the graph has for good.
    """

    graph: fx.Graph
    read: frozenset[str]


class _Shallow(fx.Tracer):
    """Follows a module's own ``forward``; its children are called, not followed."""

    proxy_buffer_attributes = True  # a buffer is read in every call, not once

    def __init__(self) -> None:
        super().__init__()
        self._contexts = contexts()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        for words, value in contexts().items():
            if value != self._contexts[words]:
                raise UntraceableError(words)
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        del m, module_qualified_name
        return True


def traced(module: nn.Module, given: Given = Given()) -> Traced:  # noqa: B008
    """Trace a module's own ``forward``, which must be the same in training and in evaluation.

    Optional arguments that are never given stay at their defaults. The module is left as it was.

    Raises:
        UntraceableError: The graph would not be the same function in every call; says why.
    """
    reads, graphs = Reads(module), list[fx.Graph]()
    try:
        for own, switched in itertools.product((True, False), (True, False)):
            graphs.append(_graph_with(module, given, reads, {""} if own else (), switched))
        trained = _graphs_of_flags(module, given, reads)
    except UntraceableError:
        raise
    except DrawError as error:
        raise UntraceableError(
            "its forward draws random numbers: a trace would keep them"
        ) from error
    except Exception as error:  # anything may go wrong where a proxy stands for a tensor
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UntraceableError(f"its forward cannot be traced ({reason})") from error
    if reads.foreign:
        raise UntraceableError(
            f"its forward asks a {reads.foreign} that is none of its parts whether it is in "
            "training: register it as a module"
        )
    if str(graphs[1]) != str(graphs[0]) or not follow_training(graphs[-1], *trained):
        raise UntraceableError(
            "its forward differs between training and evaluation; hand self.training to a function "
            "(functional.dropout(x, p, self.training)) or use nn.Dropout in place of a branch"
        )
    guard_values(graphs[-1], reads, type(module).__name__)
    _guard(graphs[-1], module, given.never)
    return Traced(graphs[-1], reads.own)


def _graph_with(
    module: nn.Module, given: Given, reads: Reads, training: Collection[str], switched: bool = False
) -> fx.Graph:
    """Trace a module where some of its parts are in training, and all others are not."""
    with _as_it_was(module), all_switched(switched), no_draws(module):
        for name, part in module.named_modules():
            part.training = name in training
        before = StateBefore(module)
        graph = _own_graph(module, given.never, reads)
        change = _kept_tensors(module) or before.change()
        _check_sometimes(module, given, graph)
    if change:
        raise UntraceableError(change)
    return graph


def _graphs_of_flags(
    module: nn.Module, given: Given, reads: Reads
) -> tuple[dict[str, fx.Graph], fx.Graph]:
    """Return the graphs where one flag alone is on, of those that are read, and where all are."""
    everything = _graph_with(module, given, reads, [name for name, _ in module.named_modules()])
    found: dict[str, fx.Graph] = {}
    while left := reads.flags - found.keys():  # with one flag on, others may be read
        found.update((name, _graph_with(module, given, reads, {name})) for name in sorted(left))
    return {f"{name}.{FLAG}".lstrip("."): graph for name, graph in found.items()}, everything


@contextmanager
def _as_it_was(module: nn.Module) -> Iterator[None]:
    """Put a module's fields back: its ``forward`` may store what stands for its input.

    Of its parts, the training flags are put back.
    """
    holders = [vars(module), module._parameters, module._buffers]
    before = [dict(holder) for holder in holders]
    flags = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for holder, values in zip(holders, before, strict=True):
            holder.clear()
            holder.update(values)
        for part, training in flags:
            part.training = training


def _kept_tensors(module: nn.Module) -> str:
    """Return whether torch.fx keeps tensors that a ``forward`` made, as a clause; "" if not."""
    if any(name.startswith("_tensor_constant") for name in vars(module)):
        return "its forward makes tensors that do not depend on its input: a trace would keep them"
    return ""


def _own_graph(module: nn.Module, left_out: Collection[str], reads: Reads) -> fx.Graph:
    """Trace a module; what its ``forward`` only passes on, as **kwargs, is left out."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": _forward(kind, left_out)})
    try:
        with reads.watching():
            return _Shallow().trace(module)
    finally:
        module.__class__ = kind


def _forward(kind: type[nn.Module], left_out: Collection[str]) -> Callable[..., Any]:
    """Return the ``forward`` of a class with the arguments that are traced."""
    parameters = inspect.signature(kind.forward).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(named) == len(parameters) and not left_out:
        return kind.forward
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
    made: Callable[..., Any] = scope["forward"]
    return made


def _check_sometimes(module: nn.Module, given: Given, graph: fx.Graph) -> None:
    """Raise where a ``forward`` asks whether an argument that is sometimes given was given."""
    if not given.sometimes:
        return
    defaults = optional_arguments(module)
    without = _own_graph(module, {*given.never, *given.sometimes}, Reads(module))
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
