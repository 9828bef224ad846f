r"""A model's noise in a graph that knows neither our streams nor torch's generators.

.. math:: x_{l+1} = z + a\,\mathrm{std}(z)\, n, \qquad z = x_l + F(x_l)

The numbers n are 0, or come from outside as one more input, or are drawn by the runtime.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from enresnet.models import NoiseInjection
from enresnet.models.interface import logits_of
from enresnet.models.noise import noise_modules

ExportedNoise = Literal["off", "input", "drawn"]
"""What becomes of a model's noise in an exported graph."""

EXPORTED_NOISE: tuple[ExportedNoise, ...] = get_args(ExportedNoise)

Draw = Callable[[Tensor], Tensor]


class _Place(nn.Module):
    """A place where noise is added, with numbers from somewhere."""

    def __init__(self, injection: NoiseInjection, draw: Draw) -> None:
        super().__init__()
        self.noise, self.std_over, self._draw = injection.noise, injection.std_over, draw

    def forward(self, x: Tensor) -> Tensor:
        """Return x + noise * std(x) * n."""
        dims = tuple(range(self.std_over == "example", x.ndim))
        deviation = x - x.mean(dims, keepdim=True)
        # A mean, not a norm over a root: the number of images is not known in the graph.
        std = deviation.square().mean(dims, keepdim=True).sqrt()
        return x + self.noise * std * self._draw(x)


class _Feed:
    """Hands out the columns of a matrix, one place after another."""

    def __init__(self) -> None:
        self.numbers: Tensor | None = None
        self.taken = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return the next numbers, in the shape of ``x``; without a matrix count them."""
        count = x[0].numel()
        first, self.taken = self.taken, self.taken + count
        if self.numbers is None:
            return torch.zeros_like(x)
        return self.numbers[:, first : first + count].reshape(x.shape)


class WithoutStreams(nn.Module):
    """A copy of a model whose forward a graph can hold.

    Args:
        model: From images to logits, with noise or without.
        noise: ``"off"``, ``"input"`` or ``"drawn"``.
        example: Images that the model takes, N x C x H x W.

    Attributes:
        numbers: Standard normal numbers that each image needs, for ``"input"``; else 0.
    """

    def __init__(self, model: nn.Module, noise: ExportedNoise, example: Tensor) -> None:
        super().__init__()
        feed = _Feed()
        draw = torch.randn_like if noise == "drawn" else feed
        self.network = copy.deepcopy(model).eval().requires_grad_(False)
        for place in list(noise_modules(self.network)):
            quiet = noise == "off" or place.noise == 0
            _replace(self.network, place, nn.Identity() if quiet else _Place(place, draw))
        self._feed, self._takes_noise = [feed], noise == "input"  # in a list: not a submodule
        self.numbers = 0
        if self._takes_noise:
            with torch.no_grad():
                self.network(example)
            self.numbers = feed.taken

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return logits N x classes; ``noise`` is N x numbers."""
        feed = self._feed[0]
        feed.numbers, feed.taken = noise, 0
        try:
            logits: Tensor = logits_of(self.network(images))
        finally:
            feed.numbers = None
        return logits


def _replace(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
