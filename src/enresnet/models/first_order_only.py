"""What gives a gradient but not the gradient's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def first_only(instead: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a backward pass refuse to be part of a graph; ``instead`` says what users can do.

    Not torch's ``once_differentiable``: its error hangs on a node that ``torch.autograd.grad``
    leaves out, so that a second derivative comes out as 0.
    """

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def checked(ctx: Any, *gradients: Any) -> Any:
            if torch.is_grad_enabled():  # so it is where create_graph=True
                raise RuntimeError(
                    f"create_graph=True: no second derivative is available here; {instead}"
                )
            return backward(ctx, *gradients)

        return checked

    return decorate


LOOPS = "ENRESNET_NATIVE=0 in the environment takes torch's own operations, which have one"
