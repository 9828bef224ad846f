"""Which learning rate suits each network of the quickstart, on validation images.

    python benchmarks/quickstart_rates.py

Robust accuracy under PGD on the validation images after the last epoch, over three seeds.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from enresnet.report import NETWORKS
from enresnet.training import RunConfig, Trainer, load_recipe

RATES, SEEDS = (0.1, 0.2, 0.3, 0.45, 0.6, 1.0), range(3)


def validation(network: str, rate: float, seed: int) -> float:
    """Return the robust accuracy on validation images of one training."""
    torch.set_num_threads(1)
    recipe = load_recipe("quickstart", learning_rate=rate)
    config = RunConfig(model=network, data="digits", recipe=recipe, seed=seed)
    data = config.load_data()
    *_, last = Trainer(config.create_model(data), data, recipe, seed=seed).epochs()
    return last.score


def main() -> None:
    """Print a table of networks by rates."""
    cases = list(itertools.product(NETWORKS, RATES, SEEDS))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        scores = dict(zip(cases, pool.map(validation, *zip(*cases, strict=True)), strict=True))
    print("rate        " + "".join(f"{rate:>8g}" for rate in RATES))
    for network in NETWORKS:
        means = [sum(scores[network, rate, s] for s in SEEDS) / len(SEEDS) for rate in RATES]
        print(f"{network:<12}" + "".join(f"{100 * mean:>8.1f}" for mean in means))


if __name__ == "__main__":
    main()
