r"""A network that is not ours as attacks meet it: traced, folded, in one type of numbers.

torch.fx follows its ``forward`` once. If that is made of known operations alone, the network is the
same function whenever it is called, and BatchNorm after a convolution goes into its weights:

.. math:: \gamma \frac{w \otimes x - \mu}{\sqrt{v + \epsilon}} + \beta = w' \otimes x + b'

Up to the first noise all draws are the same, so that part is cut off and shared between them. The
copy is tried on a few images against the network itself; where the two differ, or the network
cannot be followed, it is called as it is, and the log says so.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from enresnet.models.frozen.call import FrozenCall
from enresnet.models.frozen.fold import is_listened_to
from enresnet.models.frozen.known_operations import unknown_in
from enresnet.models.interface import logits_of, wrong_logits
from enresnet.models.noise import NoiseInjection, noise_modules, without_noise

LOG = logging.getLogger("enresnet")
TIMES = 8  # that a network is asked whether it answers the same
CLOSE = 1e-3  # what its logits may change by, over their spread, when it is folded
SLACK = 10.0  # how much more they may change on other images
CLOSE_REDUCED = 0.05  # and when it is computed in bfloat16
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_said: set[str] = set()


def follow(network: nn.Module, few: Tensor) -> TracedNetwork | None:
    """Return a frozen network as it can be called faster; None where there is no such way.

    Args:
        network: In evaluation mode, without a parameter that wants a gradient.
        few: Images to try it on, as the network takes them.
    """
    if isinstance(network, NoiseInjection) or not any(True for _ in network.parameters()):
        return None
    try:
        traced = TracedNetwork(network, _trace(network))
        traced.check(few)
    except _UnsuitableError as error:
        _say(f"attacks call {type(network).__name__} as it is, which is slower: {error}")
        return None
    return traced


class _UnsuitableError(Exception):
    """A network that cannot be followed, and why."""


def _say(words: str) -> None:
    if words not in _said:
        _said.add(words)
        LOG.info(words)


class _Logits(nn.Module):
    """A network whose output is its logits, whatever holds them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = False

    def forward(self, images: Any) -> Any:
        """Return the logits; here they may stand for a tensor."""
        output = self.network(images)
        if isinstance(output, Tensor | fx.Proxy):
            return output
        if isinstance(output, Mapping):
            return output["logits"]
        return output[0] if isinstance(output, tuple) else output.logits


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, NoiseInjection) or super().is_leaf_module(m, module_qualified_name)


def _trace(network: nn.Module) -> fx.Graph:
    """Return the graph of the whole network."""
    for module in network.modules():
        if module.training:
            raise _UnsuitableError("it is in training mode")
        if is_listened_to(module) and not isinstance(module, fx.GraphModule):
            raise _UnsuitableError(f"{type(module).__name__} has hooks, or a forward of its own")
    graphs = []
    for _ in range(2):
        # A copy: a forward may keep what it is given, here no tensors. Its weights are the same.
        shared = {id(t): t for t in (*network.parameters(), *network.buffers())}
        try:
            copied = copy.deepcopy(network, shared)
            before = [_remembered(module) for module in copied.modules()]
            graphs.append(_Tracer().trace(_Logits(copied)))
        except Exception as error:  # anything may go wrong where a proxy stands for a tensor
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise _UnsuitableError(f"its forward cannot be traced ({reason})") from error
        for then, module in zip(before, copied.modules(), strict=True):
            if then != _remembered(module):
                raise _UnsuitableError(f"the forward of {type(module).__name__} changes the module")
    if str(graphs[0]) != str(graphs[1]):
        raise _UnsuitableError("its forward is not the same each time")
    graph = graphs[0]
    if unknown := unknown_in(graph, _Logits(network)):
        raise _UnsuitableError(f"its forward uses {unknown}")
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if not placeholders or any(node.users and not node.args for node in placeholders[1:]):
        raise _UnsuitableError("its forward takes more than images")
    return graph


def _remembered(module: nn.Module) -> dict[str, Any]:
    """Return what a forward may change in a module, as far as plain values tell."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, list | tuple | set | dict):
            found[name] = (type(value), len(value))
        else:
            simple = isinstance(value, int | float | str | None)
            found[name] = (type(value), value if simple else None)
    return found


@dataclass(frozen=True)
class _Parts:
    """A network's two parts: up to the first noise, and from there on."""

    before: fx.GraphModule
    after: fx.GraphModule
    states: int


class TracedNetwork(FrozenCall):
    """A network with its weights of the moment, folded when a type is first met."""

    def __init__(self, network: nn.Module, graph: fx.Graph) -> None:
        self.network, self._graph = network, graph
        self._wholes: dict[tuple[torch.dtype, torch.device], fx.GraphModule] = {}
        self._parts: dict[tuple[torch.dtype, torch.device], _Parts | None] = {}
        self._convolves = any(isinstance(m, nn.Conv2d) for m in network.modules())
        self._independent = False  # until it was tried
        self._bfloat16: bool | None = None
        self._few: Tensor | None = None

    @property
    def deterministic(self) -> bool:
        """Whether it answers twice the same: it is made of operations that do."""
        return all(place.noise == 0 for place in noise_modules(self.network))

    @property
    def independent(self) -> bool:
        """Whether no image's answer depends on another image, as was tried."""
        return self._independent and all(
            place.std_over == "example" for place in noise_modules(self.network)
        )

    def __call__(self, images: Tensor) -> Any:
        """Return the logits for images, as the network takes them."""
        place = self._place(images)
        if place is None:
            return logits_of(self.network(images))
        with torch.autocast(images.device.type, enabled=False):  # the types are chosen here
            return self._whole(place)(self._given(images, place))

    def before_noise(self, images: Tensor) -> list[Tensor] | None:
        """Return what every draw of the noise starts from; None where that cannot be shared."""
        place = self._place(images)
        parts = None if place is None else self._apart(place)
        if place is None or parts is None:
            return None
        with torch.autocast(images.device.type, enabled=False):
            return list(parts.before(self._given(images, place)))

    def after_noise(self, states: list[Tensor]) -> Tensor:
        """Return the logits for a fresh draw, from what :meth:`before_noise` gave; takes it."""
        place = (states[0].dtype, states[0].device)
        parts = self._apart(place)
        assert parts is not None  # before_noise took them apart
        own = [states.pop(0) for _ in range(parts.states)]
        with torch.autocast(place[1].type, enabled=False):
            logits: Tensor = parts.after(*own)
        return logits

    def holds_in_bfloat16(self) -> bool:
        """Return whether its answers are the same in bfloat16, but for rounding."""
        if self._bfloat16 is None:
            assert self._few is not None
            try:
                with torch.no_grad(), without_noise(self.network):
                    exact = self(self._few).float()
                    with torch.autocast(self._few.device.type, torch.bfloat16):
                        reduced = self(self._few).float()
                self._bfloat16 = _distance(exact, reduced) < CLOSE_REDUCED
            except RuntimeError:  # an operation that has no such type
                self._bfloat16 = False
            if not self._bfloat16:
                _say(
                    f"attacks compute {type(self.network).__name__} in float32: its answers differ "
                    "in bfloat16"
                )
        return self._bfloat16

    @torch.inference_mode(False)
    def check(self, few: Tensor) -> None:
        """Try it on a few images; raise where it is not the network."""
        self._few = few = few.detach().clone()
        if self._place(few) is None:
            raise _UnsuitableError("its parameters are not all of the images' type")
        with without_noise(self.network), torch.no_grad():
            try:
                first = logits_of(self.network(few.clone()))
            except Exception as error:  # a user's code; who calls it as it is names the error
                raise _UnsuitableError(f"it fails on the images ({error})") from error
            if wrong_logits(first, len(few)):
                raise _UnsuitableError("it does not return logits")
            pair = logits_of(self.network(few[:2].clone()))
            for _ in range(TIMES):
                if not torch.equal(logits_of(self.network(few[:2].clone())), pair):
                    raise _UnsuitableError("it does not answer the same each time")
            try:
                own = self(few.clone())
                if own.shape != first.shape or not _distance(first, own) < CLOSE:
                    raise _UnsuitableError("it answers otherwise once it is traced")
                self._independent = self._is_independent(few)
            except RuntimeError as error:
                raise _UnsuitableError(f"it fails once it is traced ({error})") from error
        self.slack = SLACK * float((own - first).abs().max())

    def _is_independent(self, few: Tensor) -> bool:
        """Return whether no image's answer depends on another image."""
        with torch.enable_grad(), without_noise(self.network):
            leaf = few[:3].clone().requires_grad_()
            logits = self(leaf)
            for row in range(len(leaf)):
                (gradient,) = torch.autograd.grad(logits[row].sum(), leaf, retain_graph=True)
                gradient[row] = 0
                if gradient.any():
                    return False
        return True

    def _place(self, images: Tensor) -> tuple[torch.dtype, torch.device] | None:
        """Return the type and device to compute in; None where torch is to say what is wrong."""
        dtype = images.dtype
        if any(parameter.dtype != dtype for parameter in self.network.parameters()):
            return None
        if torch.is_autocast_enabled(images.device.type):
            dtype = torch.get_autocast_dtype(images.device.type)
        return (dtype, images.device) if dtype in _TYPES else None

    def _given(self, images: Tensor, place: tuple[torch.dtype, torch.device]) -> Tensor:
        images = images.to(place[0])
        if self._convolves and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        return images

    def _whole(self, place: tuple[torch.dtype, torch.device]) -> fx.GraphModule:
        if place not in self._wholes:
            self._wholes[place] = _folded(_Logits(self.network), self._graph, place[0])
        return self._wholes[place]

    def _apart(self, place: tuple[torch.dtype, torch.device]) -> _Parts | None:
        if place not in self._parts:
            whole = self._whole(place)
            parts = _taken_apart(whole)
            if parts is not None and not self._fits(parts, whole, place):
                parts = None
            self._parts[place] = parts
        return self._parts[place]

    def _fits(
        self, parts: _Parts, whole: fx.GraphModule, place: tuple[torch.dtype, torch.device]
    ) -> bool:
        """Return whether the parts are the whole, and draws can go through the second together."""
        assert self._few is not None
        try:
            with torch.enable_grad(), without_noise(self.network):
                given = self._given(self._few, place)
                states = parts.before(given)
                if not all(isinstance(s, Tensor) and s.is_floating_point() for s in states):
                    return False
                if any(len(state) != len(given) for state in states):
                    return False
                starts = [state.detach().requires_grad_() for state in states]
                # Clones: without noise the next operation may be one in place.
                alone = parts.after(*(start.clone() for start in starts))
                both = parts.after(*(torch.cat([start] * 2) for start in starts))
                torch.autograd.grad(both.sum(), starts)
                same = whole(given)
                return _distance(torch.cat([same, alone]), both) < CLOSE_REDUCED
        except (RuntimeError, IndexError, TypeError):
            return False


def _distance(one: Tensor, two: Tensor) -> float:
    """Return by how much answers differ, over how much they differ between classes."""
    one, two = one.detach(), two.detach()
    spread = (one - one.mean(dim=1, keepdim=True)).abs().mean().clamp_min(1e-12)
    return float((one - two).abs().mean() / spread)


@torch.no_grad()
def _folded(network: nn.Module, graph: fx.Graph, dtype: torch.dtype) -> fx.GraphModule:
    """Return the network as one graph: BatchNorm folded away, in one type, channels last.

    Noise modules are the network's own, with its stream; all else is copied. In reduced precision
    the last linear map stays in float32: few bits tell logits apart badly.
    """
    graph = copy.deepcopy(graph)
    modules = dict(network.named_modules())
    new: dict[str, Any] = {}
    uses: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            uses[str(node.target)] = uses.get(str(node.target), 0) + 1
    for node in list(graph.nodes):
        if node.op != "call_module":
            continue
        target = str(node.target)
        module = modules[target]
        if isinstance(module, NoiseInjection):
            new[target] = module
            continue
        before = node.args[0] if node.args else None
        if (
            type(module) in (nn.BatchNorm2d, nn.SyncBatchNorm)
            and isinstance(before, fx.Node)
            and before.op == "call_module"
            and type(modules[str(before.target)]) is nn.Conv2d
            and len(before.users) == 1
            and uses[str(before.target)] == 1
            and module.running_mean is not None
        ):
            convolution: Any = new[str(before.target)]
            new[str(before.target)] = fuse_conv_bn_eval(convolution, module)
            node.replace_all_uses_with(before)
            graph.erase_node(node)
            continue
        if target not in new:
            new[target] = copy.deepcopy(module)
    last = _last_linear(graph, modules) if dtype != torch.float32 else None
    for target, module in new.items():
        if not isinstance(module, NoiseInjection):
            module.to(torch.float32 if last is not None and target == last.target else dtype)
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            module.requires_grad_(False)
    if last is not None:
        with graph.inserting_before(last):
            wide = graph.call_method("float", (last.args[0],))
        last.args = (wide, *last.args[1:])
    for node in graph.nodes:
        if node.op == "get_attr":
            value = _attribute(network, str(node.target)).detach().clone()
            new[str(node.target)] = value.to(dtype) if value.is_floating_point() else value
    return fx.GraphModule(new, graph).eval()


def _last_linear(graph: fx.Graph, modules: dict[str, nn.Module]) -> fx.Node | None:
    """Return the linear map whose result is the network's, if it is used nowhere else."""
    output = next(node for node in graph.nodes if node.op == "output")
    last = output.args[0]
    if not isinstance(last, fx.Node) or last.op != "call_module":
        return None
    if type(modules[str(last.target)]) is not nn.Linear:
        return None
    same = [node for node in graph.nodes if node.target == last.target]
    return last if len(same) == 1 else None


def _attribute(root: nn.Module, target: str) -> Tensor:
    parent, _, name = target.rpartition(".")
    value: Tensor = getattr(root.get_submodule(parent), name)
    return value


def _taken_apart(whole: fx.GraphModule) -> _Parts | None:
    """Return the two parts of a network, cut at its first noise; None where it has none."""
    noisy: set[fx.Node] = set()
    seen: set[fx.Node] = set()  # what depends on the images; all else is made of weights alone
    for node in whole.graph.nodes:
        if node.op == "placeholder" or any(source in seen for source in node.all_input_nodes):
            seen.add(node)
        own = node.op == "call_module" and isinstance(
            whole.get_submodule(str(node.target)), NoiseInjection
        )
        if own or any(source in noisy for source in node.all_input_nodes):
            noisy.add(node)
    nodes = list(whole.graph.nodes)
    output = nodes[-1]
    if output not in noisy or not isinstance(output.args[0], fx.Node):
        return None
    cut = [
        node
        for node in nodes
        if node in seen and node not in noisy and any(user in noisy for user in node.users)
    ]
    before, after = fx.Graph(), fx.Graph()
    first: dict[fx.Node, fx.Node] = {}
    second = {node: after.placeholder(f"state_{number}") for number, node in enumerate(cut)}
    for node in nodes:
        if node in noisy:
            if node is not output:
                second[node] = after.node_copy(node, lambda n: second[n])
        else:
            first[node] = before.node_copy(node, lambda n: first[n])
            if node not in seen:
                second[node] = after.node_copy(node, lambda n: second[n])
    before.output(tuple(first[node] for node in cut))
    after.output(second[output.args[0]])
    made = [fx.GraphModule(whole, graph).eval() for graph in (before, after)]
    for module in made:
        module.graph.eliminate_dead_code()
        module.recompile()
    return _Parts(made[0], made[1], len(cut))
