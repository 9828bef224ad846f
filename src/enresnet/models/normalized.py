r"""A model that expects normalised images, as one that takes them in [0, 1].

.. math:: f(x) = g\left(\frac{x - \mathrm{mean}}{\mathrm{std}}\right)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from enresnet.common import checks


class Normalized(nn.Module):
    """Lets a model that expects normalised images take images in [0, 1].

    Args:
        model: An ``nn.Module`` or a function from normalised images to logits.
        mean: Subtracted from the images: one number a channel, or one for all.
        std: Divides the images after that: one number a channel, or one for all; above 0.

    Shape:
        - images: N x C x H x W in [0, 1]
        - result: what the model returns, logits N x classes

    Raises:
        TypeError: The model is not callable, or mean or std are not numbers.
        ValueError: Mean and std do not match each other or the images, or std is not above 0.

    Example::

        from enresnet.attacks import IFGSM
        from enresnet.models import Normalized, ResNet

        inner = ResNet.of_depth(8)  # or any network trained on normalised images
        model = Normalized(inner, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        attacked = IFGSM()(model, images, labels)  # images and epsilon in units of [0, 1]
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        mean: float | Sequence[float],
        std: float | Sequence[float],
    ) -> None:
        super().__init__()
        if not callable(model):
            raise TypeError(f"model must be an nn.Module or a callable, found {model!r}")
        self.model = model
        # Not persistent: they are hyper-parameters, and stand in the description.
        for name, value in zip(("mean", "std"), mean_and_std(mean, std), strict=True):
            self.register_buffer(name, value, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's logits for images N x C x H x W in [0, 1]."""
        return self.model(self.normalised(images))

    def normalised(self, images: Tensor) -> Tensor:
        """Return images as the model takes them."""
        return normalise(images, self.mean, self.std)

    def extra_repr(self) -> str:
        """Show the hyper-parameters."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


def mean_and_std(
    mean: float | Sequence[float], std: float | Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return both as tensors, channels x 1 x 1; raise unless they fit each other."""
    means, stds = _numbers("mean", mean), _numbers("std", std, low=1e-6)
    if len(means) != len(stds) and 1 not in (len(means), len(stds)):
        raise ValueError(
            f"mean and std must hold one number a channel, found {len(means)} and {len(stds)}"
        )
    return torch.tensor(means).view(-1, 1, 1), torch.tensor(stds).view(-1, 1, 1)


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return images as a network takes them that wants them normalised."""
    for name, values in (("mean", mean), ("std", std)):
        if images.ndim != 4 or len(values) not in (1, images.shape[1]):
            raise ValueError(
                f"images must be N x {len(values)} x H x W, as {name} has {len(values)} "
                f"numbers; found {' x '.join(map(str, images.shape))}"
            )
    return (images - mean.to(images)) / std.to(images)


def _numbers(name: str, values: object, *, low: float = -float("inf")) -> list[float]:
    if isinstance(values, Tensor):
        values = values.flatten().tolist()
    several = list(values) if isinstance(values, Sequence) else [values]
    if not several:
        raise ValueError(f"{name} must be a number, or one a channel; found none")
    return [checks.number(name, value, low=low) for value in several]
