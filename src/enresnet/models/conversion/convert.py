r"""Any network with residual connections as a Feynman-Kac ensemble (Sec. 3.1).

.. math:: x_{l+1} = x_l + F(x_l) \quad\longrightarrow\quad
          x_{l+1} = x_l + F(x_l) + a\,\mathrm{std}(x_l + F(x_l))\, N(0, I)

A residual mapping is an addition in the ``forward`` of some module. Noise becomes a module after
it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn

from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.models.architecture import StdOver
from enresnet.models.conversion.additions import additions, insert_after
from enresnet.models.conversion.arguments import Given
from enresnet.models.conversion.candidates import name_blocks, place_of
from enresnet.models.conversion.example import answer, answer_of_copy
from enresnet.models.conversion.residuals import Residual, Residuals, find_residuals
from enresnet.models.conversion.rewriting import rewrite
from enresnet.models.conversion.tracing import UntraceableError, traced
from enresnet.models.ensemble import Average, Ensemble
from enresnet.models.external import ExternalNetwork
from enresnet.models.noise import DEFAULT_NOISE, NoiseInjection, NoiseStream, noise_modules
from enresnet.models.resnet import ResNet

Init = Literal["fresh", "copy"]
NOISE = "feynman_kac_noise"  # the name of the modules that are added
_TRIED = 0.3  # the noise with which a conversion is checked


class ClonedNoise(NoiseInjection):
    """Noise whose output may be changed in place, as by a ReLU that saves memory.

    The gradient of the noise needs what it put out.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x + noise * std(x) * N(0, I)."""
        out = super().forward(x)
        return out.clone() if out.requires_grad and out is not x else out


def feynman_kac(
    model: nn.Module,
    *,
    members: int = 5,
    noise: float = DEFAULT_NOISE,
    std_over: StdOver = "example",
    average: Average = "logits",
    draws: int = 1,
    init: Init = "copy",
    builder: Callable[[], nn.Module] | None = None,
    blocks: Sequence[str | type[nn.Module]] | None = None,
    example: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """Turn a network with residual connections into a Feynman-Kac ensemble.

    The network is left as it was; the ensemble's members are copies of it with noise after every
    residual mapping. ``ensemble.members[0].network`` is the first of them: its parameters have the
    names that they have in the network.

    Args:
        model: From images in [0, 1] to logits; see :class:`Normalized` for one that wants them
            otherwise.
        members: How many networks are averaged.
        noise: The paper's a: the noise's standard deviation in units of that of the mapping's
            output.
        std_over: Over what that standard deviation is taken: each example, or the whole batch.
        average: What is averaged, logits or probabilities.
        draws: Noisy runs of every member inside one prediction.
        init: ``"copy"`` starts all members from the network's weights, for fine-tuning; ``"fresh"``
            draws new ones for each, by the modules' ``reset_parameters`` or by ``builder``.
        builder: Returns the network with fresh weights each time; for ``init="fresh"`` where some
            module has weights but no ``reset_parameters``. Its weights take the types and devices
            of the network's.
        blocks: Names or classes of modules whose output gets the noise, in place of the additions
            that are found; for networks whose ``forward`` cannot be traced.
        example: Images to look at the network with, N x C x H x W; by default two random ones of a
            size that it takes.
        generator: Seeds fresh weights and then serves the noise.

    Returns:
        The ensemble, in the network's mode. ``print(ensemble.describe())`` tells where noise was
        added, and what was skipped.

    Raises:
        TypeError: The model is no ``nn.Module``, or ``builder`` returns none.
        ValueError: There is no residual connection, the network cannot be looked into, or noise
            would not reach all that reads a residual mapping's output.

    Shape:
        - example: N x C x H x W
        - the ensemble: as the network, N x C x H x W to N x classes

    Example::

        network = enresnet.create_model("resnet8")  # or any of timm's, torchvision's, yours
        ensemble = enresnet.feynman_kac(network, members=2, noise=0.1)
        print(ensemble.describe())
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, found {type(model).__name__}")
    checks.integer("members", members, low=1)
    checks.number("noise", noise, low=0)
    checks.choice("init", init, get_args(Init))
    generator = checked_generator(generator)
    outer = model if isinstance(model, ExternalNetwork) else ExternalNetwork(model)
    inner = outer.network
    if builder is None and outer.source is not None:
        builder = outer.source.build
    residuals = find_residuals(inner, blocks=blocks, example=example)
    stream = NoiseStream(generator)
    _check_conversion(inner, residuals, example)
    inside = []
    for _ in range(members):
        network = copy.deepcopy(inner)
        if init == "fresh":
            network = _fresh(network, builder, generator)
        noisy = with_noise(network, residuals, noise, std_over, stream)
        inside.append(noisy if type(noisy) is ResNet else outer.with_network(noisy, residuals))
    ensemble = Ensemble(inside, average=average, draws=draws, generator=generator)
    return ensemble.train(model.training)


class _InPlaceNoise(NoiseInjection):
    """Noise that overwrites what it is added to: whatever reads that, under any name, sees it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x after x += noise * std(x) * N(0, I)."""
        return x.copy_(super().forward(x.clone()))


def _check_conversion(model: nn.Module, residuals: Residuals, example: Tensor | None) -> None:
    """Raise unless noise 0 leaves the network's function, and noise reaches all that it should."""
    before = copy.deepcopy(model).eval()
    for parameter in before.parameters():  # weights of 0, as of a new head, would hide the noise
        if parameter.is_floating_point() and not parameter.any():
            draws = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
            parameter.data.copy_(0.1 * draws)
    after, images = answer(copy.deepcopy(before), example)

    def answer_with(noise: float, kind: type[NoiseInjection], *found: Residual) -> Any:
        stream = NoiseStream(torch.Generator().manual_seed(0))
        places = Residuals(found or residuals.found)
        network = with_noise(copy.deepcopy(before), places, noise, "example", stream, kind)
        called: set[nn.Module] = set()
        for place in noise_modules(network):
            place.register_forward_hook(lambda module, *_: called.add(module))
        logits = answer_of_copy(network, images, model)
        if any(type(place) is kind and place not in called for place in noise_modules(network)):
            return None
        return logits

    quiet = answer_with(0.0, ClonedNoise)
    if not _agree(after, quiet):
        raise ValueError(
            f"model cannot be converted: {type(model).__name__} answers otherwise without noise "
            "once the forward of blocks is traced. A module may ask for the exact class of a block "
            "(type(block) is ...), read its code, or rely on a += that changes a tensor it still "
            f"has: {name_blocks(model)}"
        )
    noisy = answer_with(_TRIED, ClonedNoise)
    if torch.equal(quiet, noisy):
        raise ValueError(
            "model cannot be converted: its logits do not change with the noise; "
            + name_blocks(model)
        )
    if not _agree(noisy, answer_with(_TRIED, _InPlaceNoise)):
        places = [
            f"{place.module or 'the network itself'} ({place.kind})"
            for place in residuals.found
            if not _agree(
                answer_with(_TRIED, ClonedNoise, place), answer_with(_TRIED, _InPlaceNoise, place)
            )
        ]
        raise ValueError(
            "model cannot be converted: its sums are read under other names, which the noise would "
            f"not reach, in {', '.join(places)}; {name_blocks(model)}"
        )


def _agree(one: Any, two: Any) -> bool:
    """Return whether two answers are the same, but for rounding."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor) or one.shape != two.shape:
        return False
    scale = float(one.detach().abs().max()) if one.numel() else 0.0
    return torch.allclose(one, two, rtol=0.0, atol=1e-4 * scale)  # logits may be small


def with_noise(
    network: nn.Module,
    residuals: Residuals,
    noise: float,
    std_over: StdOver,
    stream: NoiseStream,
    kind: type[NoiseInjection] = ClonedNoise,
) -> nn.Module:
    """Return the network with noise, of some kind, at all residual mappings.

    Raises:
        ValueError: The network has no such residual mappings.
    """

    modules = dict(network.named_modules())
    by_module: dict[str, list[Residual]] = {}
    for residual in residuals.found:
        by_module.setdefault(residual.module, []).append(residual)
    for name, places in by_module.items():
        if (module := modules.get(name)) is None:
            raise ValueError(f"the network has no module {name!r} to add noise in")
        if places[0].number is None:
            # A module may return what it was given: that is not overwritten.
            module.add_module(NOISE, ClonedNoise(noise, std_over=std_over, generator=stream))
            module.register_forward_hook(_noise_after)
            continue
        try:
            trace = traced(module, Given(never=places[0].left_out))
        except UntraceableError as error:
            raise ValueError(
                f"noise cannot be added in {place_of(name, module)}: {error}; "
                + name_blocks(network)
            ) from error
        graph = trace.graph
        nodes = additions(graph)
        added = False
        for number in (place.number for place in places):
            if number is None or not 0 <= number < len(nodes):
                raise ValueError(f"module {name!r} has no addition {number} to add noise after")
            node = nodes[number]
            own = _own_noise(module, node)
            if own is not None:  # one of ours: its noise is set
                own.noise, own.std_over, own.stream = noise, std_over, stream
                continue
            added = True
            target = f"{NOISE}_{number}"
            module.add_module(target, kind(noise, std_over=std_over, generator=stream))
            insert_after(graph, node, target)
        if added:
            rewrite(module, graph, trace.read)
    return network


def _own_noise(module: nn.Module, node: fx.Node) -> NoiseInjection | None:
    """Return the noise that follows an addition already."""
    for user in node.users:
        if user.op == "call_module":
            found = module.get_submodule(str(user.target))
            if isinstance(found, NoiseInjection):
                return found
    return None


def _noise_after(module: nn.Module, _: Any, output: Any) -> Any:
    """Add noise to a module's output: a tensor, or the first of a tuple."""
    injection = getattr(module, NOISE)
    if isinstance(output, tuple):
        return (injection(output[0]), *output[1:])
    return injection(output)


def _fresh(
    network: nn.Module, builder: Callable[[], nn.Module] | None, generator: torch.Generator
) -> nn.Module:
    """Return the network with new weights, drawn from a seed of the generator."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if builder is not None:
            return _like(builder(), network)
        for name, module in network.named_modules():
            own = [*module._parameters.values(), *module._buffers.values()]
            if not any(value is not None for value in own):
                continue
            reset = getattr(module, "reset_parameters", None)
            if not callable(reset):
                raise ValueError(
                    f"init='fresh' cannot draw new weights for {place_of(name, module)}: it has no "
                    "reset_parameters; give builder=..., a function that returns the network with "
                    "fresh weights, or init='copy'"
                )
            reset()
    return network


def _like(built: nn.Module, network: nn.Module) -> nn.Module:
    """Return a network that was built, its tensors in the types and on the devices of another's."""
    if not isinstance(built, nn.Module):
        raise TypeError(f"builder must return an nn.Module, found {type(built).__name__}")
    like = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    tensors = {**dict(built.named_parameters()), **dict(built.named_buffers())}
    wanted = {id(tensor): like[name] for name, tensor in tensors.items() if name in like}

    def moved(tensor: Tensor) -> Tensor:
        other = wanted.get(id(tensor), tensor)
        return tensor.to(other.device, other.dtype)

    built._apply(moved)
    return built
