"""The images an attack works on at one time, and what it may ask the model about them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from enresnet.attacks.geometry import BALLS
from enresnet.attacks.gradient import expected_gradient
from enresnet.attacks.inputs import Classifier, explained
from enresnet.attacks.losses import cross_entropy, margin, rivals
from enresnet.models import Ensemble, ResNet

ASKED = (4, 64)  # few images, many times: whether a model always answers the same
TOGETHER = 128 * 32 * 32  # pixels of a pass that keeps the cores busy and the caches useful

Loss = Callable[[Tensor], Tensor]
"""From logits N x classes to what an attack raises, one number an example."""


@dataclass(frozen=True)
class Batch:
    """The images an attack works on at one time, and the questions it may ask about them."""

    images: Tensor
    labels: Tensor  # the class to leave, or with targeted=True the class to reach
    seeds: Tensor  # one an example, for random starts
    classifier: Classifier
    eot: int
    targeted: bool = False
    reduced: bool = False  # gradients in bfloat16
    apart: bool = False  # the model is known to treat each image of a batch alone
    deterministic: bool = False  # it is known to answer twice the same

    @torch.no_grad()
    def classes(self) -> int:
        """Return how many classes the model tells apart."""
        return self.classifier(self.images).shape[1]

    @torch.no_grad()
    def ranked(self, *, last: bool = False) -> Tensor:
        """Return the class but the label that comes first on each clean image, or last."""
        logits = sum(self.classifier(self.images) for _ in range(self.eot))
        assert isinstance(logits, Tensor)
        if last:
            return rivals(-logits, self.labels).argmax(dim=1)
        return rivals(logits, self.labels).argmax(dim=1)

    def logits(self, point: Tensor) -> Tensor:
        """Return the model's logits at ``point``, in the images' type, for one draw of noise."""
        return self.classifier(point.to(self.images.dtype))

    def fooled(self, logits: Tensor) -> Tensor:
        """Return whether each prediction is what the attack wants; one with NaN is wrong."""
        named = (logits.argmax(dim=1) == self.labels) & ~logits.isnan().any(dim=1)
        return named == self.targeted

    def loss(self, logits: Tensor) -> Tensor:
        """Return what the attack raises, an example each: cross-entropy, or minus the target's."""
        value = cross_entropy(logits, self.labels)
        return -value if self.targeted else value

    def margin(self, logits: Tensor) -> Tensor:
        """Return what the attack lowers below 0 to succeed, an example each."""
        value = margin(logits, self.labels)
        return -value if self.targeted else value

    def rows(self, chosen: Tensor) -> Batch:
        """Return some of the examples."""
        return replace(
            self,
            images=self.images[chosen.to(self.images.device)],
            labels=self.labels[chosen.to(self.labels.device)],
            seeds=self.seeds[chosen.cpu()],
        )

    def gradient(self, loss: Loss, point: Tensor) -> Tensor:
        """Return the gradient of ``loss`` of the logits at ``point``, averaged over the noise.

        Draws of our own networks share what they can. NaN becomes 0 and infinity the largest
        number, so that neither reaches the images; such gradients are counted.
        """

        if self.eot > 1 and self.apart:
            with self._precision():
                shared = shared_gradient(self, loss, point)
            if shared is not None:
                return self._finite(shared)

        def lossy(x: Tensor) -> Tensor:
            with self._precision():
                logits = self.logits(x)
            return loss(logits)

        return self._finite(expected_gradient(lossy, point, self.eot))

    def _finite(self, gradient: Tensor) -> Tensor:
        self.classifier.gradients += self.eot * len(gradient)
        finite = gradient.flatten(1).isfinite().all(dim=1)
        if not finite.all():
            self.classifier.bad_gradients += int((~finite).sum())
            gradient = gradient.nan_to_num()
        return gradient

    def _precision(self) -> AbstractContextManager[None]:
        if not self.reduced:
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(
            self.images.device.type, torch.bfloat16
        )
        return context

    @torch.no_grad()
    def answers_alike(self, epsilon: float) -> bool:
        """Return whether the model answers the same, as far as can be seen.

        On these images and on others as near as an attack twice; on a few of them many times, since
        a call's noise may be the same for all its images (one of several networks answers).
        """
        ball, (few, times) = BALLS["linf"](self.images, epsilon), ASKED
        for point in (self.images, ball.random_point(self.seeds)):
            if not torch.equal(self.logits(point), self.logits(point)):
                return False
        first = self.logits(self.images[:few])
        return all(torch.equal(self.logits(self.images[:few]), first) for _ in range(times))

    @torch.no_grad()
    def judge(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share of draws in which each point succeeds, and its mean loss."""
        fooled, loss = torch.zeros(len(point)), torch.zeros(len(point), dtype=torch.float64)
        for _ in range(self.eot):
            logits = self.logits(point)
            fooled += self.fooled(logits).cpu()
            loss += self.loss(logits).cpu()
        return fooled / self.eot, loss / self.eot


def shared_gradient(batch: Batch, loss: Loss, point: Tensor) -> Tensor | None:
    """Return the gradient of a loss over the batch's draws, computed in two parts.

    Up to the first noise all draws are the same: that part runs once forward and once backward,
    and only the rest once a draw. None where the model cannot be taken apart so. Draws of small
    batches go through the rest together.
    """
    module = batch.classifier.module
    assert isinstance(module, ResNet | Ensemble)
    leaf = point.detach().requires_grad_()
    try:
        shared = module.before_noise(leaf)
    except RuntimeError as error:
        raise explained(error, module, leaf) from error
    if shared is None:
        return None
    starts = [state.detach().requires_grad_() for state in shared]
    totals: list[Tensor] = []
    together = max(1, TOGETHER // max(1, point[:, :1].numel()))
    for done in range(0, batch.eot, together):
        draws = min(together, batch.eot - done)
        several = [torch.cat([start] * draws) if draws > 1 else start for start in starts]
        logits = batch.classifier.checked(module.after_noise(several), draws * len(point))
        losses = [loss(one).sum() for one in logits.split(len(point))]
        gradients = torch.autograd.grad(torch.stack(losses).sum(), starts)
        # In float32: a long sum of bfloat16 numbers stops growing.
        for total, gradient in zip(totals, gradients, strict=bool(totals)):
            total += gradient
        totals = totals or [_at_least_float32(gradient) for gradient in gradients]
    means = [(t / batch.eot).to(s.dtype) for t, s in zip(totals, starts, strict=True)]
    (result,) = torch.autograd.grad(shared, leaf, means)
    return result


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
