"""The training loop (Algorithm 1): batches, one objective, SGD, a validation after each epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from enresnet.data import DataSet
from enresnet.evaluation import evaluate
from enresnet.models import Ensemble, seed_noise
from enresnet.randomness import named_generator
from enresnet.training.averaging import WeightAverage
from enresnet.training.awp import perturbed_weights
from enresnet.training.guard import CollapseGuard
from enresnet.training.joint import LearnedWeights, choose_memory
from enresnet.training.objectives import OBJECTIVES, training_attack
from enresnet.training.recipe import Recipe
from enresnet.training.schedule import one_cycle_rate, step_rate


@dataclass(frozen=True)
class Epoch:
    """What one epoch brought. Accuracies in training are on the images trained on."""

    epoch: int
    learning_rate: float  # at the end
    train_loss: float
    train_accuracy: float
    validation_natural: float | None  # None: not validated
    validation_robust: float | None
    images_per_second: float
    seconds: float
    weights: str = ""  # of the parts, where they are learned
    note: str = ""  # what else happened

    @property
    def score(self) -> float | None:
        """What the best network is chosen by: robust accuracy where there is one."""
        robust = self.validation_robust
        return self.validation_natural if robust is None else robust


class Trainer:
    """Trains ``model`` on ``data`` as ``recipe`` says; ``seed`` fixes every random choice.

    Iterate over :meth:`epochs`; between two epochs :attr:`result`, the network that is validated
    and kept, may be saved or looked at.
    """

    def __init__(self, model: nn.Module, data: DataSet, recipe: Recipe, *, seed: int = 0) -> None:
        self.model, self.data, self.recipe, self._seed = model, data, recipe, seed
        self._order = named_generator(seed, "order")
        self._augment = named_generator(seed, "augmentation")
        seed_noise(model, named_generator(seed, "noise"))
        self.objective = OBJECTIVES[recipe.objective](recipe, named_generator(seed, "attack"))
        self.optimiser = torch.optim.SGD(
            model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
            weight_decay=recipe.weight_decay,
        )
        self._average = (
            WeightAverage(model, recipe.ema, named_generator(seed, "average noise"))
            if recipe.ema > 0
            else None
        )
        self._weights = (
            LearnedWeights(model, recipe.weight_step) if recipe.weight_step > 0 else None
        )
        self._loss_scale = count_members(model) if recipe.compensate else 1
        few, _ = data.train.batch(slice(2))
        device = next(model.parameters()).device
        self.lean = choose_memory(model, few.to(device), recipe.batch_size, recipe.memory)
        guarded = self.objective.one_step
        self._guard = CollapseGuard(data.validation, recipe, seed) if guarded else None

    @property
    def result(self) -> nn.Module:
        """The network that is validated and kept: the averaged one where there is one."""
        return self.model if self._average is None else self._average.model

    def epochs(self, advance: Callable[[int], None] = lambda _: None) -> Iterator[Epoch]:
        """Train epoch by epoch; ``advance`` hears of every batch of training images."""
        for epoch in range(self.recipe.epochs):
            yield self._epoch(epoch, advance)

    def _epoch(self, epoch: int, advance: Callable[[int], None]) -> Epoch:
        start = time.monotonic()
        self.model.train()
        if self.recipe.reset_momentum:
            self.optimiser.state.clear()
        loss_sum, right, rate, count = 0.0, 0, 0.0, len(self.data.train)
        steps = -(-count // self.recipe.batch_size)
        for step, (images, labels) in enumerate(self._batches()):
            rate = self._rate(epoch, (step + 1) / steps)
            loss, logits = self._step(images, labels, rate)
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the loss became {loss} in epoch {epoch + 1}, step {step + 1}; "
                    "try a smaller learning_rate"
                )
            loss_sum += loss * len(images)
            right += int((logits.argmax(dim=1) == labels).sum())
            advance(len(images))
        trained = time.monotonic() - start
        weights = [] if self._weights is None else self._weights.step()
        note = self._watch_for_collapse(epoch)
        natural, robust = self._validate(epoch)
        return Epoch(
            epoch=epoch + 1,
            learning_rate=rate,
            train_loss=loss_sum / count,
            train_accuracy=right / count,
            validation_natural=natural,
            validation_robust=robust,
            images_per_second=count / trained,
            seconds=time.monotonic() - start,
            weights=" ".join(f"{weight:.4f}" for weight in weights),
            note=note,
        )

    def _rate(self, epoch: int, within: float) -> float:
        """Return the rate: step changes between epochs, one_cycle with every step."""
        recipe = self.recipe
        if recipe.schedule == "step":
            return step_rate(
                epoch / recipe.epochs, base=recipe.learning_rate, milestones=recipe.milestones
            )
        # Half a step back: neither the first nor the last rate is 0.
        done = epoch + within - 0.5 / max(1, len(self.data.train) // recipe.batch_size)
        return one_cycle_rate(
            done / recipe.epochs, peak=recipe.learning_rate, warm_up=recipe.warm_up
        )

    def _step(self, images: Tensor, labels: Tensor, rate: float) -> tuple[float, Tensor]:
        """Update the weights once; return the loss and the logits of the images trained on."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        objective, gamma = self.objective, self.recipe.awp
        crafted = objective.craft(self.model, images, labels)
        with ExitStack() as stack:
            if gamma > 0:
                moved = perturbed_weights(
                    objective, self.model, images, crafted, labels, gamma=gamma
                )
                stack.enter_context(moved)
            if self._weights is not None:
                stack.enter_context(self._weights.watching(crafted))
            loss, logits = objective.loss(self.model, images, crafted, labels)
            self.optimiser.zero_grad()
            (loss * self._loss_scale).backward()
        if self._weights is not None:
            self._weights.gather(labels)
        self.optimiser.step()
        if self._average is not None:
            self._average.update(self.model)
        return loss.item(), logits.detach()

    def _watch_for_collapse(self, epoch: int) -> str:
        """Go back, and on with PGD-2, if the network has collapsed; return what happened."""
        if self._guard is None:
            return ""
        parts = {"model": self.model, "optimiser": self.optimiser}
        if self._average is not None:
            parts["average"] = self._average.model
        happened = self._guard.collapsed(self.model)
        if happened is None:
            self._guard.keep(parts)
            return ""
        self._guard.restore(parts)
        safer = self._guard.safer_recipe()
        self.objective = OBJECTIVES["pgd"](safer, named_generator(self._seed, f"attack {epoch}"))
        self._guard = None
        return f"{happened}; back to the last good epoch, and on with PGD-2"

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        train, device = self.data.train, next(self.model.parameters()).device
        order = torch.randperm(len(train), generator=self._order)
        for rows in order.split(self.recipe.batch_size):
            pixels = train.pixels[rows]
            if self.recipe.augment:
                pixels = self.data.augmentation(pixels, self._augment)
            yield train.in_unit_range(pixels).to(device), train.labels[rows].to(device)

    def _validate(self, epoch: int) -> tuple[float | None, float | None]:
        """Return natural accuracy and, for robust objectives, accuracy under the same attack.

        The same random starts every time, so that epochs can be compared.
        """
        last = epoch + 1 == self.recipe.epochs
        if not last and epoch + 1 < self.recipe.validate_from * self.recipe.epochs:
            return None, None
        attack = training_attack(self.recipe, named_generator(self._seed, "validation attack"))
        result = evaluate(
            self.result,
            self.data.validation.first(self.recipe.validation_images),
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
