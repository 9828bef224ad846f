"""Separately trained networks as one model (Sec. 4.2)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from enresnet.models import Ensemble
from enresnet.training.run import CHECKPOINTS, Run


def integrate(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    weights: Sequence[float] | None = None,
    overwrite: bool = False,
    trust_code: bool = False,
) -> Run:
    """Join the best networks of several runs into one model (Sec. 4.2), stored as a new run.

    Nothing is trained: the logits of the parts are averaged. The new run is evaluated at the
    largest epsilon that any part was trained with. If it is interrupted, the same call finishes it.

    Args:
        runs: The folders of two or more runs of the same data.
        out: The folder of the new run.
        weights: The weight of each run in the average; equal by default.
        overwrite: True replaces the network that ``out`` holds, if it was integrated from the same
            runs.
        trust_code: True imports and runs the code, ``module.path:name``, that builds the networks,
            where the runs name some.

    Returns:
        The new run.

    Raises:
        FileExistsError: ``out`` holds another run, or these runs have other networks by now.
        FileNotFoundError: A folder is not a run, or has no network yet.
        ValueError: There are fewer than two runs, their data differ, or the weights do not fit.

    Example::

        recipe = enresnet.load_recipe("natural", epochs=1)
        for seed in (0, 1):
            config = enresnet.RunConfig("resnet8", "digits", recipe, limit=100, seed=seed)
            enresnet.train(config, f"runs/seed{seed}")
        run = enresnet.integrate(["runs/seed0", "runs/seed1"], "runs/both")
    """
    if len(runs) < 2:
        raise ValueError(f"runs must be two or more to be integrated, found {len(runs)}")
    opened = [Run.open(run) for run in runs]
    first = opened[0].config
    for run in opened[1:]:
        if (run.config.data, run.config.size, run.config.gray) != (
            first.data,
            first.size,
            first.gray,
        ):
            raise ValueError(
                f"runs must be of the same data: {opened[0].folder} is of {first.data}, "
                f"{run.folder} of {run.config.data}"
            )
    model = Ensemble([run.load("best", trust_code=trust_code) for run in opened], weights=weights)
    config = replace(
        first,
        model="+".join(run.config.model for run in opened),
        # What it is evaluated against by default.
        recipe=replace(first.recipe, epsilon=max(run.config.recipe.epsilon for run in opened)),
        parts=tuple(str(Path(run)) for run in runs),
        weights=tuple(model.weights.tolist()),
    )
    result = Run.start(Path(out), config)
    with result.locked():
        for name in CHECKPOINTS:
            if overwrite or not result.weights(name).is_file():
                result.save(name, model)
            elif not _same_weights(result.load(name, trust_code=trust_code), model):
                raise FileExistsError(
                    f"{result.weights(name)} holds another network than these runs make now: "
                    "choose another --out, or write over it with --overwrite"
                )
    return result


def _same_weights(one: nn.Module, two: nn.Module) -> bool:
    there, here = one.state_dict(), two.state_dict()
    return there.keys() == here.keys() and all(torch.equal(there[k], here[k]) for k in here)
