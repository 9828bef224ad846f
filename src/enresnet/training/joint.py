r"""Parts of different kinds trained jointly, with learned weights (Sec. 5, Eqs. 19-20).

With y^k the logits of part k:

.. math:: \frac{\partial L}{\partial w_k} = -\frac1N \sum_i \Bigl(y_i^k[t_i]
          - \sum_j y_i^k[j]\, \mathrm{softmax}(\textstyle\sum_l w_l y_i^l)[j]\Bigr)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.models import Ensemble
from enresnet.training.engine import Engine


def weight_gradient(parts: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
    """Return dL/dw for logits ``parts``, K x N x classes, of the mean cross-entropy."""
    share = torch.einsum("k,knc->nc", weights, parts).softmax(dim=1)
    expected = (parts * share).sum(dim=2)
    own = parts.gather(2, labels.expand(len(parts), -1)[:, :, None]).squeeze(2)
    return (expected - own).mean(dim=1)


class LearnedWeights:
    """Gathers the gradient over an epoch's batches and steps once at its end.

    The weights stay non-negative and are normalised to sum 1.
    """

    def __init__(self, model: nn.Module, step: float) -> None:
        if not isinstance(model, Ensemble) or len(model.members) < 2:
            raise ValueError(
                f"weight_step={step:g} needs parts to weigh, such as en1_resnet20+en1_resnet32; "
                "found a single one"
            )
        if model.average != "logits" or model.draws != 1:
            raise ValueError("weight_step needs an ensemble that averages logits of one draw")
        self._model, self._step = model, step
        # The summed gradient of the epoch so far and, last, the number of images in it.
        self.gathered = torch.zeros(len(model.members) + 1, dtype=torch.float64)
        self._outputs: list[Tensor] = []

    @contextmanager
    def recording(self, images: Tensor) -> Iterator[None]:
        """Record the logits of the parts on these images while the block runs the model."""
        self._outputs = []

        def remember(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if inputs[0].data_ptr() == images.data_ptr():
                self._outputs.append(output.detach())

        hooks = [member.register_forward_hook(remember) for member in self._model.members]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def gather(self, labels: Tensor) -> None:
        """Add the gradient on the recorded images."""
        parts = torch.stack(self._outputs).float()
        gradient = weight_gradient(parts, self._model.weights.float(), labels)
        self.gathered[:-1] += len(labels) * gradient.cpu()
        self.gathered[-1] += len(labels)

    def step(self, engine: Engine) -> None:
        """Move the weights once by the mean gradient over all processes."""
        *total, count = engine.sum_over_processes(self.gathered.to(engine.device)).cpu()
        moved = self._model.weights.cpu() - self._step * torch.stack(total) / max(1.0, count)
        moved = moved.clamp(min=0)
        if moved.sum() > 0:
            self._model.set_weights(moved.tolist())
        self.gathered.zero_()

    def values(self) -> list[float]:
        """Return the weights as they are."""
        weights: list[float] = self._model.weights.tolist()
        return weights


LEAST = 0.1  # of an equal weight: a smaller one would amplify rounding errors


@torch.no_grad()
def compensate(model: nn.Module) -> None:
    """Give each network the gradient it would have alone: divide by its weight in the average."""
    for network, share in shares(model):
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(share)


def shares(model: nn.Module, share: float = 1.0) -> Iterator[tuple[nn.Module, float]]:
    """Yield the single networks of a model with their weights in its average."""
    if not isinstance(model, Ensemble):
        yield model, share
        return
    equal = 1 / len(model.members)
    for member, weight in zip(model.members, model.weights.tolist(), strict=True):
        yield from shares(member, share * max(weight, LEAST * equal))
