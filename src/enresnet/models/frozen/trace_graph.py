"""The torch.fx graph of a whole network, where that is the same function whenever it is called.

A ``forward`` that branches on its input, draws numbers, or keeps something between calls has no
such graph: :class:`UnsuitableError` says which of these it does.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from enresnet.models.frozen.fold import is_listened_to
from enresnet.models.frozen.known_operations import unknown_in
from enresnet.models.noise import NoiseInjection
from enresnet.models.side_effects import StateBefore

_RESHAPES = {"view": "reshape", "view_as": "reshape_as"}


class UnsuitableError(Exception):
    """The network cannot be traced, or its copy is not the same function; says why."""


class LogitsOnly(nn.Module):
    """A network whose output is its logits, whatever holds them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = False

    def forward(self, images: Any) -> Any:
        """Return the logits; while tracing they are a proxy, which stands for a tensor."""
        output = self.network(images)
        if isinstance(output, Tensor | fx.Proxy):
            return output
        if isinstance(output, Mapping):
            return output["logits"]
        return output[0] if isinstance(output, tuple) else output.logits


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, NoiseInjection) or super().is_leaf_module(m, module_qualified_name)


def trace(network: nn.Module) -> fx.Graph:
    """Return the graph of a whole network, from images to logits.

    Raises:
        UnsuitableError: The network may not be the same function in every call.
    """
    for module in network.modules():
        if module.training:
            raise UnsuitableError("it is in training mode")
        if is_listened_to(module) and not isinstance(module, fx.GraphModule):
            raise UnsuitableError(f"{type(module).__name__} has hooks, or a forward of its own")
    graphs = [_traced_once(network) for _ in range(2)]
    if str(graphs[0]) != str(graphs[1]):
        raise UnsuitableError("its forward is not the same each time")
    graph = graphs[0]
    if unknown := unknown_in(graph, LogitsOnly(network)):
        raise UnsuitableError(f"its forward uses {unknown}")
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if not placeholders or any(node.users and not node.args for node in placeholders[1:]):
        raise UnsuitableError("its forward takes more than images")
    return graph


def is_graph_of(graph: fx.Graph, network: nn.Module) -> bool:
    """Return whether a graph, as :func:`trace` returned it, is still that of the network.

    What a forward reads as a plain number, wherever it is kept, stands in the graph.
    """
    return str(_traced_once(network)) == str(graph)


def _traced_once(network: nn.Module) -> fx.Graph:
    # A copy, which shares the weights alone: a forward may store its input, here a proxy, and
    # what it does to a buffer is done while it is traced.
    shared = {id(parameter): parameter for parameter in network.parameters()}
    try:
        copied = copy.deepcopy(network, shared)
        before = StateBefore(copied)
        graph = _Tracer().trace(LogitsOnly(copied))
    except Exception as error:  # anything may go wrong where a proxy stands for a tensor
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnsuitableError(f"its forward cannot be traced ({reason})") from error
    if change := before.change():
        raise UnsuitableError(change)
    for node in graph.nodes:
        # The copy computes in another memory format, where a view may have to be a copy.
        types = any(isinstance(argument, torch.dtype) for argument in node.args)
        if node.op == "call_method" and node.target in _RESHAPES and not types:
            node.target = _RESHAPES[node.target]
    return graph
