"""Accuracy on held-out images, image by image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from enresnet.common.randomness import named_generator
from enresnet.data import Images
from enresnet.evaluation import evaluate
from enresnet.models.noise import NoiseStream, noise_modules, share_stream
from enresnet.training.engine import Engine
from enresnet.training.events import selecting
from enresnet.training.objectives import training_attack
from enresnet.training.recipe import Recipe

DRAWS = 5  # of a noisy network's predictions, on every image


@dataclass(frozen=True)
class Validation:
    """The share of draws in which each image was right."""

    natural: Tensor
    robust: Tensor | None  # under the attack of training, for robust objectives

    @property
    def scores(self) -> Tensor:
        """Those that a network is selected by."""
        return selecting(self.natural, self.robust)


def validate(
    model: nn.Module,
    images: Images,
    recipe: Recipe,
    *,
    engine: Engine,
    seed: int,
    epoch: int,
    robust: bool,
) -> Validation:
    """Score all ``images``, clean and, for robust objectives, under the attack of training.

    The same random starts every time, so that epochs can be compared. Each process takes its
    share of the images, and all get the scores of all. Noise comes from a stream of the
    validation's own; the model is left as it was, its noise and its mode included.
    """
    noise = named_generator(seed, f"validation noise {epoch} {engine.rank}")
    own = engine.share_of(len(images))
    attack = training_attack(recipe, named_generator(seed, f"validation attack {engine.rank}"))
    scores = torch.zeros(2, len(images), dtype=torch.float64, device=engine.device)
    if own.stop > own.start:
        with _drawing_from(model, NoiseStream(noise)), engine.autocast():
            result = evaluate(
                model,
                images.subset(own),
                [attack] if robust else [],
                draws=DRAWS,
                batch_size=recipe.batch_size,
                warn=False,
                progress=False,
            )
        scores[0, own] = result.natural.scores.to(scores)
        if robust:
            scores[1, own] = result.robust[attack.name].scores.to(scores)
    natural, attacked = engine.sum_over_processes(scores).cpu()
    return Validation(natural, attacked if robust else None)


@contextmanager
def _drawing_from(model: nn.Module, stream: NoiseStream) -> Iterator[None]:
    """Let all of the model's noise come from ``stream`` while the block runs."""
    before = [(module, module.stream) for module in noise_modules(model)]
    share_stream(model, stream)
    try:
        yield
    finally:
        for module, own in before:
            module.stream = own
