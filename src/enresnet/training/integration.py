"""Separately trained networks as one model (Sec. 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from enresnet.models import Ensemble
from enresnet.training.run import CHECKPOINTS, Run


def integrate(
    runs: Sequence[Path],
    out: Path,
    *,
    weights: Sequence[float] | None = None,
    overwrite: bool = False,
) -> Run:
    """Join the best networks of several runs into a new run; they weigh equally unless told.

    No training: the parts are averaged as they are, and evaluated one network at a time, against
    the largest epsilon that any of them was trained with. Killed, the same call ends what it began.
    A folder that holds another network is left as it is, unless it is an integrated run of the same
    configuration and ``overwrite`` says so.
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
    model = Ensemble([run.load("best") for run in opened], weights=weights)
    config = replace(
        first,
        model="+".join(run.config.model for run in opened),
        # What it is evaluated against, unless told.
        recipe=replace(first.recipe, epsilon=max(run.config.recipe.epsilon for run in opened)),
        parts=tuple(map(str, runs)),
        weights=tuple(model.weights.tolist()),
    )
    result = Run.start(out, config)
    with result.locked():
        for name in CHECKPOINTS:
            if overwrite or not result.weights(name).is_file():
                result.save(name, model)
            elif not _same_weights(result.load(name), model):
                raise FileExistsError(
                    f"{result.weights(name)} holds another network than these runs make now: "
                    "choose another --out, or write over it with --overwrite"
                )
    return result


def _same_weights(one: nn.Module, two: nn.Module) -> bool:
    there, here = one.state_dict(), two.state_dict()
    return there.keys() == here.keys() and all(torch.equal(there[k], here[k]) for k in here)
