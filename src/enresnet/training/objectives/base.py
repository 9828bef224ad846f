"""What an objective is: it crafts the images that are trained on, and gives their loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from enresnet.attacks import Attack
from enresnet.training.recipe import ObjectiveName, Recipe


class Objective(ABC):
    """One way to train: a batch goes in, a loss to be minimised and the logits come out.

    In two steps, so that what wraps an objective can take the loss of the same images twice.
    """

    passes = 1  # of the network, in the loss
    robust = True  # networks are selected by robust rather than natural accuracy
    one_step = False  # may collapse: its attack can be learned rather than withstood
    # What a one-step objective continues with when one step is not enough.
    several_steps: ObjectiveName = "pgd"
    needs_teacher = False

    def __init__(self, recipe: Recipe, generator: torch.Generator) -> None:
        self.recipe = recipe
        self.generator = generator
        self.answers: Tensor | None = None  # a teacher's log-probabilities, for the batch at hand

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, with its graph, and the logits of the images trained on."""
        return self.loss(model, images, self.craft(model, images, labels), labels)

    @abstractmethod
    def craft(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the images trained on."""

    def loss(
        self, model: nn.Module, images: Tensor, crafted: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the logits of the crafted images."""
        del images  # the clean ones matter to objectives that trade off
        logits = model(crafted)
        return self.cross_entropy(logits, labels), logits

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, with the recipe's label smoothing."""
        return functional.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)

    def _attacked(self, attack: Attack, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        evaluating = self.recipe.attack_mode == "eval"
        return attack(model, images, labels, evaluating=evaluating, progress=False)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q), an example each, from log-probabilities."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)
