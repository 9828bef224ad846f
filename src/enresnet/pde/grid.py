r"""A periodic box of equally spaced points, and calculus on it by Fourier series.

.. math:: u(x) = \sum_k \hat u_k e^{i k \cdot x}, \qquad k \in \frac{2\pi}{\text{length}} \{-n/2,
          \dots, n/2 - 1\}^d, \qquad \widehat{\partial_j u}_k = i k_j \hat u_k

Products of two functions alias: modes k and k - n look the same on n points. Keeping only
``|k| < n/3`` before and after a product (the 2/3 rule) leaves the kept modes free of aliases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from enresnet.common import checks


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A periodic box of equally spaced points, with derivatives by Fourier series.

    The points are ``origin + length * (0, 1, ..., size - 1) / size`` along each axis.

    Attributes:
        size: Points along each axis; even, at least 4.
        length: The side of the box; 1 by default.
        dimensions: 1, 2 (the default) or 3.
        origin: The first coordinate along each axis; 0 by default.
        dtype: ``torch.float64`` (the default) or ``torch.float32``.
        device: Where torch computes; ``"cpu"`` by default.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, ``size`` is odd, or the device is not there.

    Example::

        import torch
        from enresnet.pde import Grid

        grid = Grid(size=32, length=2 * torch.pi)
        values = grid.points[..., 0].sin()  # 32 x 32
        slopes = grid.gradient(values)  # 32 x 32 x 2: (cos x_1, 0)
    """

    size: int
    length: float = 1.0
    dimensions: int = 2
    origin: float = 0.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"

    def __post_init__(self) -> None:
        checks.integer("size", self.size, low=4)
        if self.size % 2:
            raise ValueError(
                f"size must be even, so that waves come in pairs k and -k; found {self.size}; "
                f"take {self.size + 1}"
            )
        if not checks.number("length", self.length, low=0) > 0:
            raise ValueError("length must be above 0, found 0")
        checks.number("origin", self.origin)
        if checks.integer("dimensions", self.dimensions, low=1) > 3:
            raise ValueError(f"dimensions must be 1, 2 or 3, found {self.dimensions}")
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be float32 or float64, found {self.dtype}")
        try:
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"device must be one that torch computes on here, such as cpu; found "
                f"{self.device!r} ({reason})"
            ) from error

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a function's values on the grid."""
        return (self.size,) * self.dimensions

    @property
    def spacing(self) -> float:
        """The distance between neighbours."""
        return self.length / self.size

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of space, counted from the last, so that batches come before them."""
        return tuple(range(-self.dimensions, 0))

    @cached_property
    def points(self) -> Tensor:
        """The points, with shape ``shape + (dimensions,)``."""
        line = self.origin + self.spacing * torch.arange(
            self.size, dtype=self.dtype, device=self.device
        )
        return torch.stack(torch.meshgrid(*[line] * self.dimensions, indexing="ij"), dim=-1)

    @cached_property
    def _whole_waves(self) -> Tensor:
        """The wave numbers of the real transform, ``dimensions`` x its shape."""
        whole = torch.fft.fftfreq(self.size, d=1 / self.size, dtype=self.dtype, device=self.device)
        half = torch.arange(self.size // 2 + 1, dtype=self.dtype, device=self.device)
        lines = [whole] * (self.dimensions - 1) + [half]
        return torch.stack(torch.meshgrid(*lines, indexing="ij")) * (2 * math.pi / self.length)

    @cached_property
    def lone(self) -> Tensor:
        """Where a wave number is n/2 along its axis, which has no partner -n/2."""
        crest = math.pi / self.spacing
        return (self._whole_waves.abs() - crest).abs() < crest / (2 * self.size)

    @cached_property
    def waves(self) -> Tensor:
        """The wave numbers for derivatives, ``dimensions`` x the transform's shape.

        The lone wave number n/2 is 0 here: the derivative of a wave that is only seen at its
        crests has no value on the grid.
        """
        return torch.where(self.lone, 0.0, self._whole_waves)

    @cached_property
    def squared_waves(self) -> Tensor:
        """The symbol ``|k|^2`` of minus the Laplacian; n/2 counts in full, so that it decays."""
        return (self._whole_waves**2).sum(dim=0)

    @cached_property
    def kept(self) -> Tensor:
        """Whether the 2/3 rule keeps each wave number."""
        limit = 2 * math.pi / self.length * self.size / 3
        return (self._whole_waves.abs() < limit * (1 - 1e-12)).all(dim=0)

    def largest_wave(self, *, dealias: bool) -> float:
        """The largest wave number along an axis that a solver keeps."""
        count = math.ceil(self.size / 3) - 1 if dealias else self.size // 2 - 1
        return 2 * math.pi / self.length * count

    def transform(self, values: Tensor) -> Tensor:
        """Return the Fourier coefficients of real values on the grid."""
        found: Tensor = torch.fft.rfftn(values, dim=self.axes)
        return found

    def inverse(self, coefficients: Tensor) -> Tensor:
        """Return the values of a Fourier series on the grid."""
        found: Tensor = torch.fft.irfftn(coefficients, s=self.shape, dim=self.axes)
        return found

    def gradient(self, values: Tensor) -> Tensor:
        """Return the gradient, with its components in a new last dimension."""
        self.check_values("values", values)
        return self.gradient_of(self.transform(values))

    def gradient_of(self, coefficients: Tensor) -> Tensor:
        """Return the gradient of a Fourier series, its components in the last dimension."""
        parts = [self.inverse(1j * wave * coefficients) for wave in self.waves]
        return torch.stack(parts, dim=-1)

    def refine(self, values: Tensor, factor: int) -> Tensor:
        """Return the values of the same Fourier series on a grid ``factor`` times as fine."""
        checks.integer("factor", factor, low=1)
        coefficients = self.transform(self.check_values("values", values))
        # The lone wave n/2 is left out: on the finer grid it would need a partner -n/2.
        lone = self.lone.any(dim=0)
        coefficients = torch.where(lone, torch.zeros_like(coefficients), coefficients)
        fine = self.finer(factor)
        half = self.size // 2
        ends = (*([fine.size] * (self.dimensions - 1)), fine.size // 2 + 1)
        target = coefficients.new_zeros((*values.shape[: -self.dimensions], *ends))
        corners = [(slice(0, half), slice(0, half)), (slice(-half, None), slice(-half, None))]
        last = (slice(0, half), slice(0, half))
        choices: list[list[tuple[slice, slice]]] = [[]]
        for _ in range(self.dimensions - 1):
            choices = [[*before, corner] for before in choices for corner in corners]
        for choice in choices:
            to: tuple[Any, ...] = (..., *(pair[0] for pair in choice), last[0])
            source: tuple[Any, ...] = (..., *(pair[1] for pair in choice), last[1])
            target[to] = coefficients[source]
        return fine.inverse(target) * float(factor) ** self.dimensions

    def finer(self, factor: int) -> Grid:
        """Return the grid of the same box with ``factor`` times as many points a side."""
        return Grid(
            size=self.size * factor,
            length=self.length,
            dimensions=self.dimensions,
            origin=self.origin,
            dtype=self.dtype,
            device=self.device,
        )

    def check_values(self, name: str, values: object) -> Tensor:
        """Return a function's values if they belong on this grid and are finite."""
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} must be a tensor of values on the grid, found {values!r}")
        if tuple(values.shape[-self.dimensions :]) != self.shape or values.ndim < self.dimensions:
            raise ValueError(
                f"{name} must end in the grid's shape {self.shape}, found {tuple(values.shape)}"
            )
        return self._finite(name, values)

    def check_field(self, name: str, field: object) -> Tensor:
        """Return a vector field's values if they belong on this grid and are finite."""
        if not isinstance(field, Tensor):
            raise TypeError(f"{name} must be a tensor of vectors on the grid, found {field!r}")
        wanted = (*self.shape, self.dimensions)
        if tuple(field.shape[-len(wanted) :]) != wanted or field.ndim < len(wanted):
            raise ValueError(
                f"{name} must end in shape {wanted}, the grid's and a vector a point; "
                f"found {tuple(field.shape)}"
            )
        return self._finite(name, field)

    def _finite(self, name: str, values: Tensor) -> Tensor:
        if values.is_complex():
            raise TypeError(f"{name} must be real, found {values.dtype}")
        values = values.to(device=self.device, dtype=self.dtype)
        if not bool(values.isfinite().all()):
            count = int((~values.isfinite()).sum())
            raise ValueError(
                f"{name} must be finite, found {count} values that are NaN or infinite"
            )
        return values


def overshoot(values: Tensor, terminal: Tensor) -> float:
    """Return how far values leave the range of f, as a fraction of that range.

    The solution stays in the range (maximum principle), so anything above 0 is a solver's error.
    """
    low, high = float(terminal.min()), float(terminal.max())
    beyond = max(low - float(values.min()), float(values.max()) - high, 0.0)
    return beyond / (high - low)
