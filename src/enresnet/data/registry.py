"""From the name of a data set, as typed on the command line, to its images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from enresnet.common import checks
from enresnet.common.reading import is_folder
from enresnet.data.attacked import is_adversarial_set, load_adversarial_set
from enresnet.data.augment import Augmentation
from enresnet.data.cifar import CIFAR10, CIFAR100, cached_file, load_cifar
from enresnet.data.digits import load_digits
from enresnet.data.folder import load_folder, load_test_folder
from enresnet.data.images import Images, from_dataset


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test images, and how training images are augmented.

    :func:`load_data` finds one by name; :meth:`of` makes one of other datasets.

    Attributes:
        name: Its name, in results; :meth:`of` gives it to the images too.
        train: The training images.
        validation: The validation images, which select the network to keep.
        test: The test images.
        augmentation: What training does to its images, if its recipe augments.

    Example::

        digits = enresnet.load_data("digits")
        print(digits.classes, len(digits.train), len(digits.validation), len(digits.test))
    """

    name: str
    train: Images
    validation: Images
    test: Images
    augmentation: Augmentation

    @classmethod
    def of(
        cls,
        train: Any,
        test: Any,
        *,
        validation: Any = None,
        name: str = "own",
        augmentation: Augmentation | None = None,
    ) -> DataSet:
        """Return one made of :class:`Images` or of any datasets of image/label pairs.

        Args:
            train: The training images, as :class:`Images` or as :func:`from_dataset` takes them.
            test: The test images, likewise.
            validation: The validation images, likewise. By default a tenth of the training images,
                the same every time, is held out.
            name: Its name, in results.
            augmentation: By default shifts by up to an eighth of the image's width, and mirrors.

        Raises:
            ValueError: There are fewer than 2 training images.
        """
        train, test = (
            part if isinstance(part, Images) else from_dataset(part) for part in (train, test)
        )
        if len(train) < 2:
            raise ValueError(f"{name} must have at least 2 training images, found {len(train)}")
        if augmentation is None:
            augmentation = Augmentation(pad=int(train.pixels.shape[3]) // 8)
        if validation is None:
            train, validation = train.split(max(1, len(train) // 10))
        elif not isinstance(validation, Images):
            validation = from_dataset(validation)
        train, validation, test = (
            replace(part, name=part.name or name) for part in (train, validation, test)
        )
        return cls(name, train, validation, test, augmentation)

    def __repr__(self) -> str:
        return (
            f"DataSet({self.name!r}, train={self.train!r}, validation={len(self.validation)} "
            f"images, test={len(self.test)} images)"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.train.classes

    @property
    def fingerprint(self) -> str:
        """Short digest of the training and validation images, to know them again by."""
        parts = (self.train.fingerprint(), self.validation.fingerprint())
        return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]

    def check_classes(self) -> None:
        """Raise if there is a class that training would never see."""
        there = set(self.train.labels.unique().tolist())
        missing = [name for number, name in enumerate(self.classes) if number not in there]
        if missing:
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise ValueError(
                f"{self.name} has no training image of {len(missing)} of its {len(self.classes)} "
                f"classes ({shown}): add some, raise limit, or remove the class"
            )


NAMES: dict[str, Callable[[Path | None], tuple[Images, Images]]] = {
    "digits": lambda _: load_digits(),
    "cifar10": lambda source: load_cifar(CIFAR10, source=source),
    "cifar100": lambda source: load_cifar(CIFAR100, source=source),
}


def is_local(name: str) -> bool:
    """Return whether :func:`load_data` needs no download for a data set or a folder."""
    if name in (CIFAR10.name, CIFAR100.name):
        return cached_file(name).is_file()
    return name in NAMES or is_folder(name)


def load_test_images(
    name: str | os.PathLike[str], *, size: int | None = None, gray: bool = False
) -> Images:
    """Return the test images of a data set, or the images of a set of attacked images.

    Of a folder without parts for training and test all images are test images. ``origin`` of the
    result says which images of a folder they are.

    Args:
        name: As in :func:`load_data`, or the folder of an :class:`AdversarialSet`.
        size: The side of a folder's images, in pixels, to which they are scaled and cropped; 32 by
            default.
        gray: Whether a folder's images become gray; False by default.

    Returns:
        The images.

    Raises:
        OSError: CIFAR cannot be fetched, or a set of attacked images is empty.
        TypeError: ``name`` is neither a string nor a path.
        ValueError: The name is unknown, a folder does not exist or has no test images, or files are
            damaged.

    Example::

        from enresnet.data import load_test_images

        inputs, numbers = load_test_images("digits")[:100]
    """
    if os.fspath(name) not in NAMES and is_folder(name):
        if is_adversarial_set(Path(name)):
            found = load_adversarial_set(Path(name))
        else:
            found = load_test_folder(Path(name), size=32 if size is None else size, gray=gray)
        return replace(found, name=os.fspath(name))
    return load_data(name, size=size, gray=gray).test


def load_data(
    name: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    size: int | None = None,
    gray: bool = False,
    limit: int | None = None,
) -> DataSet:
    """Return the data set ``name``: digits, cifar10, cifar100, or a folder of images by class.

    CIFAR is downloaded once, checked against its digest, and kept in :func:`cache_folder`. A tenth
    of the training images, the same every time, is held out for validation, unless a folder has
    both test and validation images.

    Args:
        name: ``"digits"``, ``"cifar10"``, ``"cifar100"``, or the path of a folder with a folder of
            images for each class, perhaps inside ``train``, ``val`` and ``test``.
        source: A folder or archive of the official files to take CIFAR from, instead of a download.
        size: The side of a folder's images, in pixels, to which they are scaled and cropped; 32 by
            default, at least 8.
        gray: Whether a folder's images become gray; False by default.
        limit: The most images to keep of each part, training and test, from the first on; all by
            default.

    Returns:
        The data set.

    Raises:
        OSError: CIFAR cannot be fetched, or ``source`` does not exist.
        TypeError: ``name`` is neither a string nor a path.
        ValueError: The name is unknown or the folder does not exist (the error names near matches),
            an option is not for this data set, or files are damaged.

    Example::

        data = enresnet.load_data("digits")
        images, labels = data.test[:100]  # N x 1 x 8 x 8 in [0, 1]
    """
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"name must be a string or a path, found {checks.brief(name)}")
    text = os.fspath(name)
    folder = None if text in NAMES else Path(text)
    validation = None
    if source is not None and not text.startswith("cifar"):
        raise ValueError(f"source is for cifar10 and cifar100; {checks.brief(text)} has none")
    if folder is None and (size is not None or gray):
        raise ValueError(f"size and gray are for folders of images; {text} has its own")
    if folder is None:
        train, test = NAMES[text](None if source is None else Path(source))
        train, test = train.first(limit), test.first(limit)
        # A digit or a letter in the mirror is another one; at 8 x 8 a shift is a large change.
        augmentation = Augmentation(pad=0, flip=False) if text == "digits" else None
    elif is_folder(folder):
        if is_adversarial_set(folder):
            raise ValueError(
                f"{folder} is a set of attacked images: for evaluating, not for training"
            )
        side = 32 if size is None else size
        train, validation, test = load_folder(folder, size=side, gray=gray, limit=limit)
        augmentation = None
    else:
        raise ValueError(
            f"unknown data set {checks.brief(text)}: known are {', '.join(NAMES)}, or the path of "
            f"a folder of images by class{checks.did_you_mean(text, NAMES)}"
        )
    return DataSet.of(train, test, validation=validation, name=text, augmentation=augmentation)
