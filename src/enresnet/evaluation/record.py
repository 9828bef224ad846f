"""What was found of a model, kept in a folder: evaluation.json and scores.safetensors.

``evaluation.json`` holds a section for each checkpoint, in it the natural accuracy and the robust
ones by attack; attacks measured later join those that are there. ``scores.safetensors`` holds how
often each single image was right, so that two models can be compared image by image.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from enresnet.evaluation.accuracy import Accuracy, Evaluation
from enresnet.evaluation.statistics import Comparison, compare
from enresnet.evaluation.work import NATURAL
from enresnet.files import replacing

ABOUT = ("model", "weights", "data_name", "checkpoint", "epsilon")  # what all entries share
EVALUATION, SCORES = "evaluation.json", "scores.safetensors"


@dataclass(frozen=True)
class Record:
    """The folder that results are kept in."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of results."""
        return self.folder / EVALUATION

    def sections(self) -> dict[str, Any]:
        """Return all that is kept."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return {}
        try:
            stored = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{self.path} is not JSON ({error}); remove it") from error
        if not isinstance(stored, dict):
            raise ValueError(f"{self.path} must hold sections, found a {type(stored).__name__}")
        return stored

    def add(
        self, section: str, result: Evaluation, *, data: str, circumstances: dict[str, Any]
    ) -> None:
        """Keep a result; ``data`` tells the images apart from others, whatever their number.

        Natural accuracy on fewer images than those of the one kept does not replace it.
        """
        stored = self.sections()
        known = stored.get(section, {})
        if known.get("weights") != circumstances["weights"]:
            known = {}  # of a network that is no more
        measured = {NATURAL: result.natural, **result.robust}
        before = known.get(NATURAL, {})
        if before.get("images", 0) > result.natural.images and before.get("data") == data:
            del measured[NATURAL]
        entries = {
            name: {**value.to_json(), "data": data, "circumstances": circumstances}
            for name, value in measured.items()
        }
        natural = entries.pop(NATURAL, before)
        stored[section] = {
            **{name: circumstances[name] for name in ABOUT},
            NATURAL: natural,
            "robust": {**known.get("robust", {}), **entries},
        }
        self._add_scores(section, measured, data, fresh=not known)
        with replacing(self.path) as temporary:
            temporary.write_text(json.dumps(stored, indent=2) + "\n")

    def _add_scores(
        self, section: str, measured: dict[str, Accuracy], data: str, *, fresh: bool
    ) -> None:
        tensors, about = self._scores()
        for key in list(tensors):
            if fresh and key.rpartition("/")[0] == section:
                del tensors[key], about[key]
        for name, value in measured.items():
            assert value.scored is not None
            key = f"{section}/{name}"
            tensors[key] = value.scored.right.sum(dim=1).to(torch.int16)
            about[key] = {"draws": value.draws, "data": data}
        with replacing(self.folder / SCORES) as temporary:
            temporary.write_bytes(save(tensors, {"about": json.dumps(about)}))

    def _scores(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self.folder / SCORES
        if not path.is_file():
            return {}, {}
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("about", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove it") from error
        return tensors, about

    def compare(self, section: str, other: Record, other_section: str) -> dict[str, Comparison]:
        """Compare with another model's results, for every attack that both have on these images.

        Where one was measured on more images, the first ones that both have are compared.
        """
        mine, about = self._scores()
        others, other_about = other._scores()
        found = {}
        order = sorted(mine.items(), key=lambda item: (not item[0].endswith(NATURAL), item[0]))
        for key, counts in order:
            place, _, name = key.rpartition("/")
            twin = f"{other_section}/{name}"
            if place != section or twin not in others:
                continue
            if about[key]["data"] != other_about[twin]["data"]:
                continue
            images = min(len(counts), len(others[twin]))
            found[name] = compare(
                counts[:images] / about[key]["draws"],
                others[twin][:images] / other_about[twin]["draws"],
            )
        return found
