"""scores.safetensors: how often each single image was right, with what that depends on.

With it two models can be compared image by image. Its tensors are called SECTION/ATTACK, after the
sections of ``evaluation.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from enresnet.common.files import atomic_write
from enresnet.evaluation.accuracy import Accuracy


def add_scores(
    path: Path, section: str, measured: Mapping[str, Accuracy], *, data: str, fresh: bool
) -> None:
    """Add to the file what was measured, by attack; ``fresh`` drops what the section had before.

    ``data`` tells the images apart from others.
    """
    tensors, about = read_scores(path)
    for key in list(tensors):
        if fresh and key.rpartition("/")[0] == section:
            del tensors[key], about[key]
    for name, value in measured.items():
        assert value.scored is not None
        key = f"{section}/{name}"
        tensors[key] = value.scored.counts
        about[key] = about_scores(value, data)
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(tensors, {"about": json.dumps(about)}))


def about_scores(value: Accuracy, data: str | None) -> dict[str, Any]:
    """Return what the scores of an accuracy depend on; ``data`` is the digest of the images."""
    return {
        "draws": value.draws,
        "deterministic": value.deterministic,
        "shared_variance": value.shared_variance,
        "data": data,
        "used": value.used,
        "settings": value.settings,
    }


def read_scores(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return how often each image was right, and what that depends on, by SECTION/ATTACK."""
    if not path.is_file():
        return {}, {}
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, counts in tensors.items():
            _check_counts(name, counts, about)
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it") from error
    return tensors, about


def _check_counts(name: str, counts: Tensor, about: dict[str, Any]) -> None:
    """Raise unless how often images were right, and in how many draws, can both be."""
    known = about.get(name)
    if not isinstance(known, dict) or not isinstance(known.get("data"), str):
        raise ValueError(f"it does not say what {name!r} depends on")
    draws = known.get("draws")
    if not isinstance(draws, int) or draws < 1:
        raise ValueError(f"{draws!r} draws of {name!r}")
    if not isinstance(known.get("settings") or {}, dict):
        raise ValueError(f"the settings of {name!r} are no mapping")
    if not isinstance(known.get("shared_variance", 0.0), int | float):
        raise ValueError(f"the shared variance of {name!r} is no number")
    whole = counts.ndim == 1 and not counts.is_floating_point() and not counts.is_complex()
    if not whole or (len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= draws):
        raise ValueError(f"{name!r} does not count right answers in {draws} draws")
