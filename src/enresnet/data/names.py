"""From the name of a data set, as typed on the command line, to its images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from enresnet import checks
from enresnet.data.augment import Augmentation
from enresnet.data.cifar import CIFAR10, CIFAR100, load_cifar
from enresnet.data.digits import load_digits
from enresnet.data.folder import load_folder
from enresnet.data.images import Images


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test images, and how the first may be augmented."""

    name: str
    train: Images
    validation: Images
    test: Images
    augmentation: Augmentation

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.train.classes


NAMES: dict[str, Callable[[Path | None], tuple[Images, Images]]] = {
    "digits": lambda _: load_digits(),
    "cifar10": lambda source: load_cifar(CIFAR10, source=source),
    "cifar100": lambda source: load_cifar(CIFAR100, source=source),
}


def load_data(
    name: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    size: int = 32,
    gray: bool = False,
    limit: int | None = None,
) -> DataSet:
    """Return the data set ``name``: digits, cifar10, cifar100, or the path of a folder of images.

    ``source`` is a folder of official files to take CIFAR from. ``size`` and ``gray`` say what a
    folder's images become. ``limit`` keeps the first images of training and test. A tenth of the
    training images, the same every time, is held out for validation (5,000 of CIFAR's).
    """
    text = os.fspath(name)
    folder = None if text in NAMES else Path(text)
    if folder is None:
        train, test = NAMES[text](None if source is None else Path(source))
        train, test = train.first(limit), test.first(limit)
        # A digit or a letter in the mirror is another one; at 8 x 8 a shift is a large change.
        augmentation = Augmentation(pad=0, flip=False) if text == "digits" else Augmentation()
    elif folder.is_dir():
        train, test = load_folder(folder, size=size, gray=gray, limit=limit)
        augmentation = Augmentation(pad=size // 8)
    else:
        raise ValueError(
            f"unknown data set {text!r}: known are {', '.join(NAMES)}, or the path of a folder of "
            f"images by class{checks.did_you_mean(text, NAMES)}"
        )
    if len(train) < 2:
        raise ValueError(f"{text} must have at least 2 training images, found {len(train)}")
    train, validation = train.split(max(1, len(train) // 10))
    return DataSet(text, train, validation, test, augmentation)
