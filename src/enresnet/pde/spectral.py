r"""The convection-diffusion equation by Fourier series, in both directions of time.

.. math:: u_t + F \cdot \nabla u + \tfrac12 \sigma^2 \Delta u = 0, \quad u(x, 1) = f(x)
          \qquad \text{(Eqs. 8, 10; backward)}

.. math:: u_t + F \cdot \nabla u = \tfrac12 \sigma^2 \Delta u, \quad u(x, 0) = u_0(x)
          \qquad \text{(Eq. 12; forward)}

With s = 1 - t the first is :math:`v_s = F \cdot \nabla v + \tfrac12 \sigma^2 \Delta v`: both are
one equation with the sign of F turned. Diffusion is solved exactly by the integrating factor
:math:`e^{\sigma^2 |k|^2 s / 2}`, convection by the classical fourth-order Runge-Kutta step of
what is left. Products are dealiased by the 2/3 rule. The equation keeps the range of f
(maximum principle) but this method does so only as far as the solution is resolved: for
velocities as rough as those of Figure 4 use :mod:`enresnet.pde.semi_lagrangian`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from enresnet.common import checks
from enresnet.pde.grid import Grid

Velocity = Callable[[Tensor, float], Tensor]
"""From points ... x d and a time to vectors ... x d."""

SCANNED = 16  # intervals of time between which a velocity's speed is looked at beforehand
IMAGINARY_LIMIT = 2 * math.sqrt(2)  # where the region of the Runge-Kutta step ends on that axis


def solve_backward(
    grid: Grid,
    velocity: Velocity | Tensor,
    terminal: Tensor,
    *,
    sigma: float | Sequence[float] | Tensor,
    steps: int,
    span: tuple[float, float] = (0.0, 1.0),
    source: Callable[[Tensor, float], Tensor] | None = None,
    dealias: bool = True,
) -> Tensor:
    """Return u at the beginning of ``span`` from its terminal values at the end (Eqs. 8, 10).

    Fourier series in space and fourth-order Runge-Kutta steps in time; diffusion is exact.

    Args:
        grid: The grid.
        velocity: F, a function of points and time, or its values on the grid if it is steady.
        terminal: u at the end of ``span``, on the grid.
        sigma: One diffusion coefficient, or several that are solved for together; at least 0.
        steps: Time steps; each must be at most :func:`largest_stable_step`.
        span: The beginning and the end of time; (0, 1) by default.
        source: A right-hand side of the equation, as a function of points and time, for
            manufactured solutions; 0 by default.
        dealias: Whether products are dealiased by the 2/3 rule; True by default.

    Shape:
        - velocity: grid.shape x d, or S x grid.shape x d with one entry for each of S sigmas
        - terminal: grid.shape, or S x grid.shape
        - result: S x grid.shape, with S = 1 for a single sigma

    Returns:
        u at the beginning of ``span``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A tensor does not fit the grid or is not finite, ``sigma`` is negative, or the
            steps are too few (the error says how many are needed).

    Example::

        import torch
        from enresnet.pde import Grid, solve_backward

        grid = Grid(size=32, length=2 * torch.pi)
        terminal = grid.points[..., 0].sin()
        wind = torch.ones(32, 32, 2)
        solution = solve_backward(grid, wind, terminal, sigma=[0.0, 0.5], steps=20)  # 2 x 32 x 32
    """
    return _solve(grid, velocity, terminal, sigma, steps, span, source, dealias, backward=True)


def solve_forward(
    grid: Grid,
    velocity: Velocity | Tensor,
    initial: Tensor,
    *,
    sigma: float | Sequence[float] | Tensor,
    steps: int,
    span: tuple[float, float] = (0.0, 1.0),
    source: Callable[[Tensor, float], Tensor] | None = None,
    dealias: bool = True,
) -> Tensor:
    """Return u at the end of ``span`` from its values at the beginning (Eq. 12).

    The method is that of :func:`solve_backward`.

    Args:
        grid: The grid.
        velocity: F, a function of points and time, or its values on the grid if it is steady.
        initial: u at the beginning of ``span``, on the grid.
        sigma: One diffusion coefficient, or several that are solved for together; at least 0.
        steps: Time steps; each must be at most :func:`largest_stable_step`.
        span: The beginning and the end of time; (0, 1) by default.
        source: A right-hand side of the equation, as a function of points and time, for
            manufactured solutions; 0 by default.
        dealias: Whether products are dealiased by the 2/3 rule; True by default.

    Shape:
        - velocity: grid.shape x d, or S x grid.shape x d with one entry for each of S sigmas
        - initial: grid.shape, or S x grid.shape
        - result: S x grid.shape, with S = 1 for a single sigma

    Returns:
        u at the end of ``span``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: As :func:`solve_backward`.

    Example::

        import torch
        from enresnet.pde import Grid, solve_forward

        grid = Grid(size=32, length=2 * torch.pi)
        initial = grid.points[..., 0].sin()
        solution = solve_forward(grid, torch.ones(32, 32, 2), initial, sigma=0.1, steps=20)
    """
    return _solve(grid, velocity, initial, sigma, steps, span, source, dealias, backward=False)


def largest_stable_step(grid: Grid, velocity: Tensor, *, dealias: bool = True) -> float:
    """Return the largest stable time step for a velocity on the grid; infinite if it is 0.

    A wave k is convected at the rate F.k, at most the largest sum of ``|F_j|`` times the largest
    wave number kept. A Runge-Kutta step is stable up to 2 sqrt(2) over that rate.

    Args:
        grid: The grid.
        velocity: F at the grid's points.
        dealias: Whether the 2/3 rule removes the largest wave numbers; True by default.

    Shape:
        - velocity: ... x grid.shape x d

    Returns:
        The time step.

    Raises:
        TypeError: ``velocity`` is not a real tensor.
        ValueError: ``velocity`` does not fit the grid or is not finite.

    Example::

        import torch
        from enresnet.pde import Grid, largest_stable_step

        grid = Grid(size=64)
        step = largest_stable_step(grid, torch.ones(64, 64, 2))
        print(f"at least {1 / step:.0f} steps over a unit of time")
    """
    field = grid.check_field("velocity", velocity)
    rate = float(field.abs().sum(dim=-1).max()) * grid.largest_wave(dealias=dealias)
    return IMAGINARY_LIMIT / rate if rate > 0 else math.inf


def _solve(
    grid: Grid,
    velocity: Velocity | Tensor,
    values: Tensor,
    sigma: float | Sequence[float] | Tensor,
    steps: int,
    span: tuple[float, float],
    source: Callable[[Tensor, float], Tensor] | None,
    dealias: bool,
    *,
    backward: bool,
) -> Tensor:
    sigmas = check_sigmas(sigma).to(device=grid.device, dtype=grid.dtype)
    values = _per_sigma("terminal" if backward else "initial", grid, values, len(sigmas))
    checks.integer("steps", steps, low=1)
    start, stop = _interval(span)
    step = (stop - start) / steps
    field = _Field(grid, velocity, len(sigmas), (start, stop), steps, dealias)
    sign = 1.0 if backward else -1.0
    mask = grid.kept if dealias else torch.ones_like(grid.kept)

    def convect(time: float, coefficients: Tensor) -> Tensor:
        own = stop - time if backward else start + time
        product = (field(own) * grid.gradient_of(coefficients)).sum(dim=-1)
        if source is not None:
            pushed = grid.check_values("source", source(grid.points, own))
            _check_leading("source", pushed.shape[: -grid.dimensions], len(sigmas))
            product = product - pushed  # of either equation: v_s = sign * (F.grad v - g) + ...
        return sign * mask * grid.transform(product)

    rate = -0.5 * sigmas.view(-1, *[1] * grid.dimensions) ** 2 * grid.squared_waves
    half = torch.exp(rate * step / 2)
    whole = half * half
    state = mask * grid.transform(values)
    for number in range(steps):
        time = number * step
        first = convect(time, state)
        second = convect(time + step / 2, half * (state + step / 2 * first))
        third = convect(time + step / 2, half * state + step / 2 * second)
        fourth = convect(time + step, whole * state + step * half * third)
        state = whole * state + step / 6 * (whole * first + 2 * half * (second + third) + fourth)
    return grid.inverse(state)


class _Field:
    """The velocity on the grid at a time, checked and, if it is steady, computed once."""

    def __init__(
        self,
        grid: Grid,
        velocity: Velocity | Tensor,
        count: int,
        span: tuple[float, float],
        steps: int,
        dealias: bool,
    ) -> None:
        self._grid, self._count, self._dealias = grid, count, dealias
        self._span, self._steps, self._velocity = span, steps, velocity
        self._steady: Tensor | None = None
        self._last: tuple[float, Tensor] | None = None  # a step ends where the next begins
        if callable(velocity):
            for time in _times(span, SCANNED):  # refuse an unstable step before the work
                self(time)
        else:
            self._steady = self._checked(velocity)

    def __call__(self, time: float) -> Tensor:
        if self._steady is not None:
            return self._steady
        if self._last is None or self._last[0] != time:
            self._last = (time, self._checked(self._at(time)))
        return self._last[1]

    def _at(self, time: float) -> Tensor:
        assert callable(self._velocity)
        return self._velocity(self._grid.points, time)

    def _checked(self, found: object) -> Tensor:
        field = self._grid.check_field("velocity", found)
        _check_leading("velocity", field.shape[: -self._grid.dimensions - 1], self._count)
        step = (self._span[1] - self._span[0]) / self._steps
        largest = largest_stable_step(self._grid, field, dealias=self._dealias)
        if step > largest:
            if callable(self._velocity):  # of all times, not only of the first that is too fast
                times = _times(self._span, max(2 * self._steps, 256))
                fields = (self._grid.check_field("velocity", self._at(time)) for time in times)
                limits = (
                    largest_stable_step(self._grid, one, dealias=self._dealias) for one in fields
                )
                largest = min(largest, *limits)
            raise too_few_steps(largest, self._span[1] - self._span[0], self._steps)
        return field


def too_few_steps(largest: float, length: float, steps: int) -> ValueError:
    """Return the error for a time step above the largest stable one."""
    return ValueError(
        f"steps are too few: the largest stable time step for this velocity on this grid is "
        f"{largest:.3g}, found {length / steps:.3g}; take at least {math.ceil(length / largest)} "
        "steps"
    )


def _times(span: tuple[float, float], count: int) -> list[float]:
    return [span[0] + (span[1] - span[0]) * number / count for number in range(count + 1)]


def _interval(span: tuple[float, float]) -> tuple[float, float]:
    try:
        start, stop = span
    except (TypeError, ValueError) as error:
        raise ValueError(f"span must be two times, found {span!r}") from error
    start, stop = checks.number("span", start), checks.number("span", stop)
    if not stop > start:
        raise ValueError(f"span must be an interval of time, found {span}")
    return start, stop


def check_sigmas(sigma: float | Sequence[float] | Tensor) -> Tensor:
    """Return the diffusion coefficients as a vector, none of them negative."""
    if isinstance(sigma, Tensor):
        sigma = sigma.detach().flatten().tolist()
    if not isinstance(sigma, Sequence):
        sigma = [sigma]
    if not len(sigma):
        raise ValueError("sigma must be a number or several, found none")
    return torch.tensor([checks.number("sigma", one, low=0) for one in sigma], dtype=torch.float64)


def _per_sigma(name: str, grid: Grid, values: object, count: int) -> Tensor:
    checked = grid.check_values(name, values)
    _check_leading(name, checked.shape[: -grid.dimensions], count)
    return checked.expand(count, *grid.shape)


def _check_leading(name: str, leading: torch.Size, count: int) -> None:
    if leading not in ((), (count,), (1,)):
        raise ValueError(
            f"{name} must be one for all sigmas or one for each of the {count}; found leading "
            f"dimensions {tuple(leading)}"
        )
