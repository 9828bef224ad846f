"""Operations that are deterministic and keep no state: a network made of them may be traced."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from enresnet.models.noise import NoiseInjection


def _named(place: Any, names: str) -> set[Any]:
    return {getattr(place, name) for name in names.split() if hasattr(place, name)}


MODULES: frozenset[type] = frozenset(
    _named(
        nn,
        "Conv1d Conv2d ConvTranspose2d BatchNorm1d BatchNorm2d SyncBatchNorm GroupNorm LayerNorm "
        "Linear Identity Flatten Unflatten Dropout Dropout1d Dropout2d AlphaDropout "
        "ReLU ReLU6 LeakyReLU PReLU ELU CELU SELU GELU SiLU Mish Softplus Softsign Tanh Sigmoid "
        "Hardswish Hardsigmoid Hardtanh LogSigmoid Softmax LogSoftmax "
        "MaxPool2d AvgPool2d LPPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d "
        "Upsample UpsamplingBilinear2d UpsamplingNearest2d PixelShuffle PixelUnshuffle "
        "ZeroPad2d ReflectionPad2d ReplicationPad2d ConstantPad2d LocalResponseNorm",
    )
)
FUNCTIONS: frozenset[Any] = frozenset(
    _named(
        operator,
        "add iadd sub isub mul imul truediv itruediv floordiv mod neg pow getitem matmul eq ne",
    )
    | _named(
        torch,
        "add sub mul div neg pow abs sqrt rsqrt exp log square clamp maximum minimum "
        "relu relu_ sigmoid tanh softmax log_softmax mean sum amax amin var std "
        "matmul bmm addmm baddbmm einsum cat stack chunk split unbind flatten reshape permute "
        "transpose unsqueeze squeeze narrow movedim _assert where addcmul roll flip "
        "avg_pool1d conv1d conv2d batch_norm layer_norm group_norm",
    )
    | _named(
        functional,
        "relu relu_ relu6 leaky_relu elu celu selu gelu silu mish softplus hardswish hardsigmoid "
        "hardtanh tanh sigmoid softmax log_softmax logsigmoid prelu "
        "linear conv1d conv2d conv_transpose2d batch_norm layer_norm group_norm instance_norm "
        "normalize avg_pool2d max_pool2d adaptive_avg_pool2d adaptive_max_pool2d lp_pool2d "
        "pad interpolate unfold pixel_shuffle pixel_unshuffle scaled_dot_product_attention "
        "dropout dropout1d dropout2d alpha_dropout local_response_norm",
    )
    | {getattr}
)
METHODS = frozenset(
    "add add_ sub sub_ mul mul_ div div_ neg pow square sqrt rsqrt exp log abs clamp clamp_ "
    "relu relu_ sigmoid tanh softmax log_softmax mean sum amax amin var std norm "
    "matmul bmm view reshape flatten permute transpose t contiguous size dim unsqueeze squeeze "
    "expand expand_as repeat chunk split unbind narrow movedim type_as float to view_as".split()
)
_IN_PLACE = frozenset(
    {operator.iadd, operator.isub, operator.imul, operator.itruediv}
    | _named(torch, "relu_")
    | _named(functional, "relu_")
)
# A logarithm or root of what may be negative, and what overflows.
_UNBOUNDED = frozenset("log sqrt rsqrt pow exp".split())
_DIVISIONS = frozenset("div truediv itruediv floordiv mod".split())
# These are random unless ``training`` is False.
_DROPS = frozenset(_named(functional, "dropout dropout1d dropout2d alpha_dropout"))
_NORMS = frozenset({functional.batch_norm, torch.batch_norm})


def unknown_in(graph: fx.Graph, root: nn.Module) -> str:
    """Return what a graph does that is not known to answer twice the same; "" if nothing."""
    own = {name for name, _ in root.named_parameters()} | {n for n, _ in root.named_buffers()}
    for node in graph.nodes:
        if changes_in_place(node, root) and not node.users:
            return "a change in place whose result is not used"
        if node.op == "call_module":
            module = root.get_submodule(str(node.target))
            if type(module) not in MODULES and not isinstance(module, NoiseInjection):
                return f"a module {type(module).__name__}"
        elif node.op == "call_function":
            if _is_stochastic_depth(node.target):
                if _flag(node, "training", 3):
                    return "stochastic depth that is never off"
            elif node.target not in FUNCTIONS:
                return f"the function {getattr(node.target, '__name__', node.target)}"
            if node.target in _DROPS and _flag(node, "training", 2):
                return "dropout that is never off"
            if node.target in _NORMS and _flag(node, "training", 5):
                return "batch statistics in evaluation"
            if node.target is functional.scaled_dot_product_attention and _flag(
                node, "dropout_p", 4, default=0.0
            ):
                return "dropout that is never off"
        elif node.op == "call_method":
            if node.target not in METHODS:
                return f"the method {node.target}"
        elif node.op == "get_attr" and node.target not in own:
            return "a tensor that it makes anew in every call"
    return ""


def may_make_nan(graph: fx.Graph) -> bool:
    """Return whether an operation may turn finite numbers that depend on the images into NaN."""
    seen: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or any(source in seen for source in node.all_input_nodes):
            seen.add(node)
        if node not in seen or node.op not in ("call_function", "call_method"):
            continue
        name = getattr(node.target, "__name__", str(node.target)).strip("_")
        divisor = node.args[1] if len(node.args) > 1 else None
        if name in _UNBOUNDED or (name in _DIVISIONS and divisor in seen):
            return True
    return False


def _is_stochastic_depth(target: Any) -> bool:
    """Return whether a function is torchvision's, which a tracer does not enter."""
    place = getattr(target, "__module__", "")
    return place == "torchvision.ops.stochastic_depth" and target.__name__ == "stochastic_depth"


def changes_in_place(node: fx.Node, root: nn.Module) -> bool:
    """Return whether a node writes its result over its first argument."""
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    if node.op != "call_function":
        return False
    return node.target in _IN_PLACE or bool(node.kwargs.get("inplace", False))


def _flag(node: fx.Node, name: str, place: int, *, default: Any = True) -> bool:
    """Return whether a call has something switched on; what cannot be seen counts as on."""
    value = node.kwargs.get(name, node.args[place] if len(node.args) > place else default)
    return not (value is False or value == 0)
