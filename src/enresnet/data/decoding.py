"""Image files as 8-bit pixels: every kind of pixel rightly converted, or refused.

Pillow's own conversions cut off what does not fit into 8 bits without a word: of a float 0.5 they
make 0, of 32-bit integers the lowest byte. A file says how large an image is before any pixel is
read, so what would not fit into memory is refused first.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from enresnet.common.reading import regular_file

MOST_PIXELS = 1 << 26  # of a file, 8192 x 8192: 200 MB in RGB
LONGEST = 64  # sides; of a longer strip only the middle is scaled, which is all that is kept
BITS, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF
WHITE_IS_ZERO, UNSIGNED = 0, 1  # values of the last two
# Pillow looks at the content, not at the name: an EPS file named .png would run Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_QUIET = Lock()  # filters of warnings belong to the process: one thread at a time


def read_square(path: Path, size: int, *, gray: bool) -> Tensor:
    """Return the image in a file as C x size x size uint8, upright.

    It is scaled so that the shorter side fits, and cut to a square from the centre.
    """
    with opened(path) as image:
        pixels = eight_bit(image).convert("L" if gray else "RGB")
        return square(pixels, size)


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Yield the image in a file, not decoded yet; whatever goes wrong names the file."""
    regular_file(path)
    try:
        with _open(path) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise ValueError(
                    f"it claims {width} x {height} pixels, and at most {MOST_PIXELS} are read; "
                    "make it smaller"
                )
            yield image
    except Exception as error:  # decoders fail in many ways
        raise ValueError(f"{path} is not a whole image that can be read: {error}") from error


def _open(path: Path) -> Image.Image:
    """Return the image in a file; of a size that Pillow warns of, we say more ourselves."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(path, formats=FORMATS)


def eight_bit(image: Image.Image) -> Image.Image:
    """Return an image upright and with 8 bits a channel, in whatever colours it has.

    16-bit and 12-bit gray keep their highest 8 bits. Floating-point gray must lie in [0, 1]. What
    has no agreed white, such as integers of 32 bits, is refused.
    """
    upright = ImageOps.exif_transpose(image)
    tags: Any = getattr(image, "tag_v2", {})
    kinds = {_first(tags.get(SAMPLE_FORMAT, UNSIGNED))} - {UNSIGNED}
    if image.mode == "F":
        values = np.asarray(upright)
        if tags.get(PHOTOMETRIC, 1) == WHITE_IS_ZERO:
            raise ValueError("it holds floating-point numbers whose white is 0; convert it to PNG")
        if not (values.min() >= 0 and values.max() <= 1):  # NaN is neither
            raise ValueError(
                f"floating-point pixels must lie in [0, 1], found {values.min():g} to "
                f"{values.max():g}; divide them by their white, or convert it to PNG"
            )
        return Image.fromarray(np.rint(255 * values).astype(np.uint8))
    if kinds or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        raise ValueError(
            "it holds integers that are signed or of 32 bits, for which no white is agreed on; "
            "convert it to PNG"
        )
    if not image.mode.startswith("I"):
        return upright
    bits = int(_first(tags.get(BITS, 16)))
    deep = np.asarray(upright).astype(np.uint32) >> (bits - 8)
    if tags.get(PHOTOMETRIC, 1) == WHITE_IS_ZERO:
        deep = 255 - deep
    return Image.fromarray(deep.astype(np.uint8))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def square(image: Image.Image, size: int) -> Tensor:
    """Return an image as C x size x size uint8: the shorter side scaled, cut from the centre."""
    shorter = min(image.size)
    if max(image.size) > LONGEST * shorter:
        # Scaled whole, a strip of 300,000 x 1 would take gigabytes.
        reach = LONGEST * shorter
        left, top = (max(0, (side - reach) // 2) for side in image.size)
        width, height = (min(side, reach) for side in image.size)
        image = image.crop((left, top, left + width, top + height))
    width, height = (max(size, round(side * size / shorter)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    array = np.asarray(image.crop((left, top, left + size, top + size)))
    tensor = torch.from_numpy(array.copy())
    return tensor[None] if tensor.ndim == 2 else tensor.permute(2, 0, 1)
