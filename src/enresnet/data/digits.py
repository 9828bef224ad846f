"""The 8 x 8 handwritten digits that ship with scikit-learn: 1,797 images of ten classes."""

from __future__ import annotations

import torch

from enresnet.data.images import Images

TEST_IMAGES = 500


def load_digits() -> tuple[Images, Images]:
    """Return training and test images, split at random once and for all."""
    from sklearn.datasets import load_digits as bundled  # slow to import

    bunch = bundled()
    pixels = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]
    whole = Images(pixels, torch.from_numpy(bunch.target), tuple("0123456789"), levels=16)
    return whole.split(TEST_IMAGES)
