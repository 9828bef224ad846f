"""What loading and augmenting a batch costs beside the training step that uses it.

    python benchmarks/data_loading.py

CIFAR-sized random images, batch 128, ResNet20: the median of interleaved repeats, as a share of
one natural training step, the cheapest there is, and of one PGD-10 step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from enresnet.data import Augmentation, DataSet, Images
from enresnet.models import create_model
from enresnet.training import Recipe, Trainer

BATCH, REPEATS = 128, 15


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print the shares."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (50_000, 3, 32, 32), generator=generator).to(torch.uint8)
    labels = torch.randint(10, (50_000,), generator=generator)
    images = Images(pixels, labels, tuple("0123456789"))
    data = DataSet("random", images, images.first(1), images.first(1), Augmentation())
    recipe = Recipe(objective="natural", batch_size=BATCH)
    trainer = Trainer(create_model("resnet20"), data, recipe)
    robust = Trainer(create_model("resnet20"), data, replace(recipe, objective="pgd"))

    def load() -> tuple[Tensor, Tensor]:
        return trainer._batch(torch.randint(len(images), (BATCH,), generator=generator))

    def step(trainer: Trainer) -> None:
        trainer._update(batch, target, BATCH, 0.1)

    times: dict[str, list[float]] = {"loading": [], "natural": [], "pgd": []}
    for repeat in range(REPEATS + 1):
        batch, target = load()
        sample = {
            "loading": timed(load),
            "natural": timed(lambda: step(trainer)),
            "pgd": timed(lambda: step(robust)) if repeat < 4 else float("nan"),
        }
        for name, seconds in sample.items():
            if repeat > 0 and seconds == seconds:  # the first is a warm-up; NaN was not run
                times[name].append(seconds)
    loading = statistics.median(times["loading"])
    print(f"loading and augmenting {BATCH} images: {1000 * loading:.2f} ms")
    for name in ("natural", "pgd"):
        whole = statistics.median(times[name])
        print(f"share of a {name} step of {1000 * whole:.0f} ms: {100 * loading / whole:.2f} %")


if __name__ == "__main__":
    main()
