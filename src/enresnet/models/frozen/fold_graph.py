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
        self._constants = _read_as_modules(graph)
        for name, constant in self._constants.items():
            constant.fill(_attribute(network, name), dtype)
        called = {constant.name: constant for constant in self._constants.values()}
        self.whole = fx.GraphModule(new | called, graph).eval()
        self._fused = fuse_graph(self.whole, dtype, device)
        left = {str(node.target) for node in self.whole.graph.nodes if node.op == "call_module"}
        self._copies = {
            name: module
            for name, module in new.items()
            if name in left and not isinstance(module, NoiseInjection)
        }

    @torch.inference_mode(False)
    @torch.no_grad()
    def fill(self, network: nn.Module) -> None:
        """Take the weights of the moment; the network must be built as it was.

        Tensors are replaced, not written over: a gradient may still be wanted of what was computed
        with those before.
        """
        modules = dict(network.named_modules())
        folded = {name: self._folded(name, modules) for name, _ in self._fused}
        for name, module in self._fused:
            module.fill(*folded[name])
        for name, module in self._copies.items():
            if name in self._batchnorms:
                weight, bias = self._folded(name, modules)
                module.weight, module.bias = _fixed(weight), _fixed(bias)
            else:
                for copied, own in zip(module.modules(), modules[name].modules(), strict=True):
                    _replace(copied, own)
        for name, constant in self._constants.items():
            constant.fill(_attribute(network, name), self._dtype)

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


class Constant(nn.Module):
    """A parameter or buffer that a forward reads; graphs that share the module share its value."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.value: Tensor

    def fill(self, value: Tensor, dtype: torch.dtype) -> None:
        """Take a copy of this value, in ``dtype`` if it is a floating-point number."""
        kind = dtype if value.is_floating_point() else value.dtype
        self.value = value.detach().to(kind, copy=True)

    def forward(self) -> Tensor:
        """Return the value."""
        return self.value


def _read_as_modules(graph: fx.Graph) -> dict[str, Constant]:
    """Replace each read of an attribute by the call of a module; return these by attribute."""
    found: dict[str, Constant] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            name = str(node.target)
            constant = found.setdefault(name, Constant(f"constant_{len(found)}"))
            with graph.inserting_before(node):
                call = graph.call_module(constant.name)
            node.replace_all_uses_with(call)
            graph.erase_node(node)
    return found


def _fixed(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)


def _replace(copied: nn.Module, own: nn.Module) -> None:
    """Give a copied module the values of its own, in the types that it has."""
    for name, weight in copied._parameters.items():
        if weight is not None:
            copied._parameters[name] = _fixed(_like(weight, own.get_parameter(name)))
    for name, buffer in copied._buffers.items():
        if buffer is not None:
            copied._buffers[name] = _like(buffer, own.get_buffer(name))


def _like(value: Tensor, now: Tensor) -> Tensor:
    """Return a copy of ``now`` with the type and the memory format of ``value``."""
    return torch.empty_like(value).copy_(now.detach())


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
