r"""Parts of different kinds trained jointly: learned weights, and how much memory they take.

The weights of the parts of an ensemble (Sec. 5, Eqs. 19-20), where y^k are the logits of part k:

.. math:: \frac{\partial L}{\partial w_k} = -\frac1N \sum_i \Bigl(y_i^k[t_i]
          - \sum_j y_i^k[j]\, \mathrm{softmax}(\textstyle\sum_l w_l y_i^l)[j]\Bigr)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.data.images import free_memory
from enresnet.models import Ensemble, set_lean, without_noise


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
        self._sum = torch.zeros(len(model.members))
        self._count = 0
        self._outputs: list[Tensor] = []

    @contextmanager
    def watching(self, images: Tensor) -> Iterator[None]:
        """Remember what the parts say of these very images while the block runs the model."""
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
        """Add the gradient on the images just watched."""
        parts = torch.stack(self._outputs).float()
        gradient = weight_gradient(parts, self._model.weights.float(), labels)
        self._sum += len(labels) * gradient.cpu()
        self._count += len(labels)

    def step(self) -> list[float]:
        """Move the weights once by the mean gradient; return them."""
        moved = self._model.weights.cpu() - self._step * self._sum / max(1, self._count)
        moved = moved.clamp(min=0)
        if moved.sum() > 0:
            self._model.set_weights(moved.tolist())
        self._sum.zero_()
        self._count = 0
        weights: list[float] = self._model.weights.tolist()
        return weights


def choose_memory(model: nn.Module, images: Tensor, batch_size: int, memory: str) -> bool:
    """Set ``model`` lean or not as ``memory`` says; return which.

    ``auto`` is lean for ensembles whose activations, all at once, would take more than half of the
    free memory; they are measured on the few ``images`` given.
    """
    if memory == "auto":
        lean = activation_bytes(model, images) * batch_size / len(images) > free_memory() / 2
    else:
        lean = memory == "lean"
    set_lean(model, lean)
    return lean


def activation_bytes(model: nn.Module, images: Tensor) -> int:
    """Return how many bytes the graph of one forward pass keeps, parameters apart."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    flags = [(module, module.training) for module in model.modules()]
    model.eval()  # BatchNorm statistics and the stream of noise stay as they are
    with (
        torch.enable_grad(),
        without_noise(model),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
    ):
        model(images.clone().requires_grad_())
    for module, flag in flags:
        module.training = flag
    return sum(kept.values())
