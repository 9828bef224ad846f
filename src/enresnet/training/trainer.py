"""The training loop (Algorithm 1): batches, one objective, SGD, a validation after each epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from enresnet.data import DataSet
from enresnet.evaluation import evaluate
from enresnet.models import Ensemble, seed_noise
from enresnet.randomness import named_generator
from enresnet.training.objectives import OBJECTIVES, training_attack
from enresnet.training.recipe import Recipe
from enresnet.training.schedule import step_rate


@dataclass(frozen=True)
class Epoch:
    """What one epoch brought. Accuracies in training are on the images trained on."""

    epoch: int
    learning_rate: float
    train_loss: float
    train_accuracy: float
    validation_natural: float
    validation_robust: float | None
    images_per_second: float
    seconds: float

    @property
    def score(self) -> float:
        """What the best network is chosen by: robust accuracy where there is one."""
        robust = self.validation_robust
        return self.validation_natural if robust is None else robust


class Trainer:
    """Trains ``model`` on ``data`` as ``recipe`` says; ``seed`` fixes every random choice.

    Iterate over :meth:`epochs`; between two epochs the model may be saved or looked at.
    """

    def __init__(self, model: nn.Module, data: DataSet, recipe: Recipe, *, seed: int = 0) -> None:
        self.model, self.data, self.recipe = model, data, recipe
        self._order = named_generator(seed, "order")
        self._augment = named_generator(seed, "augmentation")
        self._validation_seed = seed
        seed_noise(model, named_generator(seed, "noise"))
        self.objective = OBJECTIVES[recipe.objective](recipe, named_generator(seed, "attack"))
        self.optimiser = torch.optim.SGD(
            model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
            weight_decay=recipe.weight_decay,
        )
        self._loss_scale = count_members(model) if recipe.compensate else 1
        self.steps_an_epoch = -(-len(data.train) // recipe.batch_size)

    def epochs(self, advance: Callable[[int], None] = lambda _: None) -> Iterator[Epoch]:
        """Train epoch by epoch; ``advance`` hears of every batch of training images."""
        for epoch in range(self.recipe.epochs):
            yield self._epoch(epoch, advance)

    def _epoch(self, epoch: int, advance: Callable[[int], None]) -> Epoch:
        rate = step_rate(
            epoch,
            self.recipe.epochs,
            base=self.recipe.learning_rate,
            milestones=self.recipe.milestones,
        )
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        start = time.monotonic()
        self.model.train()
        loss_sum, right = 0.0, 0
        for step, (images, labels) in enumerate(self._batches()):
            loss, logits = self.objective(self.model, images, labels)
            if not torch.isfinite(loss):
                raise FloatingPointError(
                    f"the loss became {loss.item()} in epoch {epoch + 1}, step {step + 1}; "
                    "try a smaller learning_rate"
                )
            self.optimiser.zero_grad()
            (loss * self._loss_scale).backward()
            self.optimiser.step()
            loss_sum += loss.item() * len(images)
            right += int((logits.detach().argmax(dim=1) == labels).sum())
            advance(len(images))
        trained = time.monotonic() - start
        natural, robust = self._validate()
        count = len(self.data.train)
        return Epoch(
            epoch=epoch + 1,
            learning_rate=rate,
            train_loss=loss_sum / count,
            train_accuracy=right / count,
            validation_natural=natural,
            validation_robust=robust,
            images_per_second=count / trained,
            seconds=time.monotonic() - start,
        )

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        train, device = self.data.train, next(self.model.parameters()).device
        order = torch.randperm(len(train), generator=self._order)
        for rows in order.split(self.recipe.batch_size):
            pixels = train.pixels[rows]
            if self.recipe.augment:
                pixels = self.data.augmentation(pixels, self._augment)
            yield train.in_unit_range(pixels).to(device), train.labels[rows].to(device)

    def _validate(self) -> tuple[float, float | None]:
        """Return natural accuracy and, for robust objectives, accuracy under the same attack.

        The same random starts every time, so that epochs can be compared.
        """
        attack = training_attack(
            self.recipe, named_generator(self._validation_seed, "validation attack")
        )
        result = evaluate(
            self.model,
            self.data.validation,
            [attack] if self.objective.robust else [],
            draws=1,
            batch_size=self.recipe.batch_size,
            progress=False,
        )
        robust = result.robust[attack.name].accuracy if self.objective.robust else None
        return result.natural.accuracy, robust


def count_members(model: nn.Module) -> int:
    """Return how many single networks a model averages."""
    if isinstance(model, Ensemble):
        return sum(count_members(member) for member in model.members)
    return 1
