"""Probes in a copy of a network: what is added, and whether the sum reaches the logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from enresnet.models.conversion.additions import replace_first_term, terms
from enresnet.models.conversion.example import answer_of_copy
from enresnet.models.conversion.shortcuts import joins, no_residual, node_of, steps


@dataclass
class Seen:
    """What a pass of images met at one place.

    Attributes:
        reasons: Of each time, why the terms are no residual mapping; "" where they are.
        sums: Where the sums stand in autograd's graph.
        disturbed: Whether sums are changed at random, to see whether that changes the logits.
    """

    reasons: list[str] = field(default_factory=list)
    sums: list[Any] = field(default_factory=list)
    disturbed: bool = False

    def reaches(self, logits: Any, probed: nn.Module, images: Tensor, model: nn.Module) -> bool:
        """Return whether the logits depend on a sum: by autograd, or as a change of it tells."""
        if isinstance(logits, Tensor) and logits.requires_grad:
            behind = set(steps(logits))
            if any(node in behind for node in self.sums):
                return True
        self.disturbed = True
        try:
            other = answer_of_copy(probed, images, model)
        finally:
            self.disturbed = False
        return not torch.equal(logits, other)


class _Terms(nn.Module):
    """Remembers what the terms of an addition are, before they are added."""

    def __init__(self, seen: Seen, *, fused: bool = False) -> None:
        super().__init__()
        self._seen, self._fused = seen, fused

    def forward(self, one: Any, *others: Any) -> Any:
        if self._fused:
            self._seen.reasons.append("" if joins(one, others) else "no sum of a shortcut")
        else:
            self._seen.reasons.append(no_residual(one, *others))
        return one


class _Sum(nn.Module):
    """Remembers a sum, or changes it under all of its names."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def forward(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            return
        if x.requires_grad:
            self._seen.sums.append(node_of(x))
        if self._seen.disturbed and x.is_floating_point():
            draws = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
            with torch.no_grad():
                x.add_(draws.to(x))


def probe_addition(module: nn.Module, graph: fx.Graph, node: fx.Node) -> Seen:
    """Let probes see the terms of an addition, and the sum."""
    seen = Seen()
    module.add_module(f"probe_{node.name}", _Terms(seen))
    module.add_module(f"probe_sum_{node.name}", _Sum(seen))
    with graph.inserting_after(node):
        graph.call_module(f"probe_sum_{node.name}", (node,))
    with graph.inserting_before(node):
        first = graph.call_module(f"probe_{node.name}", terms(node))
    replace_first_term(node, first)
    return seen


def probe_fused(module: nn.Module, graph: fx.Graph, node: fx.Node) -> Seen:
    """Let a probe see what an operation that adds, among other things, is given."""
    seen = Seen()
    module.add_module(f"probe_{node.name}", _Terms(seen, fused=True))
    with graph.inserting_before(node):
        graph.call_module(f"probe_{node.name}", tuple(node.all_input_nodes))
    return seen
