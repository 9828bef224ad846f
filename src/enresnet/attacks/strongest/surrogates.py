"""Other models whose gradients help to fool this one.

A defence by noise or by averaging may hide from its own gradient. So the attacker who knows it also
tries: the network with its noise off; the output averaged over draws, whose gradient is another
than the mean gradient; each member alone; and the sum of the members' losses, which pulls on those
that the average has given up. What they find is judged on the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enresnet.models import Ensemble, without_noise
from enresnet.models.frozen import FrozenEnsemble
from enresnet.models.interface import Model, module_of
from enresnet.models.noise import noise_modules

Call = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Surrogate:
    """A model to take gradients of."""

    name: str
    model: Model  # what is asked whether it is deterministic
    call: Call  # what its logits come from
    cost: float  # of a gradient, in gradients of the model itself
    random: bool  # whether it needs an average over draws
    within: Callable[[], AbstractContextManager[None]] = nullcontext


def surrogates(model: Model, call: Call, eot: int, *, deterministic: bool) -> dict[str, Surrogate]:
    """Return what can stand in for a frozen model, by name; ``"itself"`` comes first."""
    found = [Surrogate("itself", model, call, 1, not deterministic)]
    module = module_of(model)
    if module is not None and any(place.noise > 0 for place in noise_modules(module)):
        found.append(Surrogate("noise off", model, call, 1, False, lambda: without_noise(module)))
    if not deterministic:
        mean = averaged_output(call, eot)
        found.append(Surrogate("averaged output", mean, mean, eot, False))
    if isinstance(module, Ensemble) and len(module.members) > 1:
        modules = list(module.members)
        members: Sequence[Call] = call.members if isinstance(call, FrozenEnsemble) else modules
        total = summed_losses(members)
        found.append(Surrogate("members' losses", total, total, 1, not deterministic))
        found += [
            Surrogate(f"member {number}", own, member, 1 / len(members), not deterministic)
            for number, (own, member) in enumerate(zip(modules, members, strict=True), 1)
        ]
    return {surrogate.name: surrogate for surrogate in found}


def averaged_output(call: Call, draws: int) -> Call:
    """Return the model whose prediction is the mean of ``draws`` predictions."""

    def averaged(images: Tensor) -> Tensor:
        runs = torch.stack([call(images).log_softmax(dim=1) for _ in range(draws)])
        return runs.logsumexp(dim=0)

    return averaged


def summed_losses(members: Sequence[Call]) -> Call:
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
