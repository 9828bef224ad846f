r"""Adversarial weight perturbation (Wu et al., 2020): a flat minimum in the weights.

.. math:: \min_w \max_{\|v_l\| \le \gamma \|w_l\|} L(w + v), \qquad
          v_l = \gamma \|w_l\| \frac{\nabla_{w_l} L}{\|\nabla_{w_l} L\|}

A wrapper around any objective: the same crafted images give the direction v and then the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from enresnet.models.batchnorm_statistics import statistics_held
from enresnet.training.objectives import Objective
from enresnet.training.recipe import Recipe

GAMMA = {"trades": 0.005}
OTHERWISE = 0.01


def default_gamma(recipe: Recipe) -> float:
    """Return the recipe's gamma, or the authors' for its objective."""
    if recipe.awp_gamma is not None:
        return recipe.awp_gamma
    return GAMMA.get(recipe.objective, OTHERWISE)


@contextmanager
def perturbed_weights(
    objective: Objective,
    model: nn.Module,
    batch: tuple[Tensor, Tensor, Tensor],
    *,
    gamma: float,
    reduce: Callable[[Tensor], Tensor] = lambda gradient: gradient,
) -> Iterator[None]:
    """Run the block with the weights moved by gamma up the loss; restore them after.

    ``batch`` is the clean images, the crafted ones and the labels. ``reduce`` sums the gradients
    of several processes, whose weights must stay equal.
    """
    # Matrices and kernels only: a BatchNorm's scale has no norm to be measured by.
    weights = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    with statistics_held(model):
        loss, _ = objective.loss(model, *batch)
        gradients = torch.autograd.grad(loss, weights)
    moves = []
    for weight, gradient in zip(weights, gradients, strict=True):
        gradient = reduce(gradient)
        length = gradient.norm()
        scale = gamma * weight.detach().norm() / length if length > 0 else torch.zeros_like(length)
        moves.append(gradient * scale)
    before = [weight.detach().clone() for weight in weights]
    try:
        with torch.no_grad():
            for weight, move in zip(weights, moves, strict=True):
                weight.add_(move)
        yield
    finally:
        with torch.no_grad():  # copied back, not subtracted: bit for bit
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)
