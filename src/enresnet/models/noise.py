r"""Noise injection (Sec. 3.1, Fig. 1b): a residual mapping becomes a step of an Ito process.

.. math:: x_{l+1} = x_l + F(x_l) + \sigma\, N(0, I), \qquad
          \sigma = a \sqrt{\mathrm{Var}(x_l + F(x_l))}

``noise`` is the paper's a. Euler-Maruyama over L steps of size 1/L would add
sigma sqrt(1/L) N(0, I) a step; the paper leaves the factor out, so the sigma of its PDE is
a * std * sqrt(L).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from enresnet import native
from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.models.architecture import STD_OVER, StdOver
from enresnet.models.first_order_only import LOOPS, first_only
from enresnet.models.noise_operators import draw_key, in_one_piece, inject, is_dense
from enresnet.models.second_pass import check_first_pass

DEFAULT_NOISE = 0.1
_COMPILED = ("compiled", 0)  # where the draws of compiled code stand, among those of devices


class NoiseStream:
    """Gaussian draws from a stream of its own, apart from torch's global generators.

    A ``torch.Generator`` handed in is used as it is, and so can be reseeded from outside; without
    one the stream starts from the system's entropy. A model that moves to another device goes on
    with a generator for that device, seeded by a draw from the first. A copy, by ``copy.deepcopy``,
    pickle or fork, goes on from where the original stands and so repeats its draws, until
    :func:`seed_noise` gives it others; an ensemble lets its members draw from one stream. One seed
    gives the same noise for the same calls in the same memory format; a network inside
    :func:`~enresnet.models.frozen.frozen` draws other numbers than its ``forward``.

    Attributes:
        source: The generator that it was given, or its own.
        compiled: Where the draws of compiled code stand, which cannot ask a generator. They start
            from where that stands when the stream is made or seeded; they do not move it, and do
            not see that it moves.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.source = checked_generator(generator)
        self._on_device = {_place(self.source.device): self.source}
        self.compiled = torch.tensor(_number_of_state(self.source))

    def get_state(self) -> dict[tuple[str, int], Tensor]:
        """Return where the stream stands, on each of its devices."""
        found = {place: generator.get_state() for place, generator in self._on_device.items()}
        return {**found, _COMPILED: self.compiled.clone()}

    def set_state(self, state: dict[tuple[str, int], Tensor]) -> None:
        """Put the stream where :meth:`get_state` found it."""
        for place, value in state.items():
            if place == _COMPILED:
                self.compiled.copy_(value)
            else:
                self._on_device[place].set_state(value)

    def manual_seed(self, seed: int) -> None:
        """Start the stream anew, on each of its devices."""
        self.source.manual_seed(seed)
        self.compiled.fill_(_number_of_state(self.source))
        own = _place(self.source.device)
        self._on_device = {own: self.source}  # others are seeded by the first when they are needed

    def normal_like(self, x: Tensor) -> Tensor:
        """Return N(0, 1) draws in the shape, type, device and memory format of ``x``."""
        generator = self._generator(x.device)
        draws = torch.empty_like(x)
        if native.supports(draws) and is_dense(draws):
            native.call("normal", draws, draws, draws.numel(), _draw_seed(generator))
            return draws
        return draws.normal_(generator=generator)

    def key(self) -> int:
        """Return a number that stands for fresh draws on the CPU."""
        return _draw_seed(self._generator(torch.device("cpu")))

    def _generator(self, device: torch.device) -> torch.Generator:
        place = _place(device)
        generator = self._on_device.get(place)
        if generator is None:
            generator = torch.Generator(device).manual_seed(_draw_seed(self.source))
            self._on_device[place] = generator
        return generator


def _place(device: torch.device) -> tuple[str, int]:
    # "cuda" and "cuda:0" are one place but not equal as devices.
    return device.type, device.index or 0


def _number_of_state(generator: torch.Generator) -> int:
    """Return a number that stands for where a generator stands, without a draw."""
    digest = hashlib.sha256(generator.get_state().numpy().tobytes()).digest()
    return int.from_bytes(digest[:8], "little") & (2**63 - 1)


def _draw_seed(generator: torch.Generator) -> int:
    draw = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return int(draw.item())


_shared_stream = NoiseStream()


def inject_noise(
    x: Tensor,
    noise: float = DEFAULT_NOISE,
    *,
    std_over: StdOver = "example",
    generator: NoiseStream | torch.Generator | None = None,
) -> Tensor:
    """Return x + noise * std(x) * N(0, I), where x is already the sum x_l + F(x_l).

    The gradient flows through the standard deviation. The compiled CPU code has no second
    derivative; set ``ENRESNET_NATIVE=0`` to get one from torch's own operations.

    Args:
        x: The features after a residual block.
        noise: The paper's a, in units of the standard deviation of ``x``; 0.1 by default. 0 returns
            ``x`` itself.
        std_over: ``"example"`` takes one standard deviation for each example, so that a prediction
            does not depend on the rest of its batch (the default). ``"batch"`` takes one for the
            whole tensor, as the authors' released code does.
        generator: Draws the noise. By default a stream of this module does, which starts from the
            system's entropy; torch's global generator is never used.

    Shape:
        - x: N x ..., floating point
        - result: as x

    Returns:
        The noisy features.

    Raises:
        TypeError: ``noise`` is not a number, or ``generator`` not a generator.
        ValueError: ``noise`` is negative, ``std_over`` is unknown, or ``x`` is not floating point
            or has fewer than two dimensions.
        RuntimeError: This is a second pass, such as of gradient checkpointing.

    Example::

        import torch

        features = torch.randn(2, 16, 8, 8)
        noisy = enresnet.inject_noise(features, 0.1, generator=torch.Generator().manual_seed(0))
    """
    checks.number("noise", noise, low=0)
    checks.choice("std_over", std_over, STD_OVER)
    if not x.is_floating_point() or x.ndim < 2:
        raise ValueError(f"x must be floating point, N x ..., found {x.dtype} {tuple(x.shape)}")
    if generator is None:
        generator = _shared_stream
    stream = generator if isinstance(generator, NoiseStream) else NoiseStream(generator)
    return _injected(x, noise, std_over, stream)


def _injected(x: Tensor, noise: float, std_over: StdOver, stream: NoiseStream) -> Tensor:
    if noise == 0:
        return x
    if torch.compiler.is_compiling():
        return _compiled(x, noise, std_over, stream)
    check_first_pass()
    if std_over == "example" and native.supports(x):
        injected: Tensor = _Inject.apply(x, noise, stream.key())  # type: ignore[no-untyped-call]
        return injected
    std = standard_deviation(x, tuple(range(std_over == "example", x.ndim)))
    return torch.addcmul(x, std, stream.normal_like(x), value=noise)


def _compiled(x: Tensor, noise: float, std_over: StdOver, stream: NoiseStream) -> Tensor:
    """Return the same by operators that torch.compile and torch.export see through."""
    key = draw_key(stream.compiled)
    rows = x if std_over == "example" else x.reshape(1, -1)
    noisy: Tensor = inject(rows, key, noise)[0]
    return noisy.view_as(x)


class _Inject(torch.autograd.Function):
    """x + noise * std(x) * N(0, I) for each example, by the loops in C."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, noise: float, key: int) -> Tensor:
        x = in_one_piece(x)
        y = torch.empty_like(x)
        mean, deviation = torch.empty(2, len(x), dtype=torch.float32, device="cpu")
        count = x[0].numel() if len(x) else 0
        native.call("inject", x, x, y, len(x), count, noise, key, mean, deviation)
        ctx.save_for_backward(x, y, mean, deviation)
        return y

    @staticmethod
    @first_only(LOOPS)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, y, mean, deviation = ctx.saved_tensors
        result = torch.empty_like(x)
        if gradient.stride() != x.stride():
            gradient = torch.empty_like(x).copy_(gradient)
        count = x[0].numel() if len(x) else 0
        native.call("inject_backward", x, gradient, x, y, result, len(x), count, mean, deviation)
        return result, None, None


def standard_deviation(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Return the root of the mean squared deviation over ``dim``, kept as dimensions of size 1.

    Plain vector operations, unlike the running algorithm of ``torch.std``. The gradient through the
    mean is 0, since deviations sum to 0; at a constant input torch takes the gradient of the norm
    as 0, so a flat image is harmless.
    """
    count = math.prod(x.shape[axis] for axis in dim)
    deviation = x - x.detach().mean(dim, keepdim=True)
    # float16 ends at 65504, which the norm of many numbers passes long before their mean does.
    wide = torch.float32 if x.dtype == torch.float16 else None
    norm: Tensor = torch.linalg.vector_norm(deviation, dim=dim, keepdim=True, dtype=wide)
    return (norm / math.sqrt(count)).to(x.dtype)


class NoiseInjection(nn.Module):
    """Adds noise as :func:`inject_noise` does, in training and in evaluation mode alike.

    The noise is part of the model, so ``.training`` does not change it: with noise the network
    solves a convection-diffusion equation, without it a transport equation. :func:`set_noise`
    changes the level; :func:`using_noise` and :func:`without_noise` change it for a while.

    Args:
        noise: The paper's a, in units of the standard deviation of the features; 0.1 by default.
        std_over: What that standard deviation is taken over: each ``"example"`` by itself (the
            default), or the whole ``"batch"``.
        generator: Draws the noise. By default the module has a stream of its own, which starts from
            the system's entropy.

    Shape:
        - x: N x ..., floating point
        - result: as x

    Raises:
        TypeError: ``noise`` is not a number, or ``generator`` not a generator.
        ValueError: ``noise`` is negative, or ``std_over`` is unknown.

    Example::

        import torch
        from torch import nn

        block = nn.Sequential(nn.Conv2d(3, 16, 3), enresnet.NoiseInjection(0.1))
        features = block(torch.rand(2, 3, 8, 8))
    """

    def __init__(
        self,
        noise: float = DEFAULT_NOISE,
        *,
        std_over: StdOver = "example",
        generator: NoiseStream | torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.noise = checks.number("noise", noise, low=0)
        checks.choice("std_over", std_over, STD_OVER)
        self.std_over = std_over
        self.stream = generator if isinstance(generator, NoiseStream) else NoiseStream(generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return x + noise * std(x) * N(0, I)."""
        if torch.compiler.is_compiling():  # which cannot follow what checks arguments
            return _injected(x, self.noise, self.std_over, self.stream)
        return inject_noise(x, self.noise, std_over=self.std_over, generator=self.stream)

    def extra_repr(self) -> str:
        """Show the hyper-parameters."""
        return f"noise={self.noise:g}, std_over={self.std_over!r}"


def noise_modules(model: nn.Module) -> Iterator[NoiseInjection]:
    """Yield every place where ``model`` adds noise."""
    return (module for module in model.modules() if isinstance(module, NoiseInjection))


def streams_of(model: nn.Module) -> list[NoiseStream]:
    """Return the streams that the model's noise comes from, in their order; mostly one."""
    return list(dict.fromkeys(module.stream for module in noise_modules(model)))


def seed_noise(model: nn.Module, generator: torch.Generator) -> None:
    """Let all noise of a model come from one generator from now on.

    One seed gives the same noise for the same calls. The generator is used as it is: reseeding it
    later reseeds the model's noise. A model compiled by ``torch.compile`` cannot ask a generator.
    It draws other numbers, which start from where the generator stands at this call: call this
    again to reseed them, and give two compiled models generators of their own.

    Args:
        model: A model; modules without noise are left alone.
        generator: Draws the noise. On another device a generator seeded by it takes over.

    Raises:
        TypeError: ``generator`` is not a ``torch.Generator``.

    Example::

        import torch

        model = enresnet.create_model("en3_resnet8")
        enresnet.seed_noise(model, torch.Generator().manual_seed(0))
    """
    share_stream(model, NoiseStream(generator))


def share_stream(model: nn.Module, stream: NoiseStream) -> None:
    """Let every place of ``model`` draw from one stream, so that no two repeat each other."""
    for module in noise_modules(model):
        module.stream = stream


def set_noise(model: nn.Module, noise: float) -> None:
    """Set the noise level of every noise injection in a model.

    Args:
        model: A model with :class:`NoiseInjection` modules.
        noise: The paper's a, in units of the standard deviation of the features; 0 turns the noise
            off.

    Raises:
        TypeError: ``noise`` is not a number.
        ValueError: ``noise`` is negative, or is above 0 and the model has no noise injection.

    Example::

        model = enresnet.create_model("en3_resnet8")
        enresnet.set_noise(model, 0.2)
    """
    value, places = checks.number("noise", noise, low=0), list(noise_modules(model))
    if value > 0 and not places:
        raise ValueError(f"model has no place for noise={value:g}: it holds no NoiseInjection")
    for module in places:
        module.noise = value


@contextmanager
def using_noise(model: nn.Module, noise: float) -> Iterator[None]:
    """Give a model another noise level inside a ``with`` block.

    Afterwards every module has its own level again, also if the block fails.

    Args:
        model: A model with :class:`NoiseInjection` modules.
        noise: The paper's a, in units of the standard deviation of the features.

    Returns:
        A context manager.

    Raises:
        TypeError: ``noise`` is not a number.
        ValueError: ``noise`` is negative, or is above 0 and the model has no noise injection.

    Example::

        with enresnet.using_noise(model, 0.2):
            noisier = model(images)
    """
    before = [(module, module.noise) for module in noise_modules(model)]
    set_noise(model, noise)
    try:
        yield
    finally:
        for module, value in before:
            module.noise = value


def without_noise(model: nn.Module) -> AbstractContextManager[None]:
    """Turn the noise of a model off inside a ``with`` block.

    Args:
        model: Any model; one without noise is left as it is.

    Returns:
        A context manager.

    Example::

        with enresnet.without_noise(model):
            same_every_time = model(images)
    """
    return using_noise(model, 0.0)
