"""Whether an addition is that of a shortcut and a residual mapping, as autograd's graph tells.

A shortcut is the identity or a projection of something that the other term was computed from. A
projection has no activation: it is made of linear maps, normalisation, pooling, and padding with
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

NO_TENSORS = "it does not add tensors"  # as of two numbers, which no one asks about
_NO_GRADIENTS = (
    "gradients are switched off where it runs, as by torch.no_grad or by gradient checkpointing "
    "with use_reentrant=True; convert the network without it"
)
# Steps of autograd that a projection may take, where one input of theirs depends on the images.
_PROJECTIONS = (
    "Convolution",
    "Addmm",
    "Mm",
    "Bmm",
    "BatchNorm",
    "GroupNorm",
    "LayerNorm",
    "RmsNorm",
    "AvgPool",
    "MaxPool",
    "MeanBackward",
    "View",
    "Reshape",
    "Permute",
    "Transpose",
    "TBackward",
    "Clone",
    "Slice",
    "Pad",
    "CatBackward",
    "AddBackward",
    "SubBackward",
    "MulBackward",
    "DivBackward",
    "ToCopy",
    "Alias",
    "Unsqueeze",
    "Squeeze",
    "Upsample",
    "Expand",
)


def no_residual(one: Any, two: Any) -> str:
    """Return why an addition of these is no residual mapping; "" if it is one."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return NO_TENSORS
    if not torch.is_grad_enabled():
        return _NO_GRADIENTS
    if not one.requires_grad or not two.requires_grad:
        return "a term does not depend on the images"
    if one.shape != two.shape:
        return f"its terms differ in shape, {tuple(one.shape)} and {tuple(two.shape)}"
    if _comes_from(two, projected(one)) or _comes_from(one, projected(two)):
        return ""
    return "neither term is a shortcut of what the other is computed from"


def joins(one: Any, others: Sequence[Any]) -> bool:
    """Return whether a tensor and one of some others are a shortcut and what it goes around."""
    if not isinstance(one, Tensor) or not one.requires_grad:
        return False
    dependent = (x for x in others if isinstance(x, Tensor) and x.requires_grad)
    return any(
        _comes_from(other, projected(one)) or _comes_from(one, projected(other))
        for other in dependent
        if other.ndim == one.ndim
    )


def projected(x: Tensor) -> list[Any]:
    """Return the autograd nodes of a tensor and of what it is a projection of, step by step."""
    return _projected(node_of(x))


def _projected(node: Any) -> list[Any]:
    found = []
    while node is not None:
        found.append(node)
        sources = [source for source, _ in node.next_functions if source is not None]
        if not any(word in node.name() for word in _PROJECTIONS):
            break
        if len(sources) > 1 and "CatBackward" in node.name():
            # Parts that are put side by side project what all of them project, as of x and 0 * x.
            first, *others = (_projected(source) for source in sources)
            return found + [step for step in first if all(step in other for other in others)]
        if len(sources) != 1:
            break
        node = sources[0]
    return found


def _comes_from(x: Tensor, sources: list[Any]) -> bool:
    wanted = set(sources)
    return any(node in wanted for node in steps(x))


def concatenates(logits: Any) -> bool:
    """Return whether activations were concatenated on the way to the logits."""
    if not isinstance(logits, Tensor) or not logits.requires_grad:
        return False
    return any("CatBackward" in node.name() for node in steps(logits))


def steps(x: Tensor) -> Iterator[Any]:
    """Yield the autograd nodes that a tensor was computed by."""
    left, seen = [node_of(x)], set()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            left += [source for source, _ in node.next_functions]


def node_of(x: Tensor) -> Any:
    """Return where a tensor stands in autograd's graph; of a leaf, where its gradient gathers."""
    if x.grad_fn is not None:
        return x.grad_fn
    return x.view_as(x).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
