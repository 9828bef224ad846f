"""The whole idea in about a minute: a network and its Feynman-Kac ensemble, trained and attacked.

On the digits that ship with scikit-learn, over several seeds: both networks are trained
adversarially for the same number of epochs, attacked in white box (averaging gradients over the
noise for the ensemble) and blindly across the two. What is reported is what was measured.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from enresnet.attacks import attack_at
from enresnet.common.allocator import keep_memory
from enresnet.common.progress import progress_bar
from enresnet.common.randomness import named_generator
from enresnet.data import load_data
from enresnet.evaluation import score
from enresnet.evaluation.scoring import predictions
from enresnet.models import load_model, save_model, seed_noise
from enresnet.report import NETWORKS, Plan, Quickstart
from enresnet.report.quickstart import (
    BASE,
    DRAWS,
    ENSEMBLE,
    EOT,
    Attacked,
    Trained,
)
from enresnet.training import RunConfig, Trainer

SHOWN = 8  # images in the grid: the first ones, not chosen


def run_quickstart(
    *, seeds: int = 3, plan: Plan | None = None, progress: bool | None = None
) -> Quickstart:
    """Train a small ResNet and its ensemble on digits, attack both, and return all results.

    About a minute on two cores for three seeds. Jobs run in processes of their own, one on each
    core, so a script must call this under ``if __name__ == "__main__":``.

    Args:
        seeds: How many times all is repeated with other random numbers; 3 by default.
        plan: The training, and the number of images for each attack; by default that of
            ``enresnet quickstart``.
        progress: None (the default) shows a progress bar on a terminal; True and False decide.

    Returns:
        The results; :func:`quickstart_page` makes a page of them.

    Example::

        from enresnet.paper import run_quickstart
        from enresnet.report import Plan

        plan = Plan(
            recipe=enresnet.load_recipe("quickstart", epochs=1),
            images={"fgsm": 20, "ifgsm20": 5, "cw_pixel": 5},
        )
        result = run_quickstart(seeds=1, plan=plan)
    """
    start = time.monotonic()
    plan = plan or Plan()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            max_workers=os.cpu_count(), mp_context=get_context("spawn"), initializer=_set_up
        ) as pool,
        progress_bar("quickstart", 100 * seeds, show=progress) as advance,
    ):
        # The longest first, so that the cores end together. Weights in % of the work, as measured.
        trained = _gather(
            (
                (pool.submit(_train, plan, network, seed, folder), weight)
                for network, weight in ((ENSEMBLE, 44), (BASE, 12))
                for seed in range(seeds)
            ),
            advance,
        )
        attacked = _gather(
            (
                (pool.submit(_attack, plan, network, attack, seed, folder), weight)
                for attack, network, weight in (
                    ("cw_pixel", ENSEMBLE, 28),
                    ("ifgsm20", ENSEMBLE, 11),
                    ("cw_pixel", BASE, 2),
                    ("ifgsm20", BASE, 1),
                    ("fgsm", ENSEMBLE, 1),
                    ("fgsm", BASE, 1),
                )
                for seed in range(seeds)
            ),
            advance,
        )
        clean, answers = _clean(folder, seeds)
    images, labels = load_data("digits").test[:SHOWN]
    order = sorted(attacked, key=lambda a: (a.source, a.attack, a.seed))
    return Quickstart(
        trained=sorted(trained, key=lambda t: (t.network, t.seed)),
        attacked=order,
        clean=clean,
        examples=images,
        labels=labels,
        clean_answers=answers,
        seconds=time.monotonic() - start,
        seeds=seeds,
        plan=plan,
    )


def _gather(jobs: Iterable[tuple[Future[Any], int]], advance: Callable[[int], None]) -> list[Any]:
    weights = dict(jobs)
    results = []
    for future in as_completed(weights):
        results.append(future.result())
        advance(weights[future])
    return results


def _set_up() -> None:
    """Prepare a process of the pool."""
    keep_memory()
    torch.set_num_threads(1)  # networks this small lose by more


def _train(plan: Plan, network: str, seed: int, folder: str) -> Trained:
    start = time.monotonic()
    recipe = replace(plan.recipe, learning_rate=plan.rates[network])
    config = RunConfig(model=network, data="digits", recipe=recipe, seed=seed)
    data = config.load_data()
    model = config.create_model(data)
    epochs = list(Trainer(model, data, recipe, seed=seed).epochs())
    save_model(model, _weights(folder, network, seed))
    return Trained(network, seed, epochs, time.monotonic() - start)


def _attack(plan: Plan, network: str, name: str, seed: int, folder: str) -> Attacked:
    start = time.monotonic()
    models = _load(folder, seed)
    eot = EOT if network == ENSEMBLE else 1
    attack = attack_at(name, plan.recipe.epsilon, eot=eot, seed=seed)
    test, count = load_data("digits").test, plan.images[name]
    rows = torch.arange(seed * count, (seed + 1) * count) % len(test)
    images, labels = test.batch(rows)
    adversarial = attack(models[network], images, labels, progress=False)
    return Attacked(
        source=network,
        attack=name,
        seed=seed,
        rows=rows,
        scores={
            target: score(model, adversarial, labels, draws=_draws(target))
            for target, model in models.items()
        },
        settings=repr(attack),
        seconds=time.monotonic() - start,
        images=adversarial[:SHOWN],
        answers={
            target: predictions(model, adversarial[:SHOWN], draws=_draws(target))
            for target, model in models.items()
        },
    )


def _clean(folder: str, seeds: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    images, labels = load_data("digits").test
    scores: dict[str, list[Tensor]] = {network: [] for network in NETWORKS}
    answers: dict[str, Tensor] = {}
    for seed in range(seeds):
        for network, model in _load(folder, seed).items():
            scores[network].append(score(model, images, labels, draws=_draws(network)))
            if seed == 0:
                answers[network] = predictions(model, images[:SHOWN], draws=_draws(network))
    return {network: torch.stack(values) for network, values in scores.items()}, answers


def _load(folder: str, seed: int) -> dict[str, Any]:
    models = {}
    for network in NETWORKS:
        models[network] = load_model(_weights(folder, network, seed))
        seed_noise(models[network], named_generator(seed, "quickstart noise"))
    return models


def _weights(folder: str, network: str, seed: int) -> Path:
    return Path(folder) / f"{network}-{seed}.safetensors"


def _draws(network: str) -> int:
    return DRAWS if network == ENSEMBLE else 1
