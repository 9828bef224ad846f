"""``enresnet resume RUN``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from enresnet import training
from enresnet.cli.output import check_outputs
from enresnet.cli.train import Hardware, train_and_tell
from enresnet.training import Run


def command(
    run: tyro.conf.Positional[Path],
    *,
    hardware: Annotated[Hardware, tyro.conf.arg(name="")],
    overwrite: bool = False,
    trust_code: bool = False,
    json: Path | None = None,
) -> None:
    """Resume a training run that was stopped, as its config.yaml says.

    Args:
        run: The folder that enresnet train made.
        hardware: Where it runs; the number of processes must be the same as before.
        overwrite: Discard the networks that are there and train anew.
        trust_code: Import and run the code that config.yaml names as its network, module.path:name.
        json: Also write the epochs to this file.
    """
    check_outputs(json)
    begin = partial(training.resume, run, overwrite=overwrite, trust_code=trust_code)
    train_and_tell(begin, Run.open(run).config, hardware, json)
