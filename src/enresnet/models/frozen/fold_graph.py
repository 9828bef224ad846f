r"""The graph of a network with BatchNorm folded away, in one type of numbers.

In evaluation BatchNorm is an affine map, and goes into the weights of the convolution before it:

.. math:: \gamma \frac{w \otimes x - \mu}{\sqrt{v + \epsilon}} + \beta = w' \otimes x + b'
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from enresnet.models.noise import NoiseInjection


@torch.no_grad()
def fold_graph(network: nn.Module, graph: fx.Graph, dtype: torch.dtype) -> fx.GraphModule:
    """Return the network as one graph: BatchNorm folded away, in one type, channels last.

    Noise modules are the network's own, with its stream; all else is copied. In reduced precision
    the last linear map stays in float32: few bits tell logits apart badly.
    """
    graph = copy.deepcopy(graph)
    modules = dict(network.named_modules())
    new: dict[str, Any] = {}
    uses: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            uses[str(node.target)] = uses.get(str(node.target), 0) + 1
    for node in list(graph.nodes):
        if node.op != "call_module":
            continue
        target = str(node.target)
        module = modules[target]
        if isinstance(module, NoiseInjection):
            new[target] = module
            continue
        before = node.args[0] if node.args else None
        if (
            type(module) in (nn.BatchNorm2d, nn.SyncBatchNorm)
            and isinstance(before, fx.Node)
            and before.op == "call_module"
            and type(modules[str(before.target)]) is nn.Conv2d
            and len(before.users) == 1
            and uses[str(before.target)] == 1
            and module.running_mean is not None
        ):
            convolution: Any = new[str(before.target)]
            new[str(before.target)] = fuse_conv_bn_eval(convolution, module)
            node.replace_all_uses_with(before)
            graph.erase_node(node)
            continue
        if target not in new:
            new[target] = copy.deepcopy(module)
    last = _last_linear(graph, modules) if dtype != torch.float32 else None
    for target, module in new.items():
        if not isinstance(module, NoiseInjection):
            module.to(torch.float32 if last is not None and target == last.target else dtype)
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            module.requires_grad_(False)
    if last is not None:
        with graph.inserting_before(last):
            wide = graph.call_method("float", (last.args[0],))
        last.args = (wide, *last.args[1:])
    for node in graph.nodes:
        if node.op == "get_attr":
            value = _attribute(network, str(node.target)).detach().clone()
            new[str(node.target)] = value.to(dtype) if value.is_floating_point() else value
    return fx.GraphModule(new, graph).eval()


def _last_linear(graph: fx.Graph, modules: dict[str, nn.Module]) -> fx.Node | None:
    """Return the linear map whose result is the network's, if it is used nowhere else."""
    output = next(node for node in graph.nodes if node.op == "output")
    last = output.args[0]
    if not isinstance(last, fx.Node) or last.op != "call_module":
        return None
    if type(modules[str(last.target)]) is not nn.Linear:
        return None
    same = [node for node in graph.nodes if node.target == last.target]
    return last if len(same) == 1 else None


def _attribute(root: nn.Module, target: str) -> Tensor:
    parent, _, name = target.rpartition(".")
    value: Tensor = getattr(root.get_submodule(parent), name)
    return value
