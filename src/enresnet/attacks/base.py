"""What every attack shares: the gate at its door, batches, progress, an untouched model."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from enresnet import checks
from enresnet.attacks.geometry import BALLS
from enresnet.attacks.gradient import Model, expected_gradient, frozen, module_of
from enresnet.attacks.losses import cross_entropy, margin, rivals
from enresnet.attacks.precision import is_deterministic, keeps_apart, wants_bfloat16
from enresnet.models import Ensemble, ResNet
from enresnet.progress import counted, progress_bar

GOALS = ("untargeted", "targeted", "runner_up")
TOGETHER = 128 * 32 * 32  # pixels of a pass that keeps the cores busy and the caches useful

Loss = Callable[[Tensor], Tensor]
"""From logits N x classes to what an attack raises, one number an example."""


class Attack(ABC):
    """A way to change images so that a model gets them wrong.

    An attack sees nothing but a callable from images in [0, 1] to logits, which it runs in
    evaluation mode and leaves as it was. ``eot`` is the number of draws of the model's own noise
    over which every gradient and every judgement is averaged: 1 suits a deterministic model, the
    paper uses 5 for its ensembles. ``goal`` says what counts as success: ``"untargeted"``, any
    class but the label; ``"targeted"``, the class given in the label's place; ``"runner_up"``, the
    class that comes first on the clean image if the label is left out.
    """

    precision = "32"  # of gradients; see precision.py
    spent = (0, 0)  # gradients and evaluations of single images, in the last call
    claimed: Tensor | None = None  # which images it says it could not break; only others' say so

    def __init__(self, *, eot: int = 1, goal: str = "untargeted") -> None:
        self.eot = checks.integer("eot", eot, low=1)
        self.goal = checks.choice("goal", goal, GOALS)

    def __call__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        batch_size: int | None = None,
        evaluating: bool = True,
        progress: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return the attacked images, a new tensor.

        ``batch_size`` bounds how many images meet the model at once, for data larger than its
        memory; images are moved to a module's device and back. ``evaluating=False`` leaves the
        model's mode alone: one in training then moves its BatchNorm statistics, as the paper's
        released code lets it. ``progress=None`` shows a bar on a terminal when the call takes long;
        ``advance`` is told of passes, images times steps, as they are done, in place of a bar.
        """
        check_model_and_images(model, images, labels)
        if batch_size is None:
            batch_size = max(len(images), 1)
        checks.integer("batch_size", batch_size, low=1)
        images, labels = images.detach(), labels.detach()
        device = device_of(model, default=images.device)
        seeds = self._draw_seeds(len(images))
        work = len(images) * self.passes
        bar = progress_bar(self.name, work, show=progress if advance is None else False)
        with (
            bar as move,
            counted(move if advance is None else lambda n, _="": advance(n), work) as passed,
            frozen(model, evaluating=evaluating),
        ):
            largest = int(labels.max()) if len(labels) else 0
            classifier = Classifier(model, largest, passed)
            result = torch.empty_like(images)
            for start in range(0, len(images), batch_size):
                rows = slice(start, start + batch_size)
                batch = Batch(
                    # clone: a tensor made in inference mode could not carry a gradient
                    images=images[rows].to(device).clone(),
                    labels=labels[rows].to(device, torch.int64).clone(),
                    seeds=seeds[rows],
                    classifier=classifier,
                    eot=self.eot,
                    reduced=wants_bfloat16(model, images[:0].to(device), self.precision),
                    apart=keeps_apart(model),
                    deterministic=is_deterministic(model),
                )
                result[rows] = self._perturb(batch.aimed(self.goal))
        self.spent = (classifier.gradients, classifier.evaluations)
        classifier.warn_of_bad_gradients()
        return result

    @property
    @abstractmethod
    def name(self) -> str:
        """The name on the command line and in results, such as ifgsm20."""

    @property
    def passes(self) -> int:
        """How many forward passes one image costs."""
        return self._passes() + (self.eot if self.goal == "runner_up" else 0)

    @abstractmethod
    def _passes(self) -> int:
        """How many forward passes the perturbation of one image costs."""

    @abstractmethod
    def _perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""

    def _draw_seeds(self, count: int) -> Tensor:
        """Return a seed for each example, where the attack is random."""
        return torch.zeros(count, dtype=torch.int64)

    def settings(self) -> dict[str, Any]:
        """Return the hyper-parameters, to the last digit, and the kind of attack."""
        values = {name: getattr(self, name) for name in self._options()}
        plain = {
            name: value if isinstance(value, int | float | str | None) else repr(value)
            for name, value in values.items()
        }
        return {"kind": type(self).__name__, **plain}

    def _options(self) -> list[str]:
        return [name for name in inspect.signature(type(self)).parameters if name != "generator"]

    def __repr__(self) -> str:
        words = [f"{name}={_brief(getattr(self, name))}" for name in self._options()]
        return f"{type(self).__name__}({', '.join(words)})"


class Classifier:
    """The model with a gate behind it: its output must be N x classes, enough for the labels."""

    def __init__(
        self, model: Model, largest_label: int, advance: Callable[[int], None] = lambda _: None
    ) -> None:
        self.model = model
        self._largest_label = largest_label
        self._advance = advance
        self.bad_gradients = 0
        self.gradients = self.evaluations = 0  # of single images, so far

    def __call__(self, images: Tensor) -> Tensor:
        """Return the model's logits."""
        # clone: a model that works in place must not reach our images
        return self.checked(self.model(images.clone()), len(images))

    @property
    def module(self) -> nn.Module | None:
        """The network that the model is, or whose method it is."""
        return module_of(self.model)

    def checked(self, logits: object, count: int) -> Tensor:
        """Return what the model said of ``count`` images, if it is what it should be."""
        self._advance(count)
        self.evaluations += count
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != count:
            found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"model must return logits N x classes, here {count} x classes; found "
                f"{found}; wrap it in a function that returns them"
            )
        if not logits.is_floating_point() or logits.shape[1] < 2:
            raise ValueError(
                f"model must return floating-point logits for at least 2 classes, found "
                f"{logits.dtype} {tuple(logits.shape)}"
            )
        if self._largest_label >= logits.shape[1]:
            raise ValueError(
                f"labels must be below the model's {logits.shape[1]} classes, found "
                f"{self._largest_label}; are these the labels of another data set?"
            )
        return logits

    def apart(
        self, model: Model | None = None, advance: Callable[[int], None] = lambda _: None
    ) -> Classifier:
        """Return a gate before the same model or another, with counts of its own."""
        return Classifier(self.model if model is None else model, self._largest_label, advance)

    def count(self, other: Classifier, cost: float = 1) -> None:
        """Add what another has counted; ``cost`` is that of its model in units of this one's."""
        self.gradients += round(other.gradients * cost)
        self.evaluations += round(other.evaluations * cost)
        self.bad_gradients += other.bad_gradients

    def skip(self, passes: int) -> None:
        """Count passes that turned out not to be needed as done."""
        self._advance(passes)

    def warn_of_bad_gradients(self) -> None:
        """Say when gradients were not finite: such an attack proves nothing."""
        if self.bad_gradients:
            warnings.warn(
                f"the model's gradient was not finite in {self.bad_gradients} evaluations of an "
                "image; there the attack could not move and its result says nothing of robustness",
                stacklevel=3,
            )


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

    def aimed(self, goal: str) -> Batch:
        """Return the batch with what the goal makes of its labels."""
        if goal == "untargeted":
            return self
        labels = self.labels
        if goal == "runner_up":
            with torch.no_grad():
                logits = sum(self.classifier(self.images) for _ in range(self.eot))
            assert isinstance(logits, Tensor)
            labels = rivals(logits, labels).argmax(dim=1)
        return replace(self, labels=labels, targeted=True)

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
    def answers_twice_the_same(self, epsilon: float) -> bool:
        """Return whether the model does so on these images, and on others as near as an attack."""
        ball = BALLS["linf"](self.images, epsilon)
        return all(
            torch.equal(self.logits(point), self.logits(point))
            for point in (self.images, ball.random_point(self.seeds))
        )

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
    shared = module.before_noise(leaf)
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


def check_model_and_images(model: object, images: object, labels: object) -> None:
    """Raise unless these are a callable, images in [0, 1] and as many class numbers."""
    if not callable(model):
        raise TypeError(f"model must be an nn.Module or a callable, found {type(model).__name__}")
    if not isinstance(images, Tensor) or images.dtype not in _IMAGE_TYPES or images.is_sparse:
        found = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(
            f"images must be a dense tensor of float16, bfloat16, float32 or float64 in [0, 1], "
            f"found {found}; divide 8-bit images by 255"
        )
    if images.ndim < 2:
        raise ValueError(f"images must be N x ..., found shape {tuple(images.shape)}")
    if not isinstance(labels, Tensor) or labels.dtype not in _LABEL_TYPES:
        found = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(
            f"labels must be a tensor of integers, one class number an image, found {found}"
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be one class number an image, here {len(images)}; found shape "
            f"{tuple(labels.shape)}; one-hot labels become numbers by argmax(dim=1)"
        )
    if len(labels) and int(labels.min()) < 0:
        raise ValueError(f"labels must be class numbers from 0 up, found {int(labels.min())}")
    if images.numel() == 0:
        return
    low, high = (float(value) for value in torch.aminmax(images.detach()))
    if not (low >= 0 and high <= 1):  # false for NaN too
        raise ValueError(
            f"images must lie in [0, 1], found values from {low:g} to {high:g}; "
            "normalisation belongs inside the model"
        )


def device_of(model: Model, *, default: torch.device) -> torch.device:
    """Return where a module's parameters live; ``default`` for other callables."""
    module = module_of(model)
    first = None if module is None else next(module.parameters(), None)
    return default if first is None else first.device


_IMAGE_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LABEL_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _brief(value: object) -> str:
    """Return ``value`` as one would type it: 8/255 rather than 0.03137254901960784."""
    if not isinstance(value, float):
        return repr(value)
    levels = round(255 * value)
    short = value == round(value, 4) or value != levels / 255
    return f"{value:.4g}" if short else f"{levels}/255"
