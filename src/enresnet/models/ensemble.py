r"""The ensemble (Sec. 3.1, Fig. 2): a Monte Carlo estimate of the Feynman-Kac formula.

.. math:: u(\hat x, 0) = \mathbb{E}[f(x(1)) \mid x(0) = \hat x]
          \approx \sum_i w_i \frac{1}{D} \sum_{d=1}^{D} f_i(\hat x; \text{noise}_{i,d})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.models.noise import NoiseStream, noise_modules, share_stream
from enresnet.models.recompute import lean_call

Average = Literal["logits", "probabilities"]
"""What an ensemble averages."""

AVERAGES: tuple[Average, ...] = get_args(Average)


class Ensemble(nn.Module):
    """The weighted mean of its members' outputs: a Monte Carlo estimate of Feynman-Kac.

    All members draw their noise from one stream, so no two of them repeat the same noise, not even
    copies of one network.

    Args:
        members: One or more modules from images to logits N x classes. They may be ensembles.
        weights: One number a member, at least 0; they are normalised to sum 1. Equal by default.
        average: ``"logits"`` averages the logits, as the released code and Sec. 5 do (the default).
            ``"probabilities"`` averages the softmax, the Feynman-Kac expectation, and returns its
            logarithm, so that the output still serves as logits.
        draws: How many independent noisy runs of every member one prediction averages; 1 by
            default.
        generator: Draws all noise. By default the stream of the first noisy member does.

    Shape:
        - images: N x C x H x W in [0, 1], as the members take them
        - result: N x classes, logits or log-probabilities

    Raises:
        TypeError: The members are not one or more modules.
        ValueError: The weights do not match the members, or another argument is out of range.

    Example::

        import torch
        from enresnet.models import ResNet

        ensemble = enresnet.Ensemble([ResNet.of_depth(8, noise=0.1) for _ in range(3)], draws=2)
        probabilities = ensemble(torch.rand(2, 3, 32, 32)).softmax(dim=1)
    """

    weights: Tensor

    def __init__(
        self,
        members: Sequence[nn.Module],
        *,
        weights: Sequence[float] | None = None,
        average: Average = "logits",
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
        """The arguments that build this ensemble again, without members and weights."""
        return {"average": self.average, "draws": self.draws}

    @torch.no_grad()
    def set_weights(self, weights: Sequence[float]) -> None:
        """Replace the weights of the members; they are normalised to sum 1."""
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

    def describe(self) -> str:
        """Return what it is: its members, what it averages, and where each of them has noise."""
        count, draws = len(self.members), self.draws
        lines = [
            f"{count} member{'s' * (count != 1)}, {draws} draw{'s' * (draws != 1)} of each in a "
            f"prediction, average of {self.average}"
        ]
        kinds: dict[str, int] = {}
        for member in self.members:
            text = _describe(member)
            kinds[text] = kinds.get(text, 0) + 1
        for text, times in kinds.items():
            head, *rest = text.splitlines()
            lines += [f"{times} x {head}", *(f"  {line}" for line in rest)]
        return "\n".join(lines)

    def extra_repr(self) -> str:
        """Show the hyper-parameters."""
        weights = ", ".join(f"{weight:.3g}" for weight in self.weights.tolist())
        return f"weights=[{weights}], average={self.average!r}, draws={self.draws}"


def _describe(member: nn.Module) -> str:
    if isinstance(member, Ensemble):
        return member.describe()
    places = list(noise_modules(member))
    levels = sorted({f"{place.noise:g}" for place in places}) or ["0"]
    residuals = getattr(member, "residuals", None)
    count = len(places) if residuals is None else residuals.uses
    words = (
        f"{type(member).__name__}, noise {', '.join(levels)} in {count} place{'s' * (count != 1)}"
    )
    return words if residuals is None else f"{words}\n{residuals.describe()}"


def set_recompute(model: nn.Module, recompute: bool) -> None:
    """Choose whether ensembles recompute their members' activations to save memory.

    With recomputation a gradient holds the activations of one member at a time. It costs one more
    forward pass of each member, and the gradient is the same. Second derivatives need
    ``recompute=False``.

    Args:
        model: A model; all ensembles inside it are changed.
        recompute: True to recompute; False to keep all activations, as a new ensemble does.

    Example::

        from enresnet.models import set_recompute

        model = enresnet.create_model("en5_resnet20")
        set_recompute(model, True)
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
