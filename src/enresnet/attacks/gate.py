"""The gate at an attack's door: which models, images and labels it takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from enresnet.attacks.gradient import Model, module_of

_IMAGE_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LABEL_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Classifier:
    """The model with a gate behind it: its output must be N x classes, enough for the labels."""

    def __init__(
        self,
        model: Model,
        largest_label: int,
        advance: Callable[[int], None] = lambda _: None,
        *,
        worth: int = 1,
    ) -> None:
        self.model = model
        self._largest_label = largest_label
        self._advance = advance
        self._worth = worth  # passes that one of ours stands for in the progress
        self.bad_gradients = 0
        self.gradients = self.evaluations = 0  # of single images, so far

    def __call__(self, images: Tensor) -> Tensor:
        """Return the model's logits."""
        # clone: a model that works in place must not reach our images
        return self.checked(self.model(images.clone()), len(images))

    @property
    def module(self) -> nn.Module | None:
        """The network that the model is, or whose method it is."""
        return module_of(self.model)

    def checked(self, logits: object, count: int) -> Tensor:
        """Return what the model said of ``count`` images, if it is what it should be."""
        self._advance(self._worth * count)
        self.evaluations += count
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != count:
            found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"model must return logits N x classes, here {count} x classes; found "
                f"{found}; wrap it in a function that returns them"
            )
        if not logits.is_floating_point() or logits.shape[1] < 2:
            raise ValueError(
                f"model must return floating-point logits for at least 2 classes, found "
                f"{logits.dtype} {tuple(logits.shape)}"
            )
        if self._largest_label >= logits.shape[1]:
            raise ValueError(
                f"labels must be below the model's {logits.shape[1]} classes, found "
                f"{self._largest_label}; are these the labels of another data set?"
            )
        return logits

    def apart(
        self, model: Model | None = None, advance: Callable[[int], None] = lambda _: None
    ) -> Classifier:
        """Return a gate before the same model or another, with counts of its own."""
        return Classifier(self.model if model is None else model, self._largest_label, advance)

    def count(self, other: Classifier, cost: float = 1) -> None:
        """Add what another has counted; ``cost`` is that of its model in units of this one's."""
        self.gradients += round(other.gradients * cost)
        self.evaluations += round(other.evaluations * cost)
        self.bad_gradients += other.bad_gradients

    def skip(self, passes: int) -> None:
        """Count passes that turned out not to be needed as done."""
        self._advance(passes)

    def warn_of_bad_gradients(self) -> None:
        """Say when gradients were not finite: such an attack proves nothing."""
        if self.bad_gradients:
            warnings.warn(
                f"the model's gradient was not finite in {self.bad_gradients} evaluations of an "
                "image; there the attack could not move and its result says nothing of robustness",
                stacklevel=3,
            )


def check_model_and_images(model: object, images: object, labels: object) -> None:
    """Raise unless these are a callable, images in [0, 1] and as many class numbers."""
    if not callable(model):
        raise TypeError(f"model must be an nn.Module or a callable, found {type(model).__name__}")
    if not isinstance(images, Tensor) or images.dtype not in _IMAGE_TYPES or images.is_sparse:
        found = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(
            f"images must be a dense tensor of float16, bfloat16, float32 or float64 in [0, 1], "
            f"found {found}; divide 8-bit images by 255"
        )
    if images.ndim < 2:
        raise ValueError(f"images must be N x ..., found shape {tuple(images.shape)}")
    if not isinstance(labels, Tensor) or labels.dtype not in _LABEL_TYPES:
        found = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(
            f"labels must be a tensor of integers, one class number an image, found {found}"
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be one class number an image, here {len(images)}; found shape "
            f"{tuple(labels.shape)}; one-hot labels become numbers by argmax(dim=1)"
        )
    if len(labels) and int(labels.min()) < 0:
        raise ValueError(f"labels must be class numbers from 0 up, found {int(labels.min())}")
    if images.numel() == 0:
        return
    low, high = (float(value) for value in torch.aminmax(images.detach()))
    if not (low >= 0 and high <= 1):  # false for NaN too
        raise ValueError(
            f"images must lie in [0, 1], found values from {low:g} to {high:g}; "
            "normalisation belongs inside the model"
        )


def device_of(model: Model, *, default: torch.device) -> torch.device:
    """Return where a module's parameters live; ``default`` for other callables."""
    module = module_of(model)
    first = None if module is None else next(module.parameters(), None)
    return default if first is None else first.device
