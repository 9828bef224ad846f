"""Signs that a model is not what evaluations take: from images in [0, 1] to logits.

A model that expects normalised images, or that returns probabilities, runs without an error, and
its figures are wrong. Our own networks are as they should be and are not asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from enresnet.attacks.known_networks import our_network
from enresnet.data import Images
from enresnet.evaluation.accuracy import Accuracy
from enresnet.evaluation.matrix import OWN
from enresnet.evaluation.scoring import drawn_logits
from enresnet.evaluation.statistics import accuracy_interval
from enresnet.models import Normalized
from enresnet.models.interface import Model

LOOK = 128  # images from all over the data
FEWEST = 20  # with fewer images nothing is said
JUMP = 0.1  # gain in accuracy that shows that normalisation was missing
GOOD = 0.95  # a model this accurate lacks no normalisation
SUM = 1e-3  # by how much the sum of probabilities may differ from 1

# By the number of channels: what models are usually trained with.
USUAL: dict[int, dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    3: {
        "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "CIFAR-10's": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    },
    1: {"MNIST's": ((0.1307,), (0.3081,))},
}
EVERYWHERE = {
    "the range [-1, 1]'s": ((0.5,), (0.5,)),
    "the range [0, 255]'s": ((0.0,), (1 / 255,)),
}


@dataclass(frozen=True)
class Suspicion:
    """What was noticed, and what to do."""

    name: str  # the question, as among the checks of a diagnosis
    figure: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.figure}. {self.remedy}"


def suspicions(model: Model, data: Images) -> list[Suspicion]:
    """Return what speaks for a model that is used wrongly."""
    if our_network(model) is not None or len(data) < FEWEST:
        return []
    chosen = torch.linspace(0, len(data) - 1, min(LOOK, len(data))).long()
    images, labels = data.batch(chosen)
    (logits,) = drawn_logits(model, images, 1)
    found = [
        _overflow(logits),
        _probabilities(logits),
        _normalisation(model, images, labels, logits),
    ]
    return [suspicion for suspicion in found if suspicion is not None]


def _overflow(logits: Tensor) -> Suspicion | None:
    infinite = int((logits == torch.inf).any(dim=1).sum())
    if not infinite:
        return None
    return Suspicion(
        "the logits are finite",
        f"the model overflows: logits of {infinite} of {len(logits)} images are infinite",
        "Attacks cannot tell them apart. Scale the logits down, or compute in float64.",
    )


def _probabilities(logits: Tensor) -> Suspicion | None:
    sums = logits.double().sum(dim=1)
    between = (logits > 0) & (logits < 1)  # rows of nothing but 0 and 1 are no softmax
    if bool((logits < 0).any()) or bool(((sums - 1).abs() > SUM).any()) or not between.any():
        return None
    return Suspicion(
        "the model returns logits",
        "the model returns probabilities: its outputs are not negative and sum to 1",
        "A softmax inside hides the gradient from attacks, and they take its output for logits. "
        "Return the logits before it, or wrap the model: lambda images: model(images).log().",
    )


def _normalisation(
    model: Model, images: Tensor, labels: Tensor, logits: Tensor
) -> Suspicion | None:
    labels = labels.cpu()
    right = logits.argmax(dim=1) == labels
    plain = float(right.double().mean())
    if images.ndim != 4 or plain >= GOOD:
        return None
    best: tuple[float, str, Normalized] | None = None
    for name, (mean, std) in {**USUAL.get(images.shape[1], {}), **EVERYWHERE}.items():
        wrapped = Normalized(model, mean, std)
        (answers,) = drawn_logits(wrapped, images, 1)
        now = answers.argmax(dim=1) == labels
        gained, lost = int((now & ~right).sum()), int((right & ~now).sum())
        accuracy = float(now.double().mean())
        # Three standard deviations of a sign test: chance alone does not jump so far.
        sure = gained - lost > 3 * (gained + lost) ** 0.5
        if sure and accuracy >= plain + JUMP and (best is None or accuracy > best[0]):
            best = (accuracy, name, wrapped)
    if best is None:
        return None
    accuracy, name, wrapped = best
    means, stds = (
        ", ".join(f"{value:.4g}" for value in values.flatten().tolist())
        for values in (wrapped.mean, wrapped.std)
    )
    words = f"--mean {means} --std {stds}".replace(",", "")
    return Suspicion(
        "the images are as the model expects them",
        f"the model gets {100 * plain:.0f} % of {len(labels)} clean images right, and "
        f"{100 * accuracy:.0f} % once they are normalised with {name} mean and std",
        f"It expects normalised images: give enresnet.models.Normalized(model, mean=({means},), "
        f"std=({stds},)), on the command line {words}.",
    )


def knows_nothing(natural: Accuracy, data: Images) -> bool:
    """Return whether a model does no better than always naming the most frequent class.

    Its robust accuracy would mean nothing. Of fewer than a hundred images nothing is said.
    """
    chance = float(torch.bincount(data.labels).max()) / len(data)
    low, _ = accuracy_interval(natural.scores, 0.99)
    return len(data) >= 100 and chance < 0.75 and low <= chance


def warn_of_chance(name: str, natural: Accuracy, data: Images) -> None:
    """Warn of a model that does no better on clean images than one that knows nothing."""
    if knows_nothing(natural, data):
        warnings.warn(
            f"{_called(name)} classifies clean images at chance level "
            f"({100 * natural.accuracy:.1f} %). Images are given in [0, 1]: does it expect them "
            "otherwise, or normalise them twice? Are the classes in the same order as the labels? "
            "Did it learn: was its accuracy in training above chance?",
            stacklevel=6,
        )


def warn_of_bad(name: str, found: Sequence[Accuracy]) -> None:
    """Warn of a model whose predictions were not numbers."""
    bad = sum(value.bad for value in found)
    if bad:
        total = sum(value.images * value.draws for value in found)
        warnings.warn(
            f"{_called(name)} gave NaN in {bad} of {total} predictions; they count as wrong",
            stacklevel=6,
        )


def about(name: str, sentence: str) -> str:
    """Return a sentence with the name of the model it is about, where there are several."""
    return sentence if name == OWN else f"{name}: {sentence}"


def _called(name: str) -> str:
    return "the model" if name == OWN else name
