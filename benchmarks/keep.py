"""Keep what a finished training proved: its best network in half precision, with how it came about.

    python benchmarks/keep.py RUN results/cifar10/resnet20

The folder is a run like any other for ``enresnet evaluate``, ``transfer`` and ``diagnose``; it
cannot be trained on.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import tyro

from enresnet.common.files import atomic_write
from enresnet.models import load_model, save_model
from enresnet.training import Run


def main(run: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path]) -> None:
    """Copy a run's configuration, metrics and best network."""
    opened = Run.open(run)
    if not opened.finished:
        raise SystemExit(f"{run} is not finished: enresnet resume {run}")
    out.mkdir(parents=True, exist_ok=True)
    of_training = () if opened.config.parts else ("metrics.csv", "environment.json")
    for name in ("config.yaml", *of_training):
        with atomic_write(out / name) as temporary:
            shutil.copyfile(run / name, temporary)
    save_model(load_model(opened.weights("best")).half(), out / "best.safetensors")
    print(f"{out}: {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    tyro.cli(main)
