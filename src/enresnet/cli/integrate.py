"""``enresnet integrate RUN RUN ... --out RUN``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import tyro

from enresnet import training
from enresnet.cli.output import say


def command(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path,
    weights: tuple[float, ...] | None = None,
    overwrite: bool = False,
    trust_code: bool = False,
) -> None:
    """Join separately trained networks into one model (Sec. 4.2), as a new run.

    Args:
        runs: Two or more run folders of the same data.
        out: The new run folder.
        weights: One number per run; equal by default.
        overwrite: Replace the network that these runs, trained differently, made there before.
        trust_code: Import and run the code that the runs name as their networks, module.path:name.
    """
    run = training.integrate(runs, out, weights=weights, overwrite=overwrite, trust_code=trust_code)
    say(f"{run.config.model} in {run.folder}; next: enresnet evaluate {quote(str(run.folder))}")
