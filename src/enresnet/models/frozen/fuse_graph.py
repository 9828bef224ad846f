"""Convolutions of a traced graph, each with the ReLU that follows it, as one operation on the CPU.

Their weights are put in the library's order once (ordered_convolution.py), and autograd keeps one
tensor for both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

from enresnet.models.frozen.fold import Convolution
from enresnet.models.frozen.known_operations import may_make_nan
from enresnet.models.frozen.ordered_convolution import OrderedConvolution, computes_in

_RELU_FUNCTIONS = (torch.relu, torch.relu_, functional.relu, functional.relu_)
_RELU_METHODS = ("relu", "relu_")


def fuse_graph(
    whole: fx.GraphModule, dtype: torch.dtype, device: torch.device
) -> list[tuple[str, FusedConvolution]]:
    """Replace the convolutions of a folded graph, where the library has the fused operation.

    Returns:
        The names of the convolutions and the modules that replace them; two for one used twice.
    """
    fused: list[tuple[str, FusedConvolution]] = []
    if device.type != "cpu" or not computes_in(dtype):
        return []
    keeps_nan = may_make_nan(whole.graph)  # the fused ReLU makes 0 of it
    for node in list(whole.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        convolution = whole.get_submodule(str(node.target))
        if not _is_plain(convolution, dtype):
            continue
        relu = None if keeps_nan else _relu_after(whole, node)
        module = FusedConvolution(convolution, relu=relu is not None)
        fused.append((str(node.target), module))
        node.target = f"fused_{len(whole._modules)}"
        whole.add_submodule(node.target, module)
        if relu is not None:
            relu.replace_all_uses_with(node)
            whole.graph.erase_node(relu)
    whole.delete_all_unused_submodules()
    whole.recompile()
    return fused


def _is_plain(module: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether a module is a convolution that the fused operation computes."""
    return bool(
        type(module) is nn.Conv2d
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.weight.dtype == dtype
    )


def _relu_after(whole: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return the ReLU that alone uses a node's result, if that is so."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    if user.op == "call_module":
        found = type(whole.get_submodule(str(user.target))) is nn.ReLU
    elif user.op == "call_function":
        found = user.target in _RELU_FUNCTIONS
    else:
        found = user.op == "call_method" and user.target in _RELU_METHODS
    return user if found else None


class FusedConvolution(nn.Module):
    """A convolution, with the ReLU after it or without; its weights want no gradient."""

    def __init__(self, convolution: nn.Module, *, relu: bool) -> None:
        super().__init__()
        assert isinstance(convolution, nn.Conv2d)
        self.stride = (convolution.stride[0], convolution.stride[1])
        self.padding = (int(convolution.padding[0]), int(convolution.padding[1]))
        self.relu = relu
        bias = convolution.bias
        self.fill(convolution.weight.detach(), None if bias is None else bias.detach())

    def fill(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take these weights; what was computed with those before keeps them for its gradient."""
        layer = Convolution(weight, bias, self.stride, self.padding)
        self.ordered = OrderedConvolution(layer, matrices=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of ``x``, and the ReLU of it where that follows."""
        out: Tensor = _Convolved.apply(x, self)  # type: ignore[no-untyped-call]
        return out


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, module: FusedConvolution) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        out = module.ordered(x, "relu" if module.relu else "none")
        if ctx.needs_input_grad[0]:
            ctx.ordered = module.ordered
            ctx.save_for_backward(x, *([out] if module.relu else []))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, *out = ctx.saved_tensors
        if out:
            gradient = torch.ops.aten.threshold_backward(gradient, out[0], 0)
        ordered: OrderedConvolution = ctx.ordered
        if torch.is_grad_enabled():  # a second derivative is wanted: torch's own operation has one
            layer, size = ordered.layer, list(x.shape)
            return conv2d_input(size, layer.weight, gradient, layer.stride, layer.padding), None
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        return ordered.back(gradient, x), None
