"""Folders of images by class, with or without folders for training and test above them.

``ROOT/train/CLASS/*.png`` and ``ROOT/test/CLASS/*.png``; beside them, or instead of test, may stand
``val``, ``valid`` or ``validation``. Where there is no test folder, the validation images are the
test images, as is the custom with ImageNet.

``ROOT/CLASS/*.png`` is one set. For training a tenth of the images, the same every time, is kept
for testing; as a test set it is taken whole. Images of any size and format that Pillow reads are
scaled so that the shorter side fits, and cut to a square from the centre.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from enresnet.common import checks
from enresnet.common.reading import regular_file
from enresnet.data.decoding import read_square
from enresnet.data.images import Images, from_dataset

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"})
TEST_FRACTION = 10
TRAIN, TEST, VALIDATION = "train", "test", ("val", "valid", "validation")
OTHER_SPLITS = ("training", "testing", "dev", "eval", "holdout")
SPLITS = frozenset({TRAIN, TEST, *VALIDATION, *OTHER_SPLITS})  # names that no class has


@dataclass(frozen=True)
class Layout:
    """The parts of a folder of images; all None where the class folders are in the folder itself.

    Attributes:
        train: The folder of training images, ``train``.
        validation: The folder of validation images: ``val``, ``valid`` or ``validation``.
        test: The folder of test images, ``test``.

    Example::

        from pathlib import Path
        from enresnet.data import Layout

        Path("animals/train").mkdir(parents=True)
        Path("animals/test").mkdir()
        layout = Layout.of(Path("animals"))
    """

    train: Path | None = None
    validation: Path | None = None
    test: Path | None = None

    @classmethod
    def of(cls, root: Path) -> Layout:
        """Return the layout of a folder, by the names of the folders in it.

        Raises:
            FileNotFoundError: There is no such folder.
            ValueError: The folder has several validation parts, or only unknown parts.
        """
        if not root.is_dir():
            raise FileNotFoundError(f"no folder of images at {root}")
        there = {path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."}
        held_out = sorted(there.intersection(VALIDATION))
        only_splits = bool(there) and all(name.lower() in SPLITS for name in there)
        # A class may be called train, the vehicle: among other classes alone it is no split.
        paired = TRAIN in there and (TEST in there or held_out)
        if not paired and not only_splits:
            return cls()
        if len(held_out) > 1:
            raise ValueError(
                f"{root} holds {' and '.join(held_out)}, which mean the same: keep one of them"
            )
        train, test = (root / name if name in there else None for name in (TRAIN, TEST))
        validation = root / held_out[0] if held_out else None
        if not (train or test or validation):
            raise ValueError(f"{root} must hold classes, found {_named_like_splits(there)}")
        return cls(train, validation, test)

    @property
    def plain(self) -> bool:
        """Whether the class folders are in the folder itself."""
        return self == Layout()


def _named_like_splits(names: set[str]) -> str:
    return (
        f"only {', '.join(sorted(names))}, named like splits: give the folder that holds the "
        f"classes, or name its parts {TRAIN}, {TEST} and {VALIDATION[0]}"
    )


def load_folder(
    root: Path, *, size: int = 32, gray: bool = False, limit: int | None = None
) -> tuple[Images, Images | None, Images]:
    """Return images of ``size`` x ``size`` pixels, RGB or gray, for training, validation and test.

    The second is None where the folder has none of its own, or has them for the test.
    """
    layout = Layout.of(root)
    checks.integer("size", size, low=8)
    if layout.plain:
        whole = _read(root, size, gray, limit)
        if len(whole) < TEST_FRACTION:
            raise ValueError(
                f"{root} must hold at least {TEST_FRACTION} images, found {len(whole)}"
            )
        train, test = whole.split(len(whole) // TEST_FRACTION)
        train = replace(train, origin=f"nine tenths of the images in {root}")
        test = replace(test, origin=f"a tenth of the images in {root}, the same every time")
        return train, None, test
    held_out = layout.test or layout.validation
    if layout.train is None or held_out is None:
        there = {path.name for path in (layout.train, held_out) if path is not None}
        raise ValueError(
            f"{root} must hold images for training and for tests, found {_named_like_splits(there)}"
        )
    parts = [_read(layout.train, size, gray, limit), _read(held_out, size, gray, limit)]
    if layout.test and layout.validation:
        parts.insert(1, _read(layout.validation, size, gray, limit))
    for part in parts[1:]:
        if part.classes != parts[0].classes:
            odd = sorted(set(part.classes) ^ set(parts[0].classes))
            names = " and ".join(
                p.name for p in (layout.train, layout.validation, layout.test) if p
            )
            raise ValueError(
                f"{root}: {names} must hold the same classes, these are in one only: "
                f"{', '.join(odd)}"
            )
    return parts[0], parts[1] if len(parts) == 3 else None, parts[-1]


def load_test_folder(root: Path, *, size: int = 32, gray: bool = False) -> Images:
    """Return the test images of a folder: those in test or val, or of plain class folders all."""
    layout = Layout.of(root)
    checks.integer("size", size, low=8)
    held_out = root if layout.plain else layout.test or layout.validation
    if held_out is None:
        raise ValueError(
            f"{root} holds {TRAIN} but neither {TEST} nor {VALIDATION[0]}: to test on the training "
            f"images, give {layout.train}"
        )
    return _read(held_out, size, gray, None)


def _read(root: Path, size: int, gray: bool, limit: int | None) -> Images:
    dataset = _FolderDataset(root, size, gray)
    images = from_dataset(dataset, labels=dataset.targets, limit=limit)
    some = "all" if len(images) == len(dataset) else f"the first {len(images)}"
    return replace(images, origin=f"{some} images in {root}")


def _in_order(names: Iterable[str]) -> list[str]:
    """Return the names of classes by the alphabet, or by size where all are numbers."""
    found = sorted(names)
    numbers = all(name.isdecimal() and name.isascii() for name in found)
    return sorted(found, key=int) if numbers else found


class _FolderDataset(Dataset[tuple[Tensor, int]]):
    def __init__(self, root: Path, size: int, gray: bool) -> None:
        self.size, self.gray = size, gray
        self.classes = _in_order(
            path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."
        )
        if len(self.classes) < 2:
            raise ValueError(
                f"{root} must hold a folder for each of at least 2 classes, found "
                f"{', '.join(self.classes) or 'none'}"
            )
        self.files = []
        for label, name in enumerate(self.classes):
            found = [
                regular_file(path)
                for path in sorted((root / name).rglob("*"))
                if path.suffix.lower() in SUFFIXES and not path.is_dir()
            ]
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
        return read_square(file, self.size, gray=self.gray), label
