"""Which models, images and labels an attack takes, and what it says of others."""

from __future__ import annotations

import torch
from torch import Tensor

from enresnet.models.interface import odd_tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LABEL_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_model_and_images(model: object, images: object, labels: object) -> None:
    """Raise unless these are a callable, images in [0, 1] and as many class numbers."""
    if not callable(model):
        raise TypeError(f"model must be an nn.Module or a callable, found {type(model).__name__}")
    odd = _oddity(images, FLOATS)
    if odd is not None:
        raise TypeError(
            "images must be a dense tensor of float16, bfloat16, float32 or float64 in [0, 1], "
            f"found {odd}; {_remedy(images)}"
        )
    assert isinstance(images, Tensor)
    if images.ndim < 2:
        raise ValueError(
            f"images must be N x ..., found shape {tuple(images.shape)}; a single image becomes a "
            "batch by images[None]"
        )
    check_classes("labels", labels, images)
    if len(images) == 0:
        return
    if images.numel() == 0:
        raise ValueError(f"images must hold pixels, found shape {tuple(images.shape)}")
    low, high = (float(value) for value in torch.aminmax(images.detach()))
    if not (low >= 0 and high <= 1):  # false for NaN too
        raise ValueError(
            f"images must lie in [0, 1], found values from {low:g} to {high:g}; "
            + (
                "divide 8-bit images by 255"
                if low >= 0 and 1 < high <= 255
                else "normalisation belongs inside the model: "
                "enresnet.models.Normalized(model, mean, std)"
            )
        )


def check_classes(name: str, classes: object, images: Tensor) -> Tensor:
    """Return class numbers, one an image; raise unless they are."""
    odd = _oddity(classes, _LABEL_TYPES)
    if odd is not None:
        raise TypeError(
            f"{name} must be a tensor of integers, one class number an image, found {odd}"
            + _remedy_of_classes(name, classes)
        )
    assert isinstance(classes, Tensor)
    if classes.shape != images.shape[:1]:
        advice = "one-hot labels become numbers by argmax(dim=1)"
        if images.ndim == 3 and classes.numel() == 1:
            advice = f"a single image becomes a batch by images[None], {name}.reshape(1)"
        raise ValueError(
            f"{name} must be one class number an image, here {len(images)}; found shape "
            f"{tuple(classes.shape)}; {advice}"
        )
    if len(classes) and int(classes.min()) < 0:
        raise ValueError(f"{name} must be class numbers from 0 up, found {int(classes.min())}")
    return classes


def _remedy_of_classes(name: str, classes: object) -> str:
    if not isinstance(classes, Tensor):
        return f"; torch.tensor({name}) makes one"
    one_hot = classes.ndim == 2 and classes.is_floating_point()
    return "; one-hot labels become numbers by argmax(dim=1)" if one_hot else ""


def _oddity(value: object, types: tuple[torch.dtype, ...]) -> str | None:
    """Return what keeps a value from being a plain tensor of these types; None if nothing does."""
    odd = odd_tensor(value)
    if odd is None:
        assert isinstance(value, Tensor)
        return None if value.dtype in types else str(value.dtype)
    return odd


def _remedy(images: object) -> str:
    """Return how images become what they should be."""
    if not isinstance(images, Tensor):
        return "torch.as_tensor makes one; divide 8-bit images by 255"
    if images.is_nested:
        return "bring them to one size and join them by torch.stack"
    if images.layout != torch.strided:
        return "images.to_dense() makes one"
    if images.is_meta:
        return "load the images before they are attacked"
    if images.is_complex():
        return "images.real makes one"
    if images.is_floating_point():
        return "images.float() makes one"
    return "divide 8-bit images by 255"
