r"""The ensemble (Sec. 3.1, Fig. 2): a Monte Carlo estimate of the Feynman-Kac formula.

.. math:: u(\hat x, 0) = \mathbb{E}[f(x(1)) \mid x(0) = \hat x]
          \approx \sum_i w_i \frac{1}{D} \sum_{d=1}^{D} f_i(\hat x; \text{noise}_{i,d})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.models.noise import NoiseStream, noise_modules, share_stream
from enresnet.models.recompute import lean_call

AVERAGES = ("logits", "probabilities")


class Ensemble(nn.Module):
    """The weighted mean of its members' outputs.

    ``weights`` (equal by default) are normalised to sum 1. ``average="logits"`` is what the
    released code and Sec. 5 do; ``"probabilities"`` is the Feynman-Kac expectation of the softmax,
    returned as log-probabilities so that the output still serves as logits. ``draws`` independent
    noisy runs of every member are averaged inside one prediction.

    All noise comes from one stream, that of the first noisy member unless ``generator`` is given,
    so that no two members repeat each other's noise, copies of one network included. Members may
    be ensembles themselves, or any module from images to N x classes logits.
    """

    weights: Tensor

    def __init__(
        self,
        members: Sequence[nn.Module],
        *,
        weights: Sequence[float] | None = None,
        average: str = "logits",
        draws: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        members = list(members)
        if not members or not all(isinstance(member, nn.Module) for member in members):
            raise TypeError(f"members must be one or more nn.Modules, found {members!r}")
        self.members = nn.ModuleList(members)
        self.average = checks.choice("average", average, AVERAGES)
        self.draws = checks.integer("draws", draws, low=1)
        self.recompute = False  # see set_recompute
        self.register_buffer("weights", _normalised(weights, len(members)))
        first = next(noise_modules(self), None)
        if generator is not None:
            share_stream(self, NoiseStream(generator))
        elif first is not None:
            share_stream(self, first.stream)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that build this ensemble again, apart from members and weights."""
        return {"average": self.average, "draws": self.draws}

    @torch.no_grad()
    def set_weights(self, weights: Sequence[float]) -> None:
        """Weigh the members anew; the weights are normalised to sum 1."""
        self.weights.copy_(_normalised(weights, len(self.members)))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (or log-probabilities) N x classes, averaged over members and draws."""
        # (draws * members) x N x classes
        return self.averaged(
            torch.stack(
                [self._run(member, images) for _ in range(self.draws) for member in self.members]
            )
        )

    def averaged(self, outputs: Tensor) -> Tensor:
        """Return the mean of runs x N x classes outputs, the members of one draw after another."""
        weights = self.weights.float() / self.weights.float().sum()  # exact again after bfloat16
        weights = (weights.repeat(self.draws) / self.draws).to(outputs.dtype).view(-1, 1, 1)
        if self.average == "logits":
            return (weights * outputs).sum(dim=0)
        return (outputs.log_softmax(dim=-1) + weights.log()).logsumexp(dim=0)

    def _run(self, member: nn.Module, images: Tensor) -> Tensor:
        # An ensemble as a member keeps nothing but logits itself.
        if self.recompute and torch.is_grad_enabled() and not isinstance(member, Ensemble):
            return lean_call(member, images)
        output: Tensor = member(images)
        return output

    def extra_repr(self) -> str:
        """Show the hyper-parameters."""
        weights = ", ".join(f"{weight:.3g}" for weight in self.weights.tolist())
        return f"weights=[{weights}], average={self.average!r}, draws={self.draws}"


def set_recompute(model: nn.Module, recompute: bool) -> None:
    """Let gradients keep the activations of one member at a time, or of all at once.

    The gradients are the same, for one more forward pass of each member.
    """
    for module in model.modules():
        if isinstance(module, Ensemble):
            module.recompute = recompute


def _normalised(weights: Sequence[float] | None, members: int) -> Tensor:
    if weights is None:
        return torch.full((members,), 1 / members)
    values = [checks.number("weights", weight, low=0) for weight in weights]
    if len(values) != members or sum(values) == 0:
        raise ValueError(
            f"weights must hold {members} numbers, one a member, with a sum above 0; found {values}"
        )
    return torch.tensor([value / sum(values) for value in values])
