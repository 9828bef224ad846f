"""Natural and robust accuracy, with intervals, of any model on images in [0, 1].

The prediction of a randomised model is a distribution, so every clean and attacked image is scored
over ``draws`` repeated predictions with fresh noise; accuracy is the mean over images and draws.
A model that answers twice the same on the first batch is deterministic and asked once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from enresnet import checks
from enresnet.attacks import Attack
from enresnet.attacks.base import check_model_and_images, device_of
from enresnet.attacks.gradient import Model, frozen
from enresnet.data import Images, from_dataset
from enresnet.evaluation.statistics import accuracy_interval
from enresnet.progress import progress_bar


@dataclass(frozen=True)
class Accuracy:
    """How many images are classified rightly, and how sure that is."""

    accuracy: float
    interval: tuple[float, float]  # 95 %, over images and draws
    per_class: dict[str, float]
    images: int
    draws: int
    seconds: float
    attack: str | None = None
    scores: Tensor = field(default_factory=lambda: torch.empty(0), repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the scores of single images, as plain JSON."""
        values = {name: value for name, value in vars(self).items() if name != "scores"}
        return {**values, "interval": list(self.interval)}


@dataclass(frozen=True)
class Evaluation:
    """Accuracy on clean images, and under each attack by its name."""

    natural: Accuracy
    robust: dict[str, Accuracy]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        robust = {name: value.to_json() for name, value in self.robust.items()}
        return {"natural": self.natural.to_json(), "robust": robust}


def evaluate(
    model: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: Sequence[Attack] = (),
    *,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Return the accuracy of ``model`` on clean images and under each of ``attacks``.

    ``dataset`` is :class:`~enresnet.data.Images`, a pair of tensors, or any dataset of image/label
    pairs. The model runs in evaluation mode and is left as it was.
    """
    return _evaluate(model, model, dataset, attacks, draws, batch_size, limit, progress)


def transfer(
    oracle: Model,
    target: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: Sequence[Attack],
    *,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Return the accuracy of ``target`` under the blind attack (Sec. 3.2).

    The images are crafted on ``oracle`` alone and then classified by ``target``.
    """
    return _evaluate(oracle, target, dataset, attacks, draws, batch_size, limit, progress)


def _evaluate(
    oracle: Model,
    target: Model,
    dataset: Any,
    attacks: Sequence[Attack],
    draws: int,
    batch_size: int,
    limit: int | None,
    progress: bool | None,
) -> Evaluation:
    checks.integer("draws", draws, low=1)
    checks.integer("batch_size", batch_size, low=1)
    data = as_images(dataset).first(limit)
    _check_names(attacks)
    check_model_and_images(target, *data.batch(slice(1)))
    draws = _needed_draws(target, data, draws, batch_size)
    work = len(data) * sum(attack.passes + draws for attack in attacks)
    with progress_bar("evaluating", work + len(data) * draws, show=progress) as advance:

        def measure(attack: Attack | None) -> Accuracy:
            cost = draws + (0 if attack is None else attack.passes)
            start, scores = time.monotonic(), []
            for images, labels in data.batches(batch_size):
                if attack is not None:
                    images = attack(oracle, images, labels, progress=False)
                scores.append(score(target, images, labels, draws=draws))
                advance(cost * len(images))
            return summarise(
                torch.cat(scores),
                data,
                draws=draws,
                seconds=time.monotonic() - start,
                attack=None if attack is None else repr(attack),
            )

        natural = measure(None)
        return Evaluation(natural, {attack.name: measure(attack) for attack in attacks})


def score(model: Model, images: Tensor, labels: Tensor, *, draws: int = 1) -> Tensor:
    """Return the share of ``draws`` in which each image is classified rightly."""
    right = torch.zeros(len(images))
    for logits in _drawn_logits(model, images, draws):
        right += (logits.argmax(dim=1) == labels.cpu()).float()
    return right / draws


def predictions(model: Model, images: Tensor, *, draws: int = 1) -> Tensor:
    """Return the class whose probability, averaged over ``draws``, is highest for each image."""
    total = sum(logits.softmax(dim=1) for logits in _drawn_logits(model, images, draws))
    assert isinstance(total, Tensor)
    return total.argmax(dim=1)


def _drawn_logits(model: Model, images: Tensor, draws: int) -> Iterator[Tensor]:
    images = images.to(device_of(model, default=images.device))
    for _ in range(draws):
        with frozen(model), torch.no_grad():
            logits = model(images.clone())
        if logits.isnan().any():
            raise FloatingPointError("model gives NaN: its weights or the images are not finite")
        yield logits.float().cpu()


def summarise(
    scores: Tensor, data: Images, *, draws: int, seconds: float, attack: str | None
) -> Accuracy:
    """Return the accuracy that the scores of single images amount to."""
    per_class = {
        name: float(scores[data.labels == number].mean())
        for number, name in enumerate(data.classes)
        if (data.labels == number).any()
    }
    return Accuracy(
        accuracy=float(scores.mean()),
        interval=accuracy_interval(scores),
        per_class=per_class,
        images=len(scores),
        draws=draws,
        seconds=seconds,
        attack=attack,
        scores=scores,
    )


def as_images(dataset: Any) -> Images:
    """Return :class:`Images` from a pair of tensors or any dataset of image/label pairs."""
    if isinstance(dataset, Images):
        return dataset
    if isinstance(dataset, tuple) and len(dataset) == 2 and isinstance(dataset[0], Tensor):
        images, labels = dataset
        check_model_and_images(as_images, images, labels)
        if len(images) == 0:
            raise ValueError("dataset must hold at least one image, found none")
        classes = tuple(str(number) for number in range(int(labels.max()) + 1))
        return Images(images, labels.long(), classes)
    return from_dataset(dataset)


def _needed_draws(model: Model, data: Images, draws: int, batch_size: int) -> int:
    if draws == 1:
        return 1
    images, _ = data.batch(slice(batch_size))
    first, second = _drawn_logits(model, images, 2)
    return 1 if torch.equal(first, second) else draws


def _check_names(attacks: Iterable[Attack]) -> None:
    seen: set[str] = set()
    for attack in attacks:
        if not isinstance(attack, Attack):
            raise TypeError(f"attacks must be Attack objects such as FGSM(), found {attack!r}")
        if attack.name in seen:
            raise ValueError(
                f"attacks must differ in name, found {attack.name} twice; evaluate them one by one"
            )
        seen.add(attack.name)
