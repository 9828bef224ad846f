"""The user's image file as both networks take it, and a sentence on what was done to it."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image
from torch import Tensor

from enresnet.common import checks
from enresnet.data.decoding import eight_bit, opened, square


def read_upload(
    path: str | os.PathLike[str], image_shape: tuple[int, int, int], *, invert: bool = False
) -> tuple[Tensor, str]:
    """Return the image in a file in the shape that a network takes, and what was done to it.

    Args:
        path: A PNG, JPEG, BMP, GIF, WebP, TIFF or PPM file. Of an animation the first picture
            counts; what is transparent becomes white.
        image_shape: C, H and W of the result; C is 1 or 3, and H equals W.
        invert: Whether light becomes dark; False by default.

    Shape:
        - result: C x H x W, as ``image_shape``

    Returns:
        The image, in [0, 1], and sentences on the conversion.

    Raises:
        ValueError: The file is not an image, is damaged or has too many pixels, or no network of
            this package takes images of that shape.

    Example::

        from PIL import Image
        from enresnet.demo import read_upload

        Image.new("RGB", (40, 30), "white").save("white.png")
        image, words = read_upload("white.png", (1, 8, 8))
    """
    channels, height, width = image_shape
    checks.boolean("invert", invert)
    if channels not in (1, 3) or height != width:
        raise ValueError(
            f"image_shape must be 1 or 3 channels of a square, found {image_shape}; "
            "choose one of the test images"
        )
    file = Path(path)
    try:
        with opened(file) as image:
            words = [f"It had {image.width} x {image.height} pixels; it was "]
            kind, frames = image.mode, int(getattr(image, "n_frames", 1))
            pixels = _on_white(eight_bit(image)).convert("L" if channels == 1 else "RGB")
            found = square(pixels, height).float() / 255
    except ValueError as error:
        # The server keeps the file in a folder that means nothing to the user.
        sentence = str(error).replace(str(file), file.name)
        if sentence.startswith(file.name):  # a sentence opens with a capital, a name as it is
            sentence = f"the file {sentence}"
        raise ValueError(sentence) from error
    if pixels.width != pixels.height:
        words[0] += "cut to a square and "
    words[0] += f"scaled to {height} x {width}."
    if channels == 1 and kind not in ("L", "1", "I", "F", "I;16"):
        words.append("Its colours became grey.")
    elif channels == 3 and kind == "CMYK":
        words.append("Its colours were meant for print (CMYK) and became RGB.")
    if frames > 1:
        words.append(f"It has {frames} pictures; this is the first.")
    if invert:
        found = 1 - found
        words.append("Light and dark were exchanged.")
    return found, " ".join(words)


def _on_white(image: Image.Image) -> Image.Image:
    """Return an image without transparency: the colours that it hides are arbitrary."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    whole = image.convert("RGBA")
    ground = Image.new("RGBA", whole.size, "white")
    ground.alpha_composite(whole)
    return ground.convert("RGB")
