"""What an objective is: from a batch to the images trained on, and their loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from enresnet.training.recipe import Recipe


class Objective(ABC):
    """One way to train; a batch goes in, a loss to be minimised and the logits come out."""

    robust: bool  # whether networks are selected by robust rather than natural accuracy

    def __init__(self, recipe: Recipe, generator: torch.Generator) -> None:
        self.recipe = recipe
        self.generator = generator

    @abstractmethod
    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, with its graph, and the logits it was computed from."""
