"""``enresnet evaluate RUN``."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
import tyro

import enresnet
from enresnet.attacks import attack_at
from enresnet.cli.output import Ratio, percent, print_table, write_json
from enresnet.evaluation import Evaluation, evaluate
from enresnet.files import writable
from enresnet.models import seed_noise
from enresnet.models.noise import noise_modules
from enresnet.randomness import named_generator
from enresnet.training import Run


def command(
    run: tyro.conf.Positional[Path],
    *,
    attacks: tuple[str, ...] = ("fgsm", "ifgsm20", "cw"),
    eot: int | None = None,
    epsilon: Ratio | None = None,
    draws: int = 10,
    checkpoint: str = "best",
    limit: int | None = None,
    batch_size: int = 128,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Measure a run's natural and robust accuracy on its test images, with 95 % intervals.

    The result is kept in RUN/evaluation.json.

    Args:
        run: The folder that enresnet train made.
        attacks: Their names; see enresnet attacks.
        eot: Draws of the model's noise averaged in every gradient; 5 for a noisy model, else 1.
        epsilon: Largest change of a pixel; by default the one the run was trained against.
        draws: Predictions of a noisy model that every image is scored over.
        checkpoint: best or last.
        limit: Use only the first so many test images.
        batch_size: Images that meet the model at once.
        seed: Fixes the attacks and the noise.
        json: Also write the result to this file.
    """
    if json is not None:
        writable(json)
    opened = Run.open(run)
    model = opened.load(checkpoint)
    seed_noise(model, named_generator(seed, "evaluation noise"))
    noisy = any(module.noise > 0 for module in noise_modules(model))
    if eot is None:
        eot = 5 if noisy else 1
    if epsilon is None:
        epsilon = opened.config.recipe.epsilon
    elif any("_l2" in name for name in attacks):
        raise ValueError(
            "epsilon is the radius in linf; attacks in l2 keep their own, leave it out"
        )
    chosen = [attack_at(name, epsilon, eot=eot, seed=seed) for name in attacks]
    result = evaluate(
        model,
        opened.config.load_data().test,
        chosen,
        draws=draws,
        batch_size=batch_size,
        limit=limit,
    )
    values = {**result.to_json(), **_circumstances(opened, checkpoint, seed, epsilon)}
    path = opened.record_evaluation(checkpoint, values)
    write_json(json, values)
    print_table(
        _rows(result),
        title=f"{opened.config.model} on {opened.config.data}, {result.natural.images} test images",
        caption=f"Accuracy in %, with the 95 % interval, over {result.natural.draws} draws of the "
        f"noise an image. epsilon = {epsilon:.4g}, EOT over {eot}. Kept in {path}",
    )


def _rows(result: Evaluation) -> list[dict[str, str]]:
    rows = [{"images": "clean", "accuracy": percent(result.natural), **_extremes(result.natural)}]
    rows += [
        {"images": name, "accuracy": percent(value), **_extremes(value)}
        for name, value in result.robust.items()
    ]
    return rows


def _extremes(value: Any) -> dict[str, str]:
    worst = min(value.per_class, key=value.per_class.get)
    best = max(value.per_class, key=value.per_class.get)
    return {
        "worst class": f"{worst} {100 * value.per_class[worst]:.1f}",
        "best class": f"{best} {100 * value.per_class[best]:.1f}",
        "seconds": f"{value.seconds:.1f}",
    }


def _circumstances(run: Run, checkpoint: str, seed: int, epsilon: float) -> dict[str, Any]:
    """Return what else is needed to repeat the evaluation."""
    return {
        "model": run.config.model,
        "data": run.config.data,
        "checkpoint": checkpoint,
        "seed": seed,
        "epsilon": epsilon,
        "versions": {
            "enresnet": enresnet.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }
