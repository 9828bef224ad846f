"""The images an attack works on at one time, and what it may ask the model about them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from enresnet.attacks.counting import Classifier
from enresnet.attacks.determinism import ASKED, leaves_no_trace
from enresnet.attacks.geometry import BALLS
from enresnet.attacks.gradient import expected_gradient, shared_gradient
from enresnet.attacks.losses import cross_entropy, margin, rivals
from enresnet.models.batch_mates import images_meet
from enresnet.models.frozen import FrozenCall
from enresnet.models.side_effects import StateBefore

LIFT = 2.0**48  # of losses in bfloat16: a power of two, so that no other bit changes

Loss = Callable[[Tensor], Tensor]
"""From logits N x classes to what an attack raises, one number an example."""


@dataclass(frozen=True)
class Batch:
    """The images an attack works on at one time, and the questions it may ask about them."""

    images: Tensor
    labels: Tensor  # the class to leave, or with targeted=True the class to reach
    seeds: Tensor  # one an example, for random starts
    generator: torch.Generator  # for what draws once a batch
    classifier: Classifier
    eot: int
    whole: int  # images of the batch that these are rows of, for the progress
    targeted: bool = False
    reduced: bool = False  # gradients in bfloat16
    independent: bool = False  # the model is known to treat each image of a batch alone
    deterministic: bool = False  # it is known to answer twice the same
    # Whether an image may leave: the others share nothing but their noise's scale. None: unknown.
    separable: bool | None = None
    slack: float = 0.0  # by which logits may differ from those of the model's own forward

    @torch.no_grad()
    def classes(self) -> int:
        """Return how many classes the model tells apart."""
        return self.logits(self.images).shape[1]

    @torch.no_grad()
    def ranked(self, *, last: bool = False) -> Tensor:
        """Return the class but the label that comes first on each clean image, or last."""
        logits = sum(self.logits(self.images) for _ in range(self.eot))
        assert isinstance(logits, Tensor)
        if last:
            return rivals(-logits, self.labels).argmax(dim=1)
        return rivals(logits, self.labels).argmax(dim=1)

    def logits(self, point: Tensor) -> Tensor:
        """Return the model's logits at ``point``, in the images' type, for one draw of noise.

        Raises:
            ValueError: The point does not hold images of the shape of the batch's.
        """
        self._check(point)
        return self.classifier(point.to(self.images.dtype), stands_for=self._stands_for)

    def fooled(self, logits: Tensor) -> Tensor:
        """Return whether each prediction is what the attack wants; one with NaN is wrong.

        It must be so by a margin where logits are not exactly the model's own.
        """
        named = (logits.argmax(dim=1) == self.labels) & ~logits.isnan().any(dim=1)
        fooled = named == self.targeted
        if self.slack > 0:
            fooled &= ~(self.margin(logits) > -self.slack)
        return fooled

    def surely(self, fooled: Tensor, point: Tensor) -> Tensor:
        """Return which points that seem to fool the model do so, on the CPU.

        Who is lost is not for bfloat16 to say: those points are looked at again.
        """
        fooled = fooled.bool().cpu()
        if not self.reduced or not fooled.any():
            return fooled
        rows = fooled.nonzero().squeeze(1)
        few = self.rows(rows)
        with torch.no_grad():
            fooled[rows] = few.fooled(few.logits(point[rows.to(point.device)])).cpu()
        return fooled

    def loss(self, logits: Tensor) -> Tensor:
        """Return what the attack raises, an example each: cross-entropy, or minus the target's."""
        value = cross_entropy(logits, self.labels)
        return -value if self.targeted else value

    def margin(self, logits: Tensor) -> Tensor:
        """Return, for each example, the margin: the attack succeeds where it is below 0."""
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
        number, so that neither reaches the images; such gradients are counted. In bfloat16 losses
        are multiplied by ``LIFT`` before they are differentiated: the gradients of a confident
        network would become 0 otherwise.

        Raises:
            ValueError: The point does not hold images of the shape of the batch's.
        """
        self._check(point)
        if not self.reduced:
            return self._finite(self._gradient(loss, point))
        lifted = self._gradient(lambda logits: loss(logits) * LIFT, point)
        return self._finite(lifted / LIFT)

    def _gradient(self, loss: Loss, point: Tensor) -> Tensor:
        call = self.classifier.call
        if self.eot > 1 and self.independent and isinstance(call, FrozenCall):
            with self._precision():
                shared = shared_gradient(call, loss, point, self.eot, self._checked)
            if shared is not None:
                return shared

        def lossy(x: Tensor) -> Tensor:
            with self._precision():
                logits = self.logits(x)
            return loss(logits)

        return expected_gradient(lossy, point, self.eot)

    def _check(self, point: Tensor) -> None:
        """Raise here, before the model fails on images that are none, and is blamed for it."""
        if point.shape[1:] != self.images.shape[1:] or point.ndim == 0:
            one, found = (" x ".join(map(str, s)) for s in (self.images.shape[1:], point.shape))
            raise ValueError(
                f"point must be N x {one}, like the batch's images, found {found or 'one number'}"
            )

    @property
    def _stands_for(self) -> float:
        return self.whole / max(1, len(self.images))

    def _checked(self, logits: Tensor, count: int) -> Tensor:
        return self.classifier.checked(logits, count, stands_for=self._stands_for)

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

    @property
    def retires(self) -> bool:
        """Whether an example that is lost is known to stay lost, with the others and without."""
        return self.deterministic and self.separable is True

    def with_separable_known(self) -> Batch:
        """Return the batch with ``separable`` decided: a model that is not known is tried."""
        if self.separable is not None:
            return self
        return replace(self, separable=not images_meet(self.logits, self.images))

    @torch.no_grad()
    def answers_alike(self, epsilon: float) -> bool:
        """Return whether the model always gives the same answer, as far as some calls show.

        It is called twice on these images and twice on random points within ``epsilon`` of them.
        A few images are tried many times: the noise of a call may be the same for all its images,
        as where one of several networks answers. It must draw nothing and change nothing meanwhile.
        """
        ball, (few, times) = BALLS["linf"](self.images, epsilon), ASKED
        for point in (self.images, ball.random_point(self.seeds)):
            if not torch.equal(self.logits(point), self.logits(point)):
                return False
        first, model = self.logits(self.images[:few]), self.classifier.model
        before = StateBefore(model)
        alike = all(torch.equal(self.logits(self.images[:few]), first) for _ in range(times))
        return alike and leaves_no_trace(model, before)

    @torch.no_grad()
    def judge(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share of draws in which each point succeeds, and its mean loss."""
        fooled, loss = torch.zeros(len(point)), torch.zeros(len(point), dtype=torch.float64)
        for _ in range(self.eot):
            logits = self.logits(point)
            fooled += self.fooled(logits).cpu()
            loss += self.loss(logits).cpu()
        return fooled / self.eot, loss / self.eot
