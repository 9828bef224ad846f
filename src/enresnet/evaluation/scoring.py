r"""What a model says of images, over repeated draws of its noise.

The prediction of a randomised model is a distribution. Kept of it are, for every image, whether
each draw is right, and whether the mean of the first d draws is, for every d:

.. math:: \hat u_d(x) = \frac{1}{d} \sum_{i=1}^{d} \mathrm{softmax}(f(x; \text{noise}_i))

the Feynman-Kac estimate from d paths (Eq. 14).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from enresnet.models.frozen import frozen
from enresnet.models.interface import Model, device_of, wrong_logits


@dataclass(frozen=True)
class Scored:
    """Which images were right in which draws.

    Attributes:
        right: Whether each draw is right.
        averaged: Whether the mean of the draws so far is right.
        without: Whether the mean of all other draws is right.
        confidence: The largest of the mean probabilities.
        seconds: What the predictions took.
        bad: Predictions that were not numbers, and so are wrong.

    Shape:
        - right, averaged, without: images x draws, bool
        - confidence: images
    """

    right: Tensor
    averaged: Tensor
    without: Tensor
    confidence: Tensor
    seconds: float = 0.0
    bad: int = 0

    @property
    def counts(self) -> Tensor:
        """In how many draws each image is right, int16."""
        return self.right.sum(dim=1).to(torch.int16)

    @property
    def scores(self) -> Tensor:
        """The share of draws in which each image is right."""
        return self.right.float().mean(dim=1)

    def __len__(self) -> int:
        return len(self.right)

    @classmethod
    def join(cls, parts: Sequence[Scored]) -> Scored:
        """Return several as one."""
        return cls(
            torch.cat([part.right for part in parts]),
            torch.cat([part.averaged for part in parts]),
            torch.cat([part.without for part in parts]),
            torch.cat([part.confidence for part in parts]),
            sum(part.seconds for part in parts),
            sum(part.bad for part in parts),
        )


@dataclass(frozen=True)
class Answer:
    """The logits of one prediction of some images, and the seconds that it took."""

    logits: Tensor
    seconds: float

    @classmethod
    def of(cls, model: Model, images: Tensor) -> Answer:
        """Return the answer of one call of a model."""
        start = time.perf_counter()
        (logits,) = drawn_logits(model, images, 1)
        return cls(logits, time.perf_counter() - start)

    def scored(self, labels: Tensor) -> Scored:
        """Return which images are right."""
        return _scored([self.logits], labels, time.perf_counter() - self.seconds)


def score_draws(model: Model, images: Tensor, labels: Tensor, *, draws: int = 1) -> Scored:
    """Score images over ``draws`` predictions."""
    start = time.perf_counter()
    return _scored(drawn_logits(model, images, draws), labels, start)


def _scored(drawn: Sequence[Tensor], labels: Tensor, start: float) -> Scored:
    """Score images by the logits of each draw; ``start`` is when the first was asked for."""
    labels, draws = labels.cpu(), len(drawn)
    right, averaged, answers, bad = [], [], [], 0
    for logits in drawn:
        if len(labels) and int(labels.max()) >= logits.shape[1]:
            raise ValueError(
                f"labels must be below the model's {logits.shape[1]} classes, found "
                f"{int(labels.max())}; are these the labels of another data set?"
            )
        answers.append(probabilities(logits))
        bad += int((answers[-1].sum(dim=1) == 0).sum())
        right.append((logits.argmax(dim=1) == labels) & (answers[-1].amax(dim=1) > 0))
    total = torch.zeros_like(answers[0])
    for answer in answers:
        total += answer
        averaged.append(_right(total, labels))
    without = [_right(total - answer, labels) for answer in answers]
    confidence = (total / draws).amax(dim=1).float()
    return Scored(
        torch.stack(right, dim=1),
        torch.stack(averaged, dim=1),
        torch.stack(without, dim=1),
        confidence,
        time.perf_counter() - start,
        bad,
    )


def probabilities(logits: Tensor) -> Tensor:
    """Return the softmax of logits: all 0 where one is NaN, shared by those that are +inf."""
    infinite = logits == torch.inf
    certain = infinite.double() / infinite.sum(dim=1, keepdim=True).clamp(min=1)
    values = torch.where(infinite.any(dim=1, keepdim=True), certain, logits.double().softmax(dim=1))
    values[logits.isnan().any(dim=1)] = 0
    return values.nan_to_num(0)  # all -inf


def _right(weights: Tensor, labels: Tensor) -> Tensor:
    """Return whether each image's label has the largest weight; no weight at all is no answer."""
    return (weights.argmax(dim=1) == labels) & (weights.amax(dim=1) > 0)


def score(model: Model, images: Tensor, labels: Tensor, *, draws: int = 1) -> Tensor:
    """Return the share of draws in which each image is classified rightly.

    The model runs in evaluation mode and is left as it was.

    Args:
        model: From images in [0, 1] to logits.
        images: In [0, 1]; all of them go into one call of the model.
        labels: The right classes, from 0 up.
        draws: Predictions of each image; 1 by default.

    Shape:
        - images: N x C x H x W
        - labels: N
        - result: N, between 0 and 1

    Returns:
        The scores, float32 on the CPU.

    Raises:
        ValueError: The model does not return logits N x classes, or a label is none of its classes.

    Example::

        from enresnet.evaluation import score

        accuracy = score(model, images, labels, draws=10).mean()
    """
    return score_draws(model, images, labels, draws=draws).scores


def predictions(model: Model, images: Tensor, *, draws: int = 1) -> Tensor:
    """Return the class whose probability, averaged over ``draws``, is highest for each image."""
    total = sum(probabilities(logits) for logits in drawn_logits(model, images, draws))
    assert isinstance(total, Tensor)
    return total.argmax(dim=1)


def drawn_logits(model: Model, images: Tensor, draws: int) -> list[Tensor]:
    """Return the logits of ``draws`` predictions, each in float32 on the CPU."""
    images = images.to(device_of(model, default=images.device))
    found = []
    with frozen(model) as call, torch.no_grad():
        for _ in range(draws):
            logits = call(images.clone())
            if wrong := wrong_logits(logits, len(images)):
                raise ValueError(wrong)
            found.append(logits.float().cpu())
    return found


def answers_alike(model: Model, images: Tensor, first: Tensor) -> bool:
    """Return whether another prediction of the same images gives the logits of the first."""
    (other,) = drawn_logits(model, images, 1)
    return bool(((first == other) | (first.isnan() & other.isnan())).all())
