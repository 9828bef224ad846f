"""A teacher's predictions on the training images, computed once for a whole training."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.common.randomness import named_generator
from enresnet.data import Images
from enresnet.models import load_model, seed_noise
from enresnet.training.engine import Engine
from enresnet.training.run import Run

BATCH = 256


def load_teacher(source: str, *, trust_code: bool = False) -> nn.Module:
    """Return the best network of a run's folder, or that of a safetensors file."""
    path = Path(source)
    if path.is_dir():
        return Run.open(path).load("best", trust_code=trust_code)
    return load_model(path, trust_code=trust_code)


@torch.no_grad()
def teacher_answers(
    source: str,
    images: Images,
    *,
    mirror: bool,
    engine: Engine,
    seed: int,
    trust_code: bool = False,
) -> Tensor:
    """Return the teacher's log-probabilities for each image: images x classes.

    With ``mirror``, probabilities are averaged over the image and its mirror image, each with noise
    of its own: the student sees both. Every process computes all of them, from the same seed.
    """
    teacher = load_teacher(source, trust_code=trust_code).to(engine.device).eval()
    seed_noise(teacher, named_generator(seed, "teacher noise"))
    answers: Tensor | None = None
    for start in range(0, len(images), BATCH):
        rows = slice(start, start + BATCH)
        batch, _ = images.batch(rows)
        batch = batch.to(engine.device)
        with engine.autocast():
            logits = [teacher(x) for x in ([batch, batch.flip(3)] if mirror else [batch])]
        mean = sum(one.float().softmax(dim=1) for one in logits) / len(logits)
        assert isinstance(mean, Tensor)
        if answers is None:  # whole at once: pieces kept between batches would scatter the memory
            answers = torch.empty(len(images), mean.shape[1])
        answers[rows] = mean.clamp_min(torch.finfo(torch.float32).tiny).log()
    assert answers is not None  # there is at least one image
    if answers.shape[1] != len(images.classes):
        raise ValueError(
            f"teacher must tell the data's {len(images.classes)} classes apart: {source} tells "
            f"{answers.shape[1]}"
        )
    return answers


def answers_digest(answers: Tensor | None) -> str | None:
    """Return the digest by which a resumed training recognises the predictions."""
    if answers is None:
        return None
    content: Any = answers.contiguous().numpy()
    return hashlib.sha256(content).hexdigest()[:16]
