"""Accuracy on held-out images, by which the best network is chosen."""

from __future__ import annotations

import torch
from torch import nn

from enresnet.data import Images
from enresnet.evaluation import evaluate
from enresnet.models.noise import NoiseStream, share_stream
from enresnet.randomness import named_generator
from enresnet.training.batches import share_of
from enresnet.training.engine import Engine
from enresnet.training.objectives import training_attack
from enresnet.training.recipe import Recipe


def validate(
    model: nn.Module,
    images: Images,
    recipe: Recipe,
    *,
    engine: Engine,
    seed: int,
    epoch: int,
    robust: bool,
) -> tuple[float, float | None]:
    """Return natural accuracy and, for robust objectives, accuracy under the training's attack.

    The same random starts every time, so that epochs can be compared. Each process takes its
    share of the images. The model's noise comes from a stream of the validation's own after.
    """
    noise = named_generator(seed, f"validation noise {epoch} {engine.rank}")
    share_stream(model, NoiseStream(noise))
    images = images.first(recipe.validation_images)
    own = share_of(len(images), engine)
    attack = training_attack(recipe, named_generator(seed, f"validation attack {engine.rank}"))
    right = torch.zeros(2, dtype=torch.float64, device=engine.device)
    if own.stop > own.start:
        with engine.autocast():
            result = evaluate(
                model,
                images.subset(own),
                [attack] if robust else [],
                draws=1,
                batch_size=recipe.batch_size,
                warn=False,
                progress=False,
            )
        right[0] = result.natural.scores.sum()
        if robust:
            right[1] = result.robust[attack.name].scores.sum()
    natural, attacked = (engine.sum_over_processes(right) / len(images)).tolist()
    return natural, attacked if robust else None
