"""The whole idea in about a minute: a network and its Feynman-Kac ensemble, trained and attacked.

On the digits that ship with scikit-learn, over several seeds: both networks are trained
adversarially for the same number of epochs, attacked in white box (averaging gradients over the
noise for the ensemble) at several epsilons, and blindly across the two. What is reported is what
was measured.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
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
from enresnet.evaluation.scoring import drawn_logits, probabilities
from enresnet.models import load_model, save_model, seed_noise
from enresnet.report import NETWORKS, Plan, Quickstart
from enresnet.report.examples import Answers
from enresnet.report.quickstart import (
    BASE,
    DRAWS,
    ENSEMBLE,
    EOT,
    SHOWN_ATTACK,
    Attacked,
    Clean,
    Trained,
)
from enresnet.training import RunConfig, Trainer

# What a job weighs in the progress bar, in the proportions of the time that they took.
TRAININGS = ((ENSEMBLE, 50), (BASE, 16))
CLEAN_WEIGHT = 2


def run_quickstart(
    *, seeds: int = 3, plan: Plan | None = None, progress: bool | None = None
) -> Quickstart:
    """Train a small ResNet and its ensemble on digits, attack both, and return all results.

    About a minute on two cores for three seeds. Jobs run in processes of their own, one on each
    core, so a script must call this under ``if __name__ == "__main__":``.

    Args:
        seeds: How many times all is repeated with other random numbers; 3 by default.
        plan: The training, the number of images for each attack and the curve's radii; by default
            that of ``enresnet quickstart``.
        progress: None (the default) shows a progress bar on a terminal; True and False decide.

    Returns:
        The results; :func:`render_quickstart` makes a page of them.

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
    weight = sum(w for _, w in TRAININGS) + sum(w for *_, w in _attacks(plan)) + CLEAN_WEIGHT
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            max_workers=os.cpu_count(), mp_context=get_context("spawn"), initializer=_set_up
        ) as pool,
        progress_bar("quickstart", weight * seeds, show=progress) as advance,
    ):
        # The longest first, so that the cores end together.
        trained = _gather(
            (
                (pool.submit(_train, plan, network, seed, folder), weight)
                for network, weight in TRAININGS
                for seed in range(seeds)
            ),
            advance,
        )
        attacks = [
            (pool.submit(_attack, plan, network, attack, epsilon, seed, folder), weight)
            for attack, network, epsilon, weight in _attacks(plan)
            for seed in range(seeds)
        ]
        cleans = [(pool.submit(_clean, folder, seed), CLEAN_WEIGHT) for seed in range(seeds)]
        attacked = _gather(attacks, advance)
        clean = _gather(cleans, advance)
    images, labels = load_data("digits").test
    clean.sort(key=lambda c: c.seed)
    return Quickstart(
        trained=sorted(trained, key=lambda t: (t.network, t.seed)),
        attacked=sorted(attacked, key=lambda a: (a.source, a.attack, a.epsilon, a.seed)),
        clean={network: torch.stack([c.scores[network] for c in clean]) for network in NETWORKS},
        images=images,
        labels=labels,
        clean_answers={network: [c.answers[network] for c in clean] for network in NETWORKS},
        seconds=time.monotonic() - start,
        seeds=seeds,
        plan=plan,
    )


def _attacks(plan: Plan) -> Iterator[tuple[str, str, float, int]]:
    """Yield each attack, its network, its epsilon, and its weight."""
    epsilon = plan.recipe.epsilon
    radii = [radius for radius in plan.curve_radii() if radius not in (0.0, epsilon)]
    yield "cw_pixel", ENSEMBLE, epsilon, 9
    yield SHOWN_ATTACK, ENSEMBLE, epsilon, 5
    yield from ((SHOWN_ATTACK, ENSEMBLE, radius, 4) for radius in radii)
    yield "fgsm", ENSEMBLE, epsilon, 2
    yield "cw_pixel", BASE, epsilon, 2
    yield SHOWN_ATTACK, BASE, epsilon, 1
    yield "fgsm", BASE, epsilon, 1
    yield from ((SHOWN_ATTACK, BASE, radius, 1) for radius in radii)


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


def _attack(
    plan: Plan, network: str, name: str, epsilon: float, seed: int, folder: str
) -> Attacked:
    start = time.monotonic()
    of_table = epsilon == plan.recipe.epsilon
    models = _load(folder, seed, "noise" if of_table else f"noise at {epsilon:g}")
    attack = attack_at(name, epsilon, eot=EOT if network == ENSEMBLE else 1, seed=seed)
    test, count = load_data("digits").test, plan.images[name]
    rows = torch.arange(seed * count, (seed + 1) * count) % len(test)
    images, labels = test.batch(rows)
    adversarial = attack(models[network], images, labels, progress=False)
    scores = {
        target: score(model, adversarial, labels, draws=_draws(target))
        for target, model in models.items()
        if of_table or target == network
    }
    seconds = time.monotonic() - start
    answers = {}
    if of_table and name == SHOWN_ATTACK:
        purpose = f"answers under {name} on {network}"
        answers = _answers(_load(folder, seed, purpose), adversarial)
    return Attacked(
        source=network,
        attack=name,
        epsilon=epsilon,
        seed=seed,
        rows=rows,
        scores=scores,
        settings=repr(attack),
        seconds=seconds,
        images=adversarial,
        answers=answers,
    )


def _clean(folder: str, seed: int) -> Clean:
    start = time.monotonic()
    images, labels = load_data("digits").test
    scores = {
        network: score(model, images, labels, draws=_draws(network))
        for network, model in _load(folder, seed, "noise").items()
    }
    answers = _answers(_load(folder, seed, "answers on clean images"), images)
    return Clean(seed, scores, answers, time.monotonic() - start)


def _answers(models: dict[str, Any], images: Tensor) -> dict[str, Answers]:
    """Return what each network says of images: by its probabilities, averaged over its draws."""
    found = {}
    for network, model in models.items():
        drawn = [probabilities(logits) for logits in drawn_logits(model, images, _draws(network))]
        confidence, classes = torch.stack(drawn).mean(dim=0).max(dim=1)
        found[network] = Answers(classes, confidence.float())
    return found


def _load(folder: str, seed: int, purpose: str) -> dict[str, Any]:
    """Return both networks; each purpose has noise of its own, so that none disturbs another's."""
    models = {}
    for network in NETWORKS:
        models[network] = load_model(_weights(folder, network, seed))
        seed_noise(models[network], named_generator(seed, f"quickstart {purpose}"))
    return models


def _weights(folder: str, network: str, seed: int) -> Path:
    return Path(folder) / f"{network}-{seed}.safetensors"


def _draws(network: str) -> int:
    return DRAWS if network == ENSEMBLE else 1
