"""The loss of a step as a module, so that DDP can wrap it."""

from __future__ import annotations

from torch import Tensor, nn

from enresnet.training.objectives import Objective


class CraftedBatch:
    """What the loss needs. Not a tuple: Fabric would round the images of one to its precision."""

    def __init__(self, images: Tensor, crafted: Tensor, labels: Tensor) -> None:
        self.images, self.crafted, self.labels = images, crafted, labels


class ObjectiveLoss(nn.Module):
    """The objective's loss as one forward pass, however many it makes: DDP counts on one."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: CraftedBatch) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the logits of the crafted images."""
        return self.objective.loss(self.model, batch.images, batch.crafted, batch.labels)
