"""Other models to take the gradient of, when it is this one that is to be fooled.

A defence by noise or by averaging may hide from its own gradient. So the attacker who knows it also
tries: the network with its noise off; the output averaged over draws, whose gradient is another
than the mean gradient; each member alone; and the sum of the members' losses, which pulls on those
that the average has given up. What they find is judged on the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from enresnet.attacks.gradient import Model, logits_of, module_of
from enresnet.models import Ensemble
from enresnet.models.noise import noise_modules, without_noise


@dataclass(frozen=True)
class Surrogate:
    """A model to take gradients of."""

    name: str
    model: Model
    cost: float  # of a gradient, in gradients of the model itself
    random: bool  # whether it needs an average over draws
    within: Callable[[], AbstractContextManager[None]] = nullcontext


def surrogates(model: Model, eot: int, *, deterministic: bool) -> dict[str, Surrogate]:
    """Return what can stand in for ``model``, by name; ``"itself"`` comes first."""
    found = [Surrogate("itself", model, 1, not deterministic)]
    module = module_of(model)
    if module is not None and any(place.noise > 0 for place in noise_modules(module)):
        found.append(Surrogate("noise off", model, 1, False, lambda: without_noise(module)))
    if not deterministic:
        found.append(Surrogate("averaged output", averaged_output(model, eot), eot, False))
    if isinstance(module, Ensemble) and len(module.members) > 1:
        members = list(module.members)
        found.append(Surrogate("members' losses", summed_losses(members), 1, not deterministic))
        found += [
            Surrogate(f"member {number}", member, 1 / len(members), not deterministic)
            for number, member in enumerate(members, 1)
        ]
    return {surrogate.name: surrogate for surrogate in found}


def averaged_output(model: Model, draws: int) -> Model:
    """Return the model whose prediction is the mean of ``draws`` predictions."""

    def averaged(images: Tensor) -> Tensor:
        runs = torch.stack([logits_of(model(images)).log_softmax(dim=1) for _ in range(draws)])
        return runs.logsumexp(dim=0)

    return averaged


def summed_losses(members: Sequence[Model]) -> Model:
    """Return a model whose cross-entropy is the mean of its members'.

    Its logits are the members' mean log-probabilities, and for one class more the logarithm of what
    is missing to a sum of 1: so the softmax leaves them as they are.
    """

    def losses(images: Tensor) -> Tensor:
        runs = torch.stack([member(images).double().log_softmax(dim=1) for member in members])
        mean = runs.mean(dim=0)
        rest = (1 - mean.exp().sum(dim=1, keepdim=True)).clamp_min(1e-12)
        return torch.cat([mean, rest.log()], dim=1)

    return losses
