"""Sets of attacked images on disk, for use against any model.

A set is a folder: ``set.json`` tells the attack, the model and the data that made it, and the
images lie beside it, float32 in safetensors files of one batch each, or 8-bit in PNG files by
class. The set is written batch by batch, so neither its making nor its reading needs it whole in
memory.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import Dataset

from enresnet import checks
from enresnet.data.images import Images, from_dataset
from enresnet.files import replacing

ABOUT = "set.json"
FORMAT = "enresnet-adversarial-set-1"
KINDS = ("float32", "png")
LEVELS = 255


class AdversarialSet:
    """A set that is being written."""

    def __init__(
        self,
        folder: Path,
        *,
        classes: Sequence[str],
        about: dict[str, Any],
        kind: str = "float32",
    ) -> None:
        self.folder, self._kind = folder, checks.choice("kind", kind, KINDS)
        self._classes = tuple(classes)
        self._about = {
            "format": FORMAT,
            "kind": self._kind,
            "classes": list(classes),
            **json.loads(json.dumps(about)),
        }
        path = folder / ABOUT
        if folder.exists() and (
            not folder.is_dir() or (any(folder.iterdir()) and not path.exists())
        ):
            raise FileExistsError(f"{folder} exists already and is no set of images")
        if path.exists() and json.loads(path.read_text()) != self._about:
            raise FileExistsError(
                f"{folder} holds a set made otherwise (see {path}); choose another folder"
            )

    def write(self, start: int, images: Tensor, labels: Tensor, clean: Tensor) -> None:
        """Store a batch whose first image is number ``start``; what was there is written again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / ABOUT).exists():
            with replacing(self.folder / ABOUT) as temporary:
                temporary.write_text(json.dumps(self._about, indent=2) + "\n")
        if self._kind == "png":
            self._write_png(start, images, labels, clean)
            return
        tensors = {"images": images.float().cpu().contiguous(), "labels": labels.cpu()}
        with replacing(self.folder / f"{start:08d}.safetensors") as temporary:
            temporary.write_bytes(save(tensors))

    def _write_png(self, start: int, images: Tensor, labels: Tensor, clean: Tensor) -> None:
        pixels = eight_bit(images, clean).permute(0, 2, 3, 1).cpu().numpy()
        for number, (pixel, label) in enumerate(zip(pixels, labels.tolist(), strict=True), start):
            # class numbers, not names: a name may hold what a path may not
            path = self.folder / f"{label:04d}" / f"{number:08d}.png"
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as temporary:
                picture = Image.fromarray(pixel[..., 0] if pixel.shape[-1] == 1 else pixel)
                picture.save(temporary, format="png")


def eight_bit(images: Tensor, clean: Tensor) -> Tensor:
    """Return attacked images as uint8, every pixel rounded towards the clean one.

    So they stay in the ball; rounding to the nearest would leave it, or lose half the attack.
    """
    hair = 1e-3  # 8/255 is not exactly 8 levels in float32
    scaled = images.double().cpu() * LEVELS
    raised = images.cpu() > clean.cpu()
    rounded = torch.where(raised, (scaled + hair).floor(), (scaled - hair).ceil())
    return rounded.clamp(0, LEVELS).to(torch.uint8)


def is_adversarial_set(folder: Path) -> bool:
    """Return whether a folder holds a set of attacked images."""
    return (folder / ABOUT).is_file()


def load_adversarial_set(folder: Path, *, limit: int | None = None) -> Images:
    """Return the images of a set, in their order."""
    about = describe_adversarial_set(folder)
    dataset = _Shards(folder) if about["kind"] == "float32" else _Pictures(folder)
    return from_dataset(dataset, classes=about["classes"], labels=dataset.labels, limit=limit)


def describe_adversarial_set(folder: Path) -> dict[str, Any]:
    """Return what made a set."""
    path = folder / ABOUT
    try:
        about: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} is no set of attacked images: no {ABOUT}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if about.get("format") != FORMAT or about.get("kind") not in KINDS:
        raise ValueError(f"{path} must have the format {FORMAT!r}, found {about.get('format')!r}")
    return about


class _Shards(Dataset[tuple[Tensor, int]]):
    """Files of one batch each; the last few read are kept."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.safetensors"))
        if not self._paths:
            raise FileNotFoundError(f"{folder} holds no images yet")
        self.labels: list[int] = []
        self._places: list[tuple[int, int]] = []
        for number, path in enumerate(self._paths):
            if int(path.stem) != len(self.labels):
                raise ValueError(
                    f"{folder} is not whole: images {len(self.labels)} to {int(path.stem) - 1} are "
                    "missing; run the command that made it again"
                )
            try:
                with safe_open(path, framework="pt") as file:
                    labels = file.get_tensor("labels").tolist()
            except SafetensorError as error:
                raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
            self._places += [(number, row) for row in range(len(labels))]
            self.labels += labels
        self._read = functools.lru_cache(maxsize=4)(self._open)

    def _open(self, number: int) -> Tensor:
        with safe_open(self._paths[number], framework="pt") as file:
            images: Tensor = file.get_tensor("images")
        return images

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number, row = self._places[index]
        return self._read(number)[row], self.labels[index]


class _Pictures(Dataset[tuple[Tensor, int]]):
    """PNG files, in the order of their numbers."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*/*.png"), key=lambda path: path.stem)
        if not self._paths:
            raise FileNotFoundError(f"{folder} holds no images yet")
        self.labels = [int(path.parent.name) for path in self._paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self._paths[index]) as picture:
            pixels = torch.from_numpy(np.array(picture))
        image = pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        return image, self.labels[index]
