"""The batches of a training: which images a step sees, in what order, augmented, at what size."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from enresnet.common.randomness import named_generator
from enresnet.data import DataSet
from enresnet.training.curriculum import halved
from enresnet.training.engine import Engine
from enresnet.training.recipe import Recipe


class TrainingBatches:
    """The training images as batches on the engine's device.

    Args:
        data: Training images, and how they are augmented.
        recipe: Its ``batch_size``, ``augment`` and ``shift`` are followed.
        engine: Device, precision and processes.
        seed: Fixes the order of the images. The caller seeds :attr:`generator`, which augments.

    Raises:
        ValueError: There are fewer training images than processes.
    """

    def __init__(self, data: DataSet, recipe: Recipe, *, engine: Engine, seed: int) -> None:
        if len(data.train) < engine.processes:
            raise ValueError(
                f"devices must not be more than training images: found {engine.processes} "
                f"processes for {len(data.train)} images"
            )
        self._images, self._engine, self._seed = data.train, engine, seed
        size = recipe.batch_size * engine.processes
        self._rows = step_rows(len(data.train), size, engine.processes)
        self._augments = recipe.augment
        self.augmentation = data.augmentation
        if recipe.shift is not None:
            pad = round(recipe.shift * int(data.train.pixels.shape[3]))
            self.augmentation = replace(data.augmentation, pad=pad)
        self.generator = torch.Generator()
        # Channels last: faster on CPUs, and on GPUs in reduced precision.
        contiguous = engine.device.type == "cuda" and engine.precision == "32"
        self.memory_format = torch.contiguous_format if contiguous else torch.channels_last

    @property
    def steps(self) -> int:
        """The number of steps of an epoch."""
        return len(self._rows)

    def order(self, epoch: int) -> list[Tensor]:
        """Return the rows of the images of each step of an epoch, over all processes."""
        generator = named_generator(self._seed, f"order {epoch}")
        order = torch.randperm(len(self._images), generator=generator)
        return [order[rows] for rows in self._rows]

    def load(self, rows: Tensor, *, halve: bool) -> tuple[Tensor, Tensor]:
        """Return the images of some rows, augmented, in [0, 1], and their labels.

        Args:
            rows: The numbers of the images.
            halve: Whether the images come at half the side.
        """
        pixels = self._images.pixels[rows]
        if self._augments:
            pixels = self.augmentation(pixels, self.generator)
        images = self._images.in_unit_range(pixels).to(self._engine.device)
        if halve:
            images = halved(images)
        images = images.contiguous(memory_format=self.memory_format)
        return images, self._images.labels[rows].to(self._engine.device)


def step_rows(count: int, size: int, processes: int = 1) -> list[slice]:
    """Return the rows of each step of an epoch: ``count`` images, ``size`` a step.

    The last step may be smaller. A rest of fewer images than processes joins the step before, so
    that every process has an image.
    """
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] < processes:
        starts.pop()
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], count], strict=True)]
