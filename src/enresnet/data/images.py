"""Labelled images, whole in memory where they fit: batches in [0, 1] are cut from one tensor."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from enresnet.common import checks

Batch = tuple[Tensor, Tensor]


class LazyPixels:
    """The images of a dataset too large for memory, read when they are asked for."""

    def __init__(self, dataset: Any, rows: Tensor) -> None:
        self._dataset = dataset
        self._rows = rows
        first = _image(dataset[int(rows[0])], int(rows[0]))
        self.shape = torch.Size((len(rows), *first.shape))
        self.dtype = first.dtype

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self.read(self._rows[rows])[0]

    def read(self, rows: Tensor) -> tuple[Tensor, list[int]]:
        """Return the pixels and labels of these items of the dataset."""
        pixels = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        labels = []
        for position, index in enumerate(rows.tolist()):
            item = self._dataset[index]
            image = _image(item, index)
            if image.shape != self.shape[1:] or image.dtype != self.dtype:
                raise ValueError(
                    f"dataset must hold images of one shape and type: the first is "
                    f"{_kind(self.shape[1:], self.dtype)}, image {index} is "
                    f"{_kind(image.shape, image.dtype)}"
                )
            pixels[position] = image
            labels.append(_label(item, index))
        return pixels, labels

    def narrowed(self, rows: Tensor | slice) -> LazyPixels:
        """Return some of the images, still unread."""
        return LazyPixels(self._dataset, self._rows[rows])


@dataclass(frozen=True, eq=False)
class Images:
    """Images with a class number each, which are given in [0, 1].

    ``images, labels = data`` gives two tensors, and :meth:`batches` some at a time. ``data[:100]``
    is another set; what is on disk stays there. ``data[5]`` is an image and its class number, so a
    ``DataLoader`` takes a set, too.

    Attributes:
        pixels: uint8 from 0 to ``levels``, or floating point in [0, 1]. One tensor where they fit
            in memory; else they are read when they are needed.
        labels: The class numbers, from 0 up.
        classes: The names of the classes.
        levels: The value of white in uint8 pixels; 255 by default, 16 for the digits.
        origin: Where the images of a folder come from, in words; empty by default.
        name: What the images are called in results, such as digits; empty by default.

    Shape:
        - pixels: N x C x H x W
        - labels: N

    Raises:
        TypeError: The pixels are neither uint8 nor floating point.
        ValueError: There is no image, shapes do not match, or a label or pixel is out of range.

    Example::

        import torch
        from enresnet.data import Images

        pixels = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        pair = Images(pixels, labels=torch.tensor([0, 1]), classes=("cat", "dog"))
        inputs, numbers = pair  # float32 in [0, 1], and class numbers
        last, number = pair[-1]  # one of them; pair[:1] is a set of one
    """

    pixels: Tensor | LazyPixels
    labels: Tensor
    classes: tuple[str, ...]
    levels: int = 255
    origin: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.pixels.shape) != 4 or len(self.pixels) != len(self.labels):
            raise ValueError(
                f"pixels must be N x C x H x W with a label each, found {tuple(self.pixels.shape)} "
                f"and {len(self.labels)} labels"
            )
        if not len(self.labels):
            raise ValueError("there must be at least one image, found none")
        if not (self.pixels.dtype == torch.uint8 or self.pixels.dtype.is_floating_point):
            raise TypeError(f"pixels must be uint8 or floating point, found {self.pixels.dtype}")
        if (
            self.levels < 255
            and isinstance(self.pixels, Tensor)
            and self.pixels.max() > self.levels
        ):
            raise ValueError(
                f"pixels must be at most levels={self.levels}, found {int(self.pixels.max())}"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if not 0 <= low <= high < len(self.classes):
            raise ValueError(
                f"labels must lie between 0 and {len(self.classes) - 1}, found {low} to {high}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield all images in [0, 1] as one tensor, then their labels."""
        needed = 4 * self.pixels.shape.numel()  # as float32
        if isinstance(self.pixels, LazyPixels) and needed > free_memory() / 2:
            raise MemoryError(
                f"all {len(self)} images would take {needed / 2**30:.3g} GiB of memory: unpack "
                "some, as in images, labels = data[:1000], or go through data.batches(128)"
            )
        yield from self.batch(slice(None))

    @overload
    def __getitem__(self, rows: int) -> tuple[Tensor, int]: ...

    @overload
    def __getitem__(self, rows: slice | Tensor | list[int]) -> Images: ...

    def __getitem__(self, rows: int | slice | Tensor | list[int]) -> tuple[Tensor, int] | Images:
        """Return one image in [0, 1] with its class number; for several rows, a set of them."""
        if isinstance(rows, slice):
            backwards = rows.step is not None and rows.step < 0  # which tensors do not know
            return self.subset(torch.tensor(range(len(self))[rows]) if backwards else rows)
        if isinstance(rows, list) or (hasattr(rows, "ndim") and rows.ndim):
            return self.subset(torch.as_tensor(rows))
        number = operator.index(rows)
        if not -len(self) <= number < len(self):
            raise IndexError(f"image must be one of 0 to {len(self) - 1}, found {number}")
        images, labels = self.batch(torch.tensor([number % len(self)]))
        return images[0], int(labels[0])

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.pixels.shape))
        kind = str(self.pixels.dtype).removeprefix("torch.")
        return f"Images({shape}, {kind}, {len(self.classes)} classes: {_some(self.classes)})"

    @property
    def channels(self) -> int:
        """The number of colour channels."""
        return int(self.pixels.shape[1])

    def batch(self, rows: Tensor | slice) -> Batch:
        """Return images in [0, 1] and labels."""
        return self.in_unit_range(self.pixels[rows]), self.labels[rows]

    def in_unit_range(self, pixels: Tensor) -> Tensor:
        """Return pixels of this set, perhaps augmented, as float32 in [0, 1]."""
        if not pixels.is_floating_point():
            return pixels / self.levels
        low, high = (float(value) for value in torch.aminmax(pixels))
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"floating-point images must lie in [0, 1], found {low:g} to {high:g}; "
                "normalisation belongs inside the model"
            )
        return pixels

    def fingerprint(self) -> str:
        """Return a digest of labels and pixels; of images not in memory, of a few of them."""
        kind = (tuple(self.pixels.shape), self.classes, self.levels)
        digest = hashlib.sha256(repr(kind).encode())
        some = torch.linspace(0, len(self) - 1, min(16, len(self))).long()
        pixels = self.pixels if isinstance(self.pixels, Tensor) else self.pixels[some]
        for content in (self.labels, pixels):
            plain = content.detach().contiguous().cpu()
            if plain.dtype == torch.bfloat16:  # numpy does not know it
                plain = plain.view(torch.uint8)
            array: Any = plain.numpy()
            digest.update(array)
        return digest.hexdigest()

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all images in order, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self.batch(slice(start, start + size))

    def in_terms_of(self, classes: Sequence[str]) -> Images:
        """Return the images with the class numbers of a model that knows ``classes``, by name."""
        if self.classes == tuple(classes):
            return self
        number = {name: place for place, name in enumerate(classes)}
        if unknown := [name for name in self.classes if name not in number]:
            raise ValueError(
                f"the images have classes that the model does not know: {_some(unknown)}; it was "
                f"trained on {_some(classes)}"
            )
        places = torch.tensor([number[name] for name in self.classes])
        return replace(self, labels=places[self.labels], classes=tuple(classes))

    def subset(self, rows: Tensor | slice) -> Images:
        """Return some of the images."""
        if isinstance(self.pixels, LazyPixels):
            pixels: Tensor | LazyPixels = self.pixels.narrowed(rows)
        else:
            pixels = self.pixels[rows]
        return replace(self, pixels=pixels, labels=self.labels[rows])

    def first(self, limit: int | None) -> Images:
        """Return the first ``limit`` images, or all."""
        return self if limit is None else self.subset(slice(checks.integer("limit", limit, low=1)))

    def split(self, held_out: int, *, seed: int = 0) -> tuple[Images, Images]:
        """Return the images less ``held_out`` random ones, and those; a seed fixes which."""
        if not 0 < held_out < len(self):
            raise ValueError(
                f"held_out must be between 1 and {len(self) - 1}, one less than there are images; "
                f"found {held_out}"
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        # Sorted: a subset keeps the canonical order of the whole.
        kept, out = order[held_out:].sort().values, order[:held_out].sort().values
        return self.subset(kept), self.subset(out)


def from_dataset(
    dataset: Any,
    *,
    classes: Sequence[str] | None = None,
    labels: Sequence[int] | None = None,
    limit: int | None = None,
    in_memory: bool | None = None,
) -> Images:
    """Return the images of any ``torch.utils.data.Dataset`` of image/label pairs.

    Args:
        dataset: Has a length, and items of an image tensor and a class number. Images are uint8
            from 0 to 255 or floating point in [0, 1], C x H x W or H x W, all of one shape.
        classes: The names of the classes; by default the dataset's ``classes``, or the numbers.
        labels: The class numbers, to spare reading images that do not fit in memory for them; by
            default they are read. Images in memory always take their labels from the dataset.
        limit: The most images to take, from the first on; all by default.
        in_memory: Whether all images are read into one tensor now, or each when it is needed. By
            default they are if they take at most half of the free memory.

    Returns:
        The images.

    Raises:
        TypeError: The dataset has no length or items, or its items are not pairs of an image tensor
            and a label.
        ValueError: The dataset is empty, images differ in shape or type, or labels are not class
            numbers.

    Example::

        import torch
        from enresnet.data import from_dataset

        pairs = [(torch.zeros(3, 32, 32, dtype=torch.uint8), 0)] * 10
        found = from_dataset(pairs, classes=("cat", "dog"))
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"dataset must have a length and items, as torch.utils.data.Dataset has; found "
            f"{type(dataset).__name__}"
        )
    count = len(dataset)
    if limit is not None:
        count = min(checks.integer("limit", limit, low=1), count)
    if count == 0:
        raise ValueError("dataset must hold at least one image, found none")
    lazy = LazyPixels(dataset, torch.arange(count))
    if in_memory is None:
        needed = count * lazy.shape[1:].numel() * lazy.dtype.itemsize
        in_memory = needed <= free_memory() / 2
    pixels: Tensor | LazyPixels = lazy
    if in_memory:
        pixels, known = lazy.read(torch.arange(count))
    elif labels is None:
        known = [_label(dataset[index], index) for index in range(count)]
    else:
        known = [int(label) for label in labels[:count]]
    numbers = torch.tensor(known)
    if classes is None:
        classes = getattr(dataset, "classes", None) or [
            str(label) for label in range(int(numbers.max()) + 1)
        ]
    return Images(pixels, numbers, tuple(classes))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _label(item: Any, index: int) -> int:
    label = item[1]
    if int(label) != label:
        raise ValueError(f"dataset must give class numbers as labels, item {index} has {label!r}")
    return int(label)


def _image(item: Any, index: int) -> Tensor:
    if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[0], Tensor):
        raise TypeError(
            f"dataset must give (image tensor, label) pairs, item {index} is "
            f"{type(item).__name__}; a transform such as torchvision's PILToTensor makes tensors"
        )
    image = item[0] if item[0].ndim == 3 else item[0][None]
    if image.ndim != 3 or not (image.dtype == torch.uint8 or image.is_floating_point()):
        raise ValueError(
            f"dataset must hold images C x H x W, uint8 or floating point; item {index} is "
            f"{_kind(item[0].shape, item[0].dtype)}"
        )
    return image if image.dtype == torch.uint8 else image.to(torch.float32)


def _kind(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{' x '.join(map(str, shape))} {dtype}"


def free_memory() -> float:
    """Return the bytes of memory that are free; infinity where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (available,) = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
        free = 1024.0 * int(available)
    except (OSError, ValueError):
        return math.inf
    try:  # a container or a batch job may have less
        own = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
        group = Path("/sys/fs/cgroup") / own
        while not (group / "memory.max").is_file() and group != Path("/sys/fs"):
            group = group.parent
        limit, used = (float((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (group / "memory.stat").read_text().splitlines()
        (cached,) = (line.split()[1] for line in lines if line.startswith("inactive_file"))
        return min(free, max(0.0, limit - used + float(cached)))
    except (OSError, ValueError):  # no such group, or a limit of "max"
        return free
