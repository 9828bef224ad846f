"""Small images inside a page, as data URIs: one pixel of the image is one pixel of the file."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image
from torch import Tensor

from enresnet.common.plotting import diverging


def image_uri(image: Tensor) -> str:
    """Return an image in [0, 1], C x H x W with one channel or three, as a PNG file's data URI."""
    levels = (255 * image.clamp(0, 1)).round().byte().permute(1, 2, 0).squeeze(-1)
    return _uri(levels.numpy())


def change_uri(change: Tensor, bound: float) -> str:
    """Return a change of an image, its mean over the channels, as a PNG file's data URI.

    Red is lighter and blue is darker; a change by ``bound`` has the full colour.
    """
    scaled = 0.5 + 0.5 * (change.mean(dim=0) / bound).clamp(-1, 1)
    colours = diverging()(scaled.numpy())[..., :3]
    return _uri((255 * colours).round().astype(np.uint8))


def _uri(levels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
