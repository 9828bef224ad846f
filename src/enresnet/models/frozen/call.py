"""What a frozen network that we can see into tells of itself, beside its logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class FrozenCall(ABC):
    """A way to call a frozen network that is faster than its ``forward``.

    Attributes:
        slack: By how much its logits may differ from those of ``forward``, without noise.

    Example::

        with enresnet.frozen(model) as call:
            print(call.deterministic, call.independent)
    """

    slack: float = 0.0

    @abstractmethod
    def __call__(self, images: Tensor) -> Any:
        """Return logits N x classes for images N x C x H x W."""

    @property
    @abstractmethod
    def deterministic(self) -> bool:
        """Whether it is known to answer twice the same."""

    @property
    @abstractmethod
    def independent(self) -> bool:
        """Whether it is known to treat each image of a batch alone."""

    @property
    @abstractmethod
    def separable(self) -> bool:
        """Whether an image may leave its batch; the others share at most the scale of noise."""

    @abstractmethod
    def before_noise(self, images: Tensor) -> list[Tensor] | None:
        """Return what every draw of the noise starts from; None where that cannot be shared."""

    @abstractmethod
    def after_noise(self, states: list[Tensor]) -> Tensor:
        """Return the logits for a fresh draw, from what :meth:`before_noise` gave; takes it."""

    @abstractmethod
    def holds_in_bfloat16(self) -> bool:
        """Return whether its gradients are as useful in bfloat16."""
