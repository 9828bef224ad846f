r"""The graph of a network with BatchNorm folded away, in one type of numbers.

It is made once. In training it takes the weights of each step: making it takes as long as a pass,
and what a graph holds is freed late, since it refers to itself.

In evaluation BatchNorm is an affine map, and goes into the weights of the convolution before it:

.. math:: \gamma \frac{w \otimes x - \mu}{\sqrt{v + \epsilon}} + \beta = w' \otimes x + b'
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights

from enresnet.models.frozen.fuse_graph import fuse_graph
from enresnet.models.noise import NoiseInjection

LAST = torch.channels_last


class FoldedGraph:
    """A network as one graph: BatchNorm folded away, in one type, channels last.

    Noise modules are the network's own, with its stream; all else is copied. In reduced precision
    the last linear map stays in float32: few bits tell logits apart badly.

    Args:
        network: In evaluation mode.
        graph: Its graph.
        dtype: The type to compute in.
        device: Where the network is.
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(
        self, network: nn.Module, graph: fx.Graph, dtype: torch.dtype, device: torch.device
    ) -> None:
        graph = copy.deepcopy(graph)
        modules = dict(network.named_modules())
        new: dict[str, Any] = {}
        self._dtype = dtype
        self._batchnorms: dict[str, str] = {}  # of convolutions, by name: what is folded into them
        for node in list(graph.nodes):
            if node.op != "call_module":
                continue
            target = str(node.target)
            module = modules[target]
            if isinstance(module, NoiseInjection):
                new[target] = module
            elif (convolution := _convolution_before(node, graph, modules)) is not None:
                name = str(convolution.target)
                new[name] = fuse_conv_bn_eval(new[name], module)
                self._batchnorms[name] = target
                node.replace_all_uses_with(convolution)
                graph.erase_node(node)
            elif target not in new:
                new[target] = copy.deepcopy(module)
        last = _last_linear(graph, modules) if dtype != torch.float32 else None
        for target, module in new.items():
            if not isinstance(module, NoiseInjection):
                module.to(torch.float32 if last is not None and target == last.target else dtype)
                if isinstance(module, nn.Conv2d):
                    module.to(memory_format=LAST)  # type: ignore[call-overload]
                module.requires_grad_(False)
        if last is not None:
            with graph.inserting_before(last):
                wide = graph.call_method("float", (last.args[0],))
            last.args = (wide, *last.args[1:])
        self._constants: dict[str, Tensor] = {}  # parameters and buffers that a forward reads
        for node in graph.nodes:
            if node.op == "get_attr":
                value = _attribute(network, str(node.target)).detach().clone()
                self._constants[str(node.target)] = (
                    value.to(dtype) if value.is_floating_point() else value
                )
        self.whole = fx.GraphModule(new | self._constants, graph).eval()
        self._fused = fuse_graph(self.whole, dtype, device)
        names = {name for name, _ in self._fused}
        self._copies = {
            name: module
            for name, module in new.items()
            if name not in names and not isinstance(module, NoiseInjection)
        }

    @torch.inference_mode(False)
    @torch.no_grad()
    def fill(self, network: nn.Module) -> None:
        """Take the weights of the moment; the network must be built as it was."""
        modules = dict(network.named_modules())
        folded = {name: self._folded(name, modules) for name, _ in self._fused}
        for name, module in self._fused:
            module.fill(*folded[name])
        for name, module in self._copies.items():
            if name in self._batchnorms:
                weight, bias = self._folded(name, modules)
                module.weight.copy_(weight)
                module.bias.copy_(bias)
            else:
                for copied, own in zip(_tensors(module), _tensors(modules[name]), strict=True):
                    copied.copy_(own)
        for name, constant in self._constants.items():
            constant.copy_(_attribute(network, name))

    def _folded(self, name: str, modules: dict[str, Any]) -> tuple[Tensor, Any]:
        """Return weights and bias of a convolution, copies, with its BatchNorm folded into them."""
        weight, bias = modules[name].weight, modules[name].bias
        if name in self._batchnorms:
            bn = modules[self._batchnorms[name]]
            weight, bias = fuse_conv_bn_weights(
                weight, bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
            )
        weight = weight.detach().to(self._dtype, copy=True, memory_format=LAST)
        return weight, None if bias is None else bias.detach().to(self._dtype, copy=True)


def _convolution_before(
    node: fx.Node, graph: fx.Graph, modules: dict[str, nn.Module]
) -> fx.Node | None:
    """Return the convolution that a BatchNorm alone follows and can be folded into."""
    module, before = modules[str(node.target)], node.args[0] if node.args else None
    if (
        type(module) not in (nn.BatchNorm2d, nn.SyncBatchNorm)
        or module.running_mean is None
        or not isinstance(before, fx.Node)
        or before.op != "call_module"
        or type(modules[str(before.target)]) is not nn.Conv2d
        or len(before.users) != 1
    ):
        return None
    uses = [n for n in graph.nodes if n.op == "call_module" and n.target == before.target]
    return before if len(uses) == 1 else None


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


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
