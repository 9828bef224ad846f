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
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import Dataset

from enresnet.common import checks
from enresnet.common.files import atomic_write
from enresnet.common.reading import regular_file
from enresnet.data.decoding import opened
from enresnet.data.images import Images, from_dataset

ABOUT = "set.json"
FORMAT = "enresnet-adversarial-set-1"
SetKind = Literal["float32", "png"]
"""How a set keeps its images: as they are, or rounded to 8 bits."""

KINDS: tuple[SetKind, ...] = get_args(SetKind)
LEVELS = 255


class AdversarialSet:
    """Writes a set of attacked images to a folder, batch by batch.

    Nothing is written before the first batch. A set that was interrupted goes on with the same
    arguments: :meth:`has` says which batches are there. :func:`load_adversarial_set` reads it.

    Args:
        folder: Where the set goes; absent, empty, or the same set begun earlier.
        classes: The names of the classes, in the order of the labels.
        about: What made the set, as plain JSON: ``attack``, ``model`` and what else there is to
            say. ``count`` is the number of images of the whole set, by which it is checked.
        kind: ``"float32"`` keeps the images as they are, in safetensors files (the default);
            ``"png"`` rounds them to 8 bits, inside the ball.
        epsilon: The radius that rounding must stay within, in units of the image's range [0, 1]. By
            default a pixel may go half a level further than the attack did.
        norm: The norm of that radius: ``"linf"`` (the default) or ``"l2"``.

    Raises:
        FileExistsError: The folder holds something else, or a set made otherwise.
        ValueError: ``kind`` is unknown, or the folder's ``set.json`` is damaged.

    Example::

        from pathlib import Path
        from enresnet.attacks import IFGSM
        from enresnet.data import AdversarialSet

        about = {"attack": "ifgsm20", "model": "resnet8", "count": len(images)}
        new = AdversarialSet(Path("attacked"), classes=("cat", "dog"), about=about)
        new.write(0, IFGSM()(model, images, labels), labels, images)
    """

    def __init__(
        self,
        folder: Path,
        *,
        classes: Sequence[str],
        about: dict[str, Any],
        kind: SetKind = "float32",
        epsilon: float | None = None,
        norm: Literal["linf", "l2"] = "linf",
    ) -> None:
        self.folder, self._kind = folder, checks.choice("kind", kind, KINDS)
        self._epsilon, self._norm = epsilon, norm
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
        there = _read_about(path) if path.exists() else self._about
        if there != self._about:
            differing = ", ".join(
                name
                for name in sorted({*there, *self._about})
                if there.get(name) != self._about.get(name)
            )
            raise FileExistsError(
                f"{folder} holds a set made otherwise ({differing}; see {path}); choose another "
                "folder"
            )

    def has(self, start: int, labels: Tensor) -> bool:
        """Return whether the batch with these labels, its first image ``start``, is there."""
        if self._kind == "float32":
            return self._shard(start).is_file()
        return all(
            self._picture(number, label).is_file()
            for number, label in enumerate(labels.tolist(), start)
        )

    def check(self, clean: Tensor) -> None:
        """Raise unless images like these can be stored."""
        if self._kind == "png":
            eight_bit(clean, clean, epsilon=self._epsilon, norm=self._norm)

    def _shard(self, start: int) -> Path:
        return self.folder / f"{start:08d}.safetensors"

    def _picture(self, number: int, label: int) -> Path:
        # class numbers, not names: a name may hold what a path may not
        return self.folder / f"{label:04d}" / f"{number:08d}.png"

    def write(self, start: int, images: Tensor, labels: Tensor, clean: Tensor) -> None:
        """Store a batch whose first image is number ``start``; what was there is written again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / ABOUT).exists():
            with atomic_write(self.folder / ABOUT) as temporary:
                temporary.write_text(json.dumps(self._about, indent=2) + "\n")
        if self._kind == "png":
            self._write_png(start, images, labels, clean)
            return
        tensors = {"images": images.float().cpu().contiguous(), "labels": labels.cpu()}
        with atomic_write(self._shard(start)) as temporary:
            temporary.write_bytes(save(tensors))

    def _write_png(self, start: int, images: Tensor, labels: Tensor, clean: Tensor) -> None:
        rounded = eight_bit(images, clean, epsilon=self._epsilon, norm=self._norm)
        pixels = rounded.permute(0, 2, 3, 1).numpy()
        for number, (pixel, label) in enumerate(zip(pixels, labels.tolist(), strict=True), start):
            path = self._picture(number, label)
            path.parent.mkdir(exist_ok=True)
            with atomic_write(path) as temporary:
                picture = Image.fromarray(pixel[..., 0] if pixel.shape[-1] == 1 else pixel)
                picture.save(temporary, format="png")


def eight_bit(
    images: Tensor, clean: Tensor, *, epsilon: float | None = None, norm: str = "linf"
) -> Tensor:
    """Return attacked images as uint8, inside the ball of radius ``epsilon`` around the clean ones.

    Every pixel is rounded towards the clean one: to the nearest would leave the ball, or lose half
    the attack. Where there is no level between the two, since clean images need not lie on levels
    (the digits have 17), the nearest one in the ball is taken. Without ``epsilon`` such a pixel may
    go half a level further than the attack did.
    """
    images, clean = images.double().cpu(), clean.double().cpu()
    if norm == "linf" or epsilon is None:
        return _rounded(images, clean, LEVELS * (0.5 if epsilon is None else epsilon))
    result = _rounded(images, clean, 0.5 * LEVELS)
    # Where clean images are not on levels, rounding may leave the ball: step back.
    for share in np.linspace(1, 0, 51):
        change = result.double() / LEVELS - clean
        outside = change.flatten(1).norm(dim=1) > epsilon + 1e-6
        if not outside.any():
            return result
        result[outside] = _rounded(
            (clean + share * (images - clean))[outside], clean[outside], 0.5 * LEVELS
        )
    raise ValueError(_TOO_SMALL.format(epsilon))


def _rounded(images: Tensor, clean: Tensor, radius: float) -> Tensor:
    """Return levels; ``radius`` is that of linf, in levels."""
    hair = 1e-3  # 8/255 is not exactly 8 levels in float32
    scaled, centre = images * LEVELS, clean * LEVELS
    raised = scaled > centre
    towards = torch.where(raised, (scaled + hair).floor(), (scaled - hair).ceil())
    between = torch.where(raised, towards >= centre - hair, towards <= centre + hair)
    nearest = scaled.round()
    other = torch.where(nearest > scaled, nearest - 1, nearest + 1)
    inside = (nearest - centre).abs() <= radius + hair
    rounded = torch.where(between, towards, torch.where(inside, nearest, other))
    if ((rounded - centre).abs() > radius + hair).any():
        raise ValueError(_TOO_SMALL.format(radius / LEVELS))
    return rounded.clamp(0, LEVELS).to(torch.uint8)


_TOO_SMALL = (
    "the clean images do not lie on 8-bit levels, and within epsilon = {:.4g} of some pixels there "
    "is none: keep the set in float32, without --png"
)


def is_adversarial_set(folder: Path) -> bool:
    """Return whether a folder holds a set of attacked images.

    Args:
        folder: Any path.

    Returns:
        True if there is a ``set.json`` in it; its content is not checked.

    Example::

        from pathlib import Path
        from enresnet.data import is_adversarial_set

        is_adversarial_set(Path("attacked"))
    """
    return (folder / ABOUT).is_file()


def load_adversarial_set(folder: Path, *, limit: int | None = None) -> Images:
    """Return the images of a set of attacked images, in their order.

    Args:
        folder: The folder of an :class:`AdversarialSet`.
        limit: The most images to read; all by default.

    Returns:
        The images: float32, or uint8 for a set of PNG files.

    Raises:
        FileNotFoundError: The folder holds no such set, or no images yet.
        ValueError: The set is not whole, damaged, or does not match its ``set.json``.

    Example::

        from pathlib import Path
        from enresnet.data import load_adversarial_set

        attacked = load_adversarial_set(Path("attacked"))
        pixels, numbers = attacked[:100]
    """
    about = describe_adversarial_set(folder)
    dataset = _Shards(folder) if about["kind"] == "float32" else _Pictures(folder)
    count = about.get("count", len(dataset))
    if len(dataset) < count:
        raise _not_whole(folder, len(dataset), count - 1)
    if len(dataset) > count:
        raise ValueError(
            f"{folder} holds {len(dataset)} images and its {ABOUT} says {count}; make it again"
        )
    known = len(about["classes"])
    if not all(0 <= label < known for label in dataset.labels):
        raise ValueError(
            f"{folder} has labels from {min(dataset.labels)} to {max(dataset.labels)}, and its "
            f"{ABOUT} names {known} classes; make it again"
        )
    return from_dataset(dataset, classes=about["classes"], labels=dataset.labels, limit=limit)


def _not_whole(folder: Path, first: int, last: int) -> ValueError:
    return ValueError(
        f"{folder} is not whole: images {first} to {last} are missing; run the command that made "
        "it again"
    )


def describe_adversarial_set(folder: Path) -> dict[str, Any]:
    """Return what made a set of attacked images: the content of its ``set.json``, checked.

    Args:
        folder: The folder of an :class:`AdversarialSet`.

    Returns:
        At least ``format``, ``kind``, ``classes``, ``attack`` and ``model``.

    Raises:
        FileNotFoundError: The folder holds no such set.
        ValueError: ``set.json`` is damaged or of another format.

    Example::

        from pathlib import Path
        from enresnet.data import describe_adversarial_set

        print(describe_adversarial_set(Path("attacked"))["attack"])
    """
    path = folder / ABOUT
    if not path.exists():
        raise FileNotFoundError(f"{folder} is no set of attacked images: no {ABOUT}")
    about = _read_about(path)
    if about.get("format") != FORMAT or about.get("kind") not in KINDS:
        found = checks.brief(about.get("format"))
        raise ValueError(f"{path} must have the format {FORMAT!r}, found {found}")
    classes, count = about.get("classes"), about.get("count", 1)
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f"{path} must list the names of the classes; make the set again")
    if type(count) is not int or count < 1:
        raise ValueError(
            f"{path} must count its images, found {checks.brief(count)}; make the set again"
        )
    # Results name both, also of a set that does not.
    return {"attack": "an unknown attack", "model": "an unknown model", **about}


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(regular_file(path).read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}; make the set again elsewhere") from error
    if not isinstance(about, dict):
        raise ValueError(
            f"{path} must tell what made the set, found a {type(about).__name__}; make the set "
            "again elsewhere"
        )
    return about


def _number(path: Path, name: str) -> int:
    """Return the number that a file or folder of a set is named by."""
    if not (name.isascii() and name.isdigit()):
        raise ValueError(f"{path} is no part of a set: {name!r} is no number; remove it")
    return int(name)


class _Shards(Dataset[tuple[Tensor, int]]):
    """Files of one batch each; the last few read are kept."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.safetensors"))
        if not self._paths:
            raise FileNotFoundError(f"{folder} holds no images yet")
        self.labels: list[int] = []
        self._places: list[tuple[int, int]] = []
        for number, path in enumerate(self._paths):
            if (first := _number(path, path.stem)) != len(self.labels):
                raise _not_whole(folder, len(self.labels), first - 1)
            try:
                with safe_open(regular_file(path), framework="pt") as file:
                    numbers = file.get_tensor("labels")
                    shape = file.get_slice("images").get_shape()
            except SafetensorError as error:
                raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
            whole = numbers.dtype in (torch.uint8, torch.int16, torch.int32, torch.int64)
            if not whole or numbers.ndim != 1 or shape[:1] != [len(numbers)]:
                raise ValueError(f"{path} must hold a label an image; make the set again")
            labels = numbers.tolist()
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
        for number, path in enumerate(self._paths):
            found = _number(path, path.stem)
            if found > number:
                raise _not_whole(folder, number, found - 1)
            if found < number:
                raise ValueError(f"{folder} holds image {found} twice; make it again")
        self.labels = [_number(path.parent, path.parent.name) for path in self._paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with opened(self._paths[index]) as picture:
            if picture.mode not in ("L", "RGB"):
                raise ValueError(f"it must be gray or RGB of 8 bits, found {picture.mode}")
            pixels = torch.from_numpy(np.array(picture))
        image = pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        return image, self.labels[index]
