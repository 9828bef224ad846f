r"""Any network with residual connections as a Feynman-Kac ensemble (Sec. 3.1).

.. math:: x_{l+1} = x_l + F(x_l) \quad\longrightarrow\quad
          x_{l+1} = x_l + F(x_l) + a\,\mathrm{std}(x_l + F(x_l))\, N(0, I)

A residual mapping is an addition in the ``forward`` of some module. torch.fx traces each module's
own ``forward`` and leaves its children whole, so that all parameters keep their names. An addition
counts if both terms depend on the images, have the same shape, and one of them, but for a linear
map, is something that the other was computed from: the shortcut. A pass of example images tells.
Noise becomes a module after the addition.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn

from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.models.architecture import StdOver
from enresnet.models.ensemble import Average, Ensemble
from enresnet.models.interface import logits_of
from enresnet.models.noise import DEFAULT_NOISE, NoiseInjection, NoiseStream

Init = Literal["fresh", "copy"]
NOISE = "feynman_kac_noise"  # the name of the modules that are added
SIDES = (32, 64, 224)  # of example images, where none are given
_ADDITIONS = (operator.add, operator.iadd, torch.add)
_METHODS = ("add", "add_")
# Steps of autograd that a shortcut may take: linear in what comes in.
_LINEAR = (
    "Convolution",
    "Addmm",
    "Mm",
    "Bmm",
    "BatchNorm",
    "AvgPool",
    "MeanBackward",
    "View",
    "Reshape",
    "Permute",
    "Transpose",
    "TBackward",
    "Clone",
    "Slice",
    "Pad",
    "MulBackward",
    "DivBackward",
    "ToCopy",
    "Alias",
    "Unsqueeze",
    "Squeeze",
    "Upsample",
    "Expand",
)


class ClonedNoise(NoiseInjection):
    """Noise whose output may be changed in place, as by a ReLU that saves memory.

    The gradient of the noise needs what it put out.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x + noise * std(x) * N(0, I)."""
        out = super().forward(x)
        return out.clone() if out.requires_grad and out is not x else out


@dataclass(frozen=True)
class Residual:
    """One place where noise is added.

    Attributes:
        module: The name of the module in whose ``forward`` the addition stands.
        kind: Its class.
        number: Which of its additions, from 0; None where noise is added to its output.

    Example::

        print(find_residuals(create_model("resnet8")).found[0])
    """

    module: str
    kind: str
    number: int | None


@dataclass(frozen=True)
class Residuals:
    """What :func:`find_residuals` found in a network.

    Attributes:
        found: The residual mappings, in the order of the modules.
        skipped: Additions that are none, and modules that could not be looked into, with the
            reason.

    Example::

        print(find_residuals(create_model("resnet8")).describe())
    """

    found: tuple[Residual, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Return how many residual mappings there are, where, and what was skipped and why."""
        kinds: dict[str, list[str]] = {}
        for residual in self.found:
            kinds.setdefault(residual.kind, []).append(residual.module or "the network itself")
        lines = [f"{len(self.found)} residual mappings"]
        for kind, names in kinds.items():
            places = list(dict.fromkeys(names))
            each = len(names) // len(places)
            shown = ", ".join(places[:4]) + (f", ... {places[-1]}" if len(places) > 4 else "")
            lines.append(f"  {kind}: {len(places)} modules, {each} each ({shown})")
        lines += [f"  skipped {place}: {why}" for place, why in self.skipped.items()]
        return "\n".join(lines)


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
    residual mapping. Their parameters have the names that they have in the network.

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
            module has weights but no ``reset_parameters``.
        blocks: Names or classes of modules whose output gets the noise, in place of the additions
            that are found; for networks whose ``forward`` cannot be traced.
        example: Images to look at the network with, N x C x H x W; by default two random ones of a
            size that it takes.
        generator: Seeds fresh weights and then serves the noise.

    Returns:
        The ensemble, in the network's mode. Its ``residuals`` tell where noise was added:
        ``print(ensemble.residuals.describe())``.

    Raises:
        TypeError: The model is no ``nn.Module``.
        ValueError: There is no residual connection, or the network cannot be looked into.

    Shape:
        - example: N x C x H x W
        - the ensemble: as the network, N x C x H x W to N x classes

    Example::

        network = create_model("resnet8")  # or any of timm's, torchvision's, yours
        ensemble = feynman_kac(network, members=2, noise=0.1)
        print(ensemble.residuals.describe())
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, found {type(model).__name__}")
    checks.integer("members", members, low=1)
    checks.number("noise", noise, low=0)
    checks.choice("init", init, get_args(Init))
    generator = checked_generator(generator)
    residuals = find_residuals(model, blocks=blocks, example=example)
    stream = NoiseStream(generator)
    _check_conversion(model, residuals, example)
    inside = []
    for _ in range(members):
        network = copy.deepcopy(model)
        if init == "fresh":
            network = _fresh(network, builder, generator)
        inside.append(_with_noise(network, residuals, noise, std_over, stream))
    ensemble = Ensemble(inside, average=average, draws=draws, generator=generator)
    ensemble.residuals = residuals
    return ensemble.train(model.training)


def find_residuals(
    model: nn.Module,
    *,
    blocks: Sequence[str | type[nn.Module]] | None = None,
    example: Tensor | None = None,
) -> Residuals:
    """Return where a network adds a shortcut to a residual mapping.

    Args:
        model: From images to logits.
        blocks: Names or classes of modules whose output counts, in place of what is found.
        example: Images to look at the network with; by default two random ones of a size that it
            takes.

    Returns:
        The places, and what was skipped.

    Shape:
        - example: N x C x H x W

    Raises:
        ValueError: There is none, or a block is none of the network's.

    Example::

        print(find_residuals(create_model("resnet8")).describe())
    """
    if blocks is not None:
        return Residuals(tuple(_chosen(model, blocks)))
    probed = copy.deepcopy(model).eval().requires_grad_(False)
    seen: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
    skipped: dict[str, str] = {}
    places: list[tuple[str, str, int]] = []
    for name, module in list(probed.named_modules()):
        if not _may_add(module):
            continue
        try:
            graph = _traced(module)
        except _UntraceableError as error:
            if _seems_to_add(module):
                skipped[_place(name, module)] = str(error)
            continue
        nodes = _additions(graph)
        if nodes:
            for number, node in enumerate(nodes):
                places.append((name, type(module).__name__, number))
                _insert(module, graph, node, _Probe(seen, (name, number)))
            probed = _replaced(probed, name, module, graph)
    _run(probed, example)
    found = []
    for name, kind, number in places:
        if (name, number) not in seen:
            why = "it was not reached"
        elif why := _no_residual(*seen[name, number]):
            pass
        else:
            found.append(Residual(name, kind, number))
            continue
        skipped[f"{name or 'the network itself'} ({kind}), addition {number}"] = why
    if not found:
        raise ValueError(_none_found(model, skipped))
    return Residuals(tuple(found), skipped)


class _UntraceableError(Exception):
    """A forward that torch.fx cannot follow."""


class _Shallow(fx.Tracer):
    """Follows a module's own ``forward``; its children are called, not followed."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        del m, module_qualified_name
        return True


def _traced(module: nn.Module) -> fx.Graph:
    """Return the graph of a module's own ``forward``, the same in training and in evaluation."""
    graphs = []
    before = module.training
    try:
        for mode in (True, False):
            module.training = mode  # its own flag alone: children are not followed
            graphs.append(_own_graph(module))
    except Exception as error:  # anything may go wrong where a proxy stands for a tensor
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _UntraceableError(f"its forward cannot be traced ({reason})") from error
    finally:
        module.training = before
    if str(graphs[0]) != str(graphs[1]):
        raise _UntraceableError("its forward differs between training and evaluation")
    return graphs[1]


def _own_graph(module: nn.Module) -> fx.Graph:
    """Trace a module; what its ``forward`` only passes on, as **kwargs, is left out."""
    kind = type(module)
    parameters = inspect.signature(kind.forward).parameters.values()
    open_ended = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not open_ended:
        return _Shallow().trace(module)
    names = [p.name for p in parameters if p not in open_ended]
    taken = ", ".join(
        name if p.default is p.empty else f"{name}=None"
        for name, p in zip(names, (p for p in parameters if p not in open_ended), strict=True)
    )
    given = ", ".join(f"{name}={name}" for name in names if name != "self")
    scope: dict[str, Any] = {"original": kind.forward}
    # torch.fx reads the names of arguments from a function's code, so there must be one.
    exec(f"def forward({taken}): return original(self, {given})", scope)
    module.__class__ = type(kind.__name__, (kind,), {"forward": scope["forward"]})
    try:
        return _Shallow().trace(module)
    finally:
        module.__class__ = kind


def _may_add(module: nn.Module) -> bool:
    """Return whether a module may have additions of its own: torch's have none."""
    kind = type(module)
    return not kind.__module__.startswith("torch.nn") and not issubclass(kind, NoiseInjection)


def _seems_to_add(module: nn.Module) -> bool:
    """Return whether the source of a module's ``forward``, or of one it may call, adds."""
    for kind in type(module).__mro__:
        if "forward" in vars(kind) and not kind.__module__.startswith("torch.nn"):
            try:
                source = inspect.getsource(vars(kind)["forward"])
            except (OSError, TypeError):
                return True
            if any(word in source for word in (" + ", " += ", ".add(", ".add_(")):
                return True
    return False


def _additions(graph: fx.Graph) -> list[fx.Node]:
    """Return the additions of two tensors in a graph."""
    return [
        node
        for node in graph.nodes
        if (
            (node.op == "call_function" and node.target in _ADDITIONS)
            or (node.op == "call_method" and node.target in _METHODS)
        )
        and all(isinstance(term, fx.Node) for term in node.args[:2])
        and len(node.args) >= 2
    ]


class _Probe(nn.Module):
    """Remembers the terms of an addition."""

    def __init__(self, seen: dict[tuple[str, int], tuple[Tensor, Tensor]], key: Any) -> None:
        super().__init__()
        self._seen, self._key = [seen], key  # in a list: the dictionary is not copied with it

    def forward(self, one: Any, two: Any) -> Any:
        self._seen[0].setdefault(self._key, (one, two))
        return one


def _insert(module: nn.Module, graph: fx.Graph, node: fx.Node, probe: _Probe) -> None:
    """Let a probe see the terms of an addition before they are added."""
    name = f"probe_{node.name}"
    module.add_module(name, probe)
    with graph.inserting_before(node):
        first = graph.call_module(name, node.args[:2])
    node.args = (first, *node.args[1:])


def _replaced(root: nn.Module, name: str, module: nn.Module, graph: fx.Graph) -> nn.Module:
    """Return the network with a module whose ``forward`` is now that of the graph."""
    new = fx.GraphModule(module, graph, type(module).__name__)
    for key, value in vars(module).items():  # what its parent may ask it for
        if key not in vars(new) and not key.startswith("_"):
            setattr(new, key, value)
    for key, child in module.named_children():  # those that its forward does not call
        if key not in dict(new.named_children()):
            new.add_module(key, child)
    new.train(module.training)
    if not name:
        return new
    parent, _, own = name.rpartition(".")
    setattr(root.get_submodule(parent), own, new)
    return root


def _check_conversion(model: nn.Module, residuals: Residuals, example: Tensor | None) -> None:
    """Raise unless the network with noise 0 is the same function as before."""
    before = copy.deepcopy(model).eval()
    quiet = _with_noise(copy.deepcopy(before), residuals, 0.0, "example", NoiseStream())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one, images = _run(before, example)
        torch.manual_seed(0)
        two, _ = _run(quiet, images)
    if not isinstance(one, Tensor) or not torch.allclose(one, two, rtol=1e-4, atol=1e-5):
        raise ValueError(
            f"model cannot be converted: {type(model).__name__} answers otherwise once its forward "
            "is traced; name the blocks whose output gets the noise, blocks=[...]; it is made of "
            f"{', '.join(_candidates(model))}"
        )


def _run(model: nn.Module, example: Tensor | None) -> tuple[Any, Tensor]:
    """Return a network's answer to the example, or to random images of a size that it takes."""
    if example is not None:
        sizes = [example]
    else:
        parameter = next(model.parameters(), None)
        first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
        channels = 3 if first is None else first.in_channels
        like = torch.empty(0) if parameter is None else parameter
        sizes = [
            torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0)).to(like)
            for side in SIDES
        ]
    for number, images in enumerate(sizes, 1):
        try:
            with torch.enable_grad():
                return logits_of(model(images.clone().requires_grad_())), images
        except Exception as error:
            if number == len(sizes):
                raise ValueError(
                    f"model fails on the example images {tuple(images.shape)}: {error}; give it "
                    "others: example=..."
                ) from error
    raise AssertionError("there is at least one size")


def _no_residual(one: Any, two: Any) -> str:
    """Return why an addition of these is no residual mapping; "" if it is one."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return "it does not add tensors"
    if not one.requires_grad or not two.requires_grad:
        return "a term does not depend on the images"
    if one.shape != two.shape:
        return f"its terms differ in shape, {tuple(one.shape)} and {tuple(two.shape)}"
    if _comes_from(two, _linear_sources(one)) or _comes_from(one, _linear_sources(two)):
        return ""
    return "neither term is a shortcut of what the other is computed from"


def _linear_sources(x: Tensor) -> set[Any]:
    """Return what a tensor is a linear map of, step by step, itself included."""
    node, found = _node(x), set()
    while node is not None:
        found.add(node)
        sources = [source for source, _ in node.next_functions if source is not None]
        if len(sources) != 1 or not any(word in node.name() for word in _LINEAR):
            break
        node = sources[0]
    return found


def _comes_from(x: Tensor, sources: set[Any]) -> bool:
    left, seen = [_node(x)], set()
    while left:
        node = left.pop()
        if node in sources:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            left += [source for source, _ in node.next_functions]
    return False


def _node(x: Tensor) -> Any:
    """Return where a tensor stands in autograd's graph; of a leaf, where its gradient gathers."""
    if x.grad_fn is not None:
        return x.grad_fn
    return x.view_as(x).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _chosen(model: nn.Module, blocks: Iterable[str | type[nn.Module]]) -> Iterable[Residual]:
    """Yield the modules that are named, or of the classes that are given."""
    modules = dict(model.named_modules())
    for block in blocks:
        if isinstance(block, str):
            names = [block] if block in modules else []
        else:
            names = [name for name, module in modules.items() if isinstance(module, block)]
        if not names:
            what = block if isinstance(block, str) else block.__name__
            raise ValueError(
                f"blocks must be modules of the network or their classes, found {what!r}; among "
                f"them are {', '.join(_candidates(model))}"
            )
        for name in names:
            yield Residual(name, type(modules[name]).__name__, None)


def _candidates(model: nn.Module) -> list[str]:
    """Return the classes of the network's own modules, those that seem to add first."""
    kinds = {type(m).__name__: m for m in model.modules() if _may_add(m)}
    return sorted(kinds, key=lambda kind: (not _seems_to_add(kinds[kind]), kind))[:8]


def _none_found(model: nn.Module, skipped: Mapping[str, str]) -> str:
    words = f"model has no residual connection that could be found: {type(model).__name__}"
    if skipped:
        words += " has " + "; ".join(f"{place}: {why}" for place, why in list(skipped.items())[:4])
    return (
        f"{words}. Where it has some, name the blocks whose output they are, blocks=[...]; it is "
        f"made of {', '.join(_candidates(model)) or 'layers of torch alone'}"
    )


def _place(name: str, module: nn.Module) -> str:
    return f"{name or 'the network itself'} ({type(module).__name__})"


def _with_noise(
    network: nn.Module,
    residuals: Residuals,
    noise: float,
    std_over: StdOver,
    stream: NoiseStream,
) -> nn.Module:
    """Return the network with noise at all residual mappings."""

    def injection() -> NoiseInjection:
        return ClonedNoise(noise, std_over=std_over, generator=stream)

    modules = dict(network.named_modules())
    by_module: dict[str, list[Residual]] = {}
    for residual in residuals.found:
        by_module.setdefault(residual.module, []).append(residual)
    for name, places in by_module.items():
        module = modules[name]
        if places[0].number is None:
            module.add_module(NOISE, injection())
            module.register_forward_hook(_noise_after)
            continue
        graph = _traced(module)
        nodes = _additions(graph)
        added = False
        for number in (place.number for place in places):
            assert number is not None
            node = nodes[number]
            own = _own_noise(module, node)
            if own is not None:  # one of ours: its noise is set
                own.noise, own.std_over, own.stream = noise, std_over, stream
                continue
            added = True
            target = f"{NOISE}_{number}"
            module.add_module(target, injection())
            with graph.inserting_after(node):
                after = graph.call_module(target)
            node.replace_all_uses_with(after)
            after.args = (node,)
        if added:
            network = _replaced(network, name, module, graph)
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
            return builder()
        for name, module in network.named_modules():
            own = [*module._parameters.values(), *module._buffers.values()]
            if not any(value is not None for value in own):
                continue
            reset = getattr(module, "reset_parameters", None)
            if not callable(reset):
                raise ValueError(
                    f"init='fresh' cannot draw new weights for {_place(name, module)}: it has no "
                    "reset_parameters; give builder=..., a function that returns the network with "
                    "fresh weights, or init='copy'"
                )
            reset()
    return network
