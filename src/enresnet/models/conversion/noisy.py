"""Noise after residual mappings: where a network gets it, and how it is put there."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from enresnet.models.architecture import StdOver
from enresnet.models.conversion.additions import additions, insert_after
from enresnet.models.conversion.arguments import Given
from enresnet.models.conversion.candidates import name_blocks, place_of
from enresnet.models.conversion.residuals import Residual, Residuals
from enresnet.models.conversion.rewriting import rewrite
from enresnet.models.conversion.tracing import UntraceableError, traced
from enresnet.models.noise import NoiseInjection, NoiseStream

NOISE = "feynman_kac_noise"  # the name of the modules that are added


class ClonedNoise(NoiseInjection):
    """Noise whose output may be changed in place, as by a ReLU that saves memory.

    The gradient of the noise needs what it put out.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x + noise * std(x) * N(0, I)."""
        out = super().forward(x)
        return out.clone() if out.requires_grad and out is not x else out


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
    first, *others = output if isinstance(output, tuple) and output else (output,)
    if not isinstance(first, Tensor):
        raise TypeError(
            f"the block {type(module).__name__} returns a {type(first).__name__}, to which no "
            "noise can be added: name one that returns a tensor, or a tuple that begins with one"
        )
    return (injection(first), *others) if isinstance(output, tuple) else injection(first)
