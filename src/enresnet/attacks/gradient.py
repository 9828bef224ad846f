r"""The gradient with respect to the images, averaged over the model's own noise (EOT).

.. math:: g(x) = \frac{1}{k} \sum_{j=1}^{k} \nabla_x L(f(x; \text{noise}_j), y)

The mean of k gradients, not the gradient at the mean of k outputs: the expected loss is what the
attacker of a randomised model raises (Sec. 4 uses k = 5). Nothing but the images' gradient is
computed. Draws of a network that we can take apart share what comes before the first noise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from enresnet.attacks.failures import ModelFailedError, naming_model
from enresnet.models.frozen import FrozenCall

TOGETHER = 128 * 32 * 32  # pixels of a pass that keeps the cores busy and the caches useful


class NoGradientError(ValueError):
    """A model's output does not depend on the images, as far as torch can tell."""


def expected_gradient(loss: Callable[[Tensor], Tensor], point: Tensor, eot: int = 1) -> Tensor:
    """Return the gradient of ``loss`` at ``point``, averaged over ``eot`` draws of its noise.

    ``loss`` gives one number an example. Examples do not meet: the losses are summed, so each
    one's gradient is its own.
    """
    total: Tensor | None = None
    for _ in range(eot):
        leaf = point.detach().requires_grad_()
        value = loss(leaf).sum()
        gradient = None
        if value.requires_grad:
            (gradient,) = _differentiated(value, leaf)
        if gradient is None:
            raise NoGradientError(
                "model gives no gradient: its output does not depend on the images through torch "
                "operations; was it computed under torch.no_grad, or with numpy?"
            )
        # Not in place: a gradient may be an expanded view, as that of a mean is.
        total = gradient if total is None else total + gradient
    assert total is not None
    return total / eot if eot > 1 else total


def _differentiated(value: Tensor, leaf: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradient, None where there is none; backwards, model and loss are one graph."""
    try:
        return torch.autograd.grad(value, leaf, allow_unused=True)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # such as that memory is out
            raise
        raise ModelFailedError(
            f"the gradient of the model, or of the attack's loss, fails: {error}"
        ) from error


def shared_gradient(
    call: FrozenCall,
    loss: Callable[[Tensor], Tensor],
    point: Tensor,
    eot: int,
    checked: Callable[[Tensor, int], Tensor],
) -> Tensor | None:
    """Return the gradient of a loss over several draws, computed in two parts.

    Up to the first noise all draws are the same: that part runs once forward and once backward,
    and only the rest once a draw. Draws of small batches go through the rest together.

    Args:
        call: A frozen network that treats each image alone.
        loss: From logits N x classes to what is raised, one number an example.
        point: Where, N x C x H x W.
        eot: The number of draws.
        checked: Takes logits and their number, counts and returns them.

    Returns:
        The gradient; None where the network cannot be taken apart so.
    """
    leaf = point.detach().requires_grad_()
    with naming_model(call, leaf):
        shared = call.before_noise(leaf)
    if shared is None:
        return None
    starts = [state.detach().requires_grad_() for state in shared]
    totals: list[Tensor] = []
    together = max(1, TOGETHER // max(1, point[:, :1].numel()))
    for done in range(0, eot, together):
        draws = min(together, eot - done)
        several = [torch.cat([start] * draws) if draws > 1 else start for start in starts]
        with naming_model(call, leaf):
            answers = call.after_noise(several)
        logits = checked(answers, draws * len(point))
        losses = [loss(one).sum() for one in logits.split(len(point))]
        gradients = torch.autograd.grad(torch.stack(losses).sum(), starts)
        # In float32: a long sum of bfloat16 numbers stops growing.
        for total, gradient in zip(totals, gradients, strict=bool(totals)):
            total += gradient
        totals = totals or [_at_least_float32(gradient) for gradient in gradients]
    means = [(t / eot).to(s.dtype) for t, s in zip(totals, starts, strict=True)]
    (result,) = torch.autograd.grad(shared, leaf, means)
    return result


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
