"""Does every objective learn? One epoch each on a few real images; the loss must fall.

    python benchmarks/objectives.py [--data cifar10] [--images 2000] [--model en1_resnet20]

Prints the mean loss of the first and of the last quarter of the epoch.
"""

from __future__ import annotations

import statistics
import sys

import tyro

from enresnet.training import RunConfig, Step, Trainer, load_recipe
from enresnet.training.objectives import OBJECTIVES


def main(data: str = "cifar10", images: int = 2000, model: str = "en1_resnet20") -> int:
    """Print a line an objective; return 1 if a loss did not fall."""
    fell = True
    for name in OBJECTIVES:
        recipe = load_recipe("paper", objective=name, epochs=1, batch_size=32, learning_rate=0.02)
        config = RunConfig(model=model, data=data, recipe=recipe, limit=images)
        loaded = config.load_data()
        losses: list[float] = []

        def note(step: Step, losses: list[float] = losses) -> None:
            losses.append(step.loss)

        list(Trainer(config.create_model(loaded), loaded, recipe).epochs(note))
        quarter = len(losses) // 4
        first, last = statistics.mean(losses[:quarter]), statistics.mean(losses[-quarter:])
        print(f"{name:<8} {first:.3f} -> {last:.3f}", flush=True)
        fell &= last < first
    return 0 if fell else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
