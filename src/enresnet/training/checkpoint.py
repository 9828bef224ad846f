"""A checkpoint as a file: one safetensors file, written whole, checked when read.

What it holds, :mod:`enresnet.training.state` says.
``last/step-00001234.safetensors`` holds the tensors, and in its header plain JSON and a SHA-256
digest of both. The newest two are kept, so that a damaged one costs no more than one interval.
Torch is imported only where tensors are read or written: listing runs needs none.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from enresnet.common.files import atomic_write
from enresnet.common.reading import regular_file

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "enresnet-state-1"
KEPT = 2


def write_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> Path:
    """Write the state after ``step`` steps; of the older checkpoints the newest is kept."""
    from safetensors.torch import save

    from enresnet.models.storage import content_digest

    folder.mkdir(exist_ok=True)
    # clone: safetensors refuses tensors that share memory, as those of a repeated member do.
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    text = json.dumps(dict(facts))
    header = {"format": FORMAT, "facts": text, "sha256": content_digest(whole, text)}
    path = _path(folder, step)
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(whole, header))
    others = [other for other in checkpoints(folder) if other != path]
    for old in others[: 1 - KEPT]:
        old.unlink(missing_ok=True)
    return path


def newest_checkpoint(
    folder: Path,
) -> tuple[dict[str, Tensor], dict[str, Any], list[Path]] | None:
    """Return the newest whole checkpoint and the newer ones that are damaged.

    Warns of each damaged one.
    """
    damaged: list[Path] = []
    for path in reversed(checkpoints(folder)):
        try:
            return *_read(path), damaged
        except (SafetensorError, ValueError, KeyError, OSError) as error:
            damaged.append(path)
            warnings.warn(f"{path} is damaged ({error}); looking at the one before", stacklevel=2)
    return None


def facts_of(path: Path) -> dict[str, Any]:
    """Return the plain part of a checkpoint, without reading the tensors."""
    with safe_open(regular_file(path), framework="np") as file:  # "pt" would import torch
        facts: dict[str, Any] = json.loads((file.metadata() or {})["facts"])
    return facts


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:010d}.safetensors"


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from enresnet.models.storage import content_digest

    with safe_open(regular_file(path), framework="pt") as file:
        header = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is {header.get('format')!r}, not {FORMAT!r}")
    if header["sha256"] != content_digest(tensors, header["facts"]):
        raise ValueError("its content does not match its digest")
    return tensors, json.loads(header["facts"])
