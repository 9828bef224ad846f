"""A folder of images by class: ``ROOT/train/CLASS/*.png`` and ``ROOT/test/CLASS/*.png``.

Without the folders train and test, the classes stand in ROOT itself and a tenth of the images, the
same every time, is kept for testing. Images of any size and format that Pillow reads are scaled
so that the shorter side fits, and cut to a square from the centre.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from enresnet import checks
from enresnet.data.images import Images, from_dataset

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"})
TEST_FRACTION = 10


def load_folder(
    root: Path, *, size: int = 32, gray: bool = False, limit: int | None = None
) -> tuple[Images, Images]:
    """Return training and test images of ``size`` x ``size`` pixels, RGB or gray."""
    if not root.is_dir():
        raise FileNotFoundError(f"no folder of images at {root}")
    checks.integer("size", size, low=8)
    if (root / "train").is_dir() and (root / "test").is_dir():
        train = _FolderDataset(root / "train", size, gray)
        test = _FolderDataset(root / "test", size, gray)
        if train.classes != test.classes:
            odd = sorted(set(train.classes) ^ set(test.classes))
            raise ValueError(
                f"{root}: train and test must hold the same classes, these are in one only: "
                f"{', '.join(odd)}"
            )
        return tuple(  # type: ignore[return-value]
            from_dataset(part, labels=part.targets, limit=limit) for part in (train, test)
        )
    dataset = _FolderDataset(root, size, gray)
    whole = from_dataset(dataset, labels=dataset.targets, limit=limit)
    if len(whole) < TEST_FRACTION:
        raise ValueError(f"{root} must hold at least {TEST_FRACTION} images, found {len(whole)}")
    return whole.split(len(whole) // TEST_FRACTION)


class _FolderDataset(Dataset[tuple[Tensor, int]]):
    def __init__(self, root: Path, size: int, gray: bool) -> None:
        self.size, self.gray = size, gray
        self.classes = sorted(
            path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."
        )
        if len(self.classes) < 2:
            raise ValueError(
                f"{root} must hold a folder for each of at least 2 classes, found "
                f"{', '.join(self.classes) or 'none'}"
            )
        self.files = []
        for label, name in enumerate(self.classes):
            found = [f for f in sorted((root / name).rglob("*")) if f.suffix.lower() in SUFFIXES]
            if not found:
                raise ValueError(f"class {name!r} has no images: none in {root / name}")
            self.files += [(file, label) for file in found]
        # Interleaved, so that the first images of a set are not all of one class.
        order = torch.randperm(len(self.files), generator=torch.Generator().manual_seed(0))
        self.files = [self.files[index] for index in order.tolist()]
        self.targets = [label for _, label in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self.files[index]
        try:
            with Image.open(file) as image:
                upright = _eight_bit(ImageOps.exif_transpose(image))
                pixels = _square(upright.convert("L" if self.gray else "RGB"), self.size)
        except Exception as error:  # decoders fail in many ways
            raise ValueError(f"{file} is not a whole image: {error}") from error
        return pixels, label


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return 16-bit gray as 8-bit, which ``convert`` would cut off at 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))


def _square(image: Image.Image, size: int) -> Tensor:
    shorter = min(image.size)
    width, height = (max(size, round(side * size / shorter)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    array = np.asarray(image.crop((left, top, left + size, top + size)))
    tensor = torch.from_numpy(array.copy())
    return tensor[None] if tensor.ndim == 2 else tensor.permute(2, 0, 1)
