"""The fast path for a network that is not ours: traced, folded, split at its first noise.

The graph is traced once (trace_graph.py), its BatchNorm folded away (fold_graph.py), convolutions
fused with the ReLU after them (fuse_graph.py), and the part before the first noise shared between
draws (split_graph.py). The copy and its gradient are compared with those of the network itself on a
few images. Where they differ, or the network cannot be traced, attacks call it as it is, and the
log says why. Later attacks on the same network give the copy the weights of the moment, see whether
its graph is still the same, and compare answers again; gradients too where weights have changed. In
training in reduced precision, where attacks follow step by step, only answers are compared, in that
precision; now and then all is.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from enresnet.models.batch_mates import images_meet
from enresnet.models.frozen.call import FrozenCall
from enresnet.models.frozen.comparison import distance, gradient_at_images, versions, weights_digest
from enresnet.models.frozen.fold_graph import FoldedGraph
from enresnet.models.frozen.split_graph import SplitGraph, split_at_noise
from enresnet.models.frozen.structure import Structure, structure_of
from enresnet.models.frozen.trace_graph import LogitsOnly, UnsuitableError, is_graph_of, trace
from enresnet.models.interface import logits_of, wrong_logits
from enresnet.models.modes_in_forward import switched_mode
from enresnet.models.noise import NoiseInjection, noise_modules, without_noise
from enresnet.models.side_effects import StateBefore

LOG = logging.getLogger("enresnet")
TIMES = 8  # how often a network is called to see whether its answer is always the same
CLOSE = 1e-3  # by how much folding may change the logits, relative to their spread
CLOSE_GRADIENT = 5e-3  # the same of the gradient at the images, in norm; rounding flips some ReLUs
KINK = 0.05  # the same where one flipped ReLU counts for much; beside it, gradients must be close
NEARBY = 1e-3  # how far beside it
CLOSE_REDUCED = 0.05  # the same for bfloat16
ALIKE_REDUCED = 0.95  # the least cosine between gradients at an image in bfloat16 and in float32
RECHECKED = 16  # in training, after how many steps answers are compared in full again
SLACK = 10.0  # how many times more the logits may change on other images
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_said: set[str] = set()  # what the log has said: each sentence once

Place = tuple[torch.dtype, torch.device]
"""The type of numbers to compute in, and the device."""


def follow(network: nn.Module, few: Tensor) -> TracedNetwork | None:
    """Return a faster way to call a frozen network; None where there is none.

    Args:
        network: In evaluation mode, without a parameter that wants a gradient.
        few: Images to try it on, as the network takes them.
    """
    if isinstance(network, NoiseInjection) or not any(True for _ in network.parameters()):
        return None
    structure = structure_of(network, few)
    known = _known.pop(network, None)
    same = known is not None and known.structure == structure
    traced = _followed_again(network, known, few) if known is not None and same else None
    if traced is None:
        try:
            known = _Known(structure, trace(network), versions=versions(network))
            traced = TracedNetwork(network, known)
            traced.check(few)
        except UnsuitableError as error:
            _say(f"attacks call {type(network).__name__} as it is, which is slower: {error}")
            return None
    assert known is not None
    _known[network] = known
    return traced


def _followed_again(network: nn.Module, known: _Known, few: Tensor) -> TracedNetwork | None:
    """Return a network with its weights of the moment; None where its graph holds no longer."""
    known.uses += 1
    traced = TracedNetwork(network, known)
    before, known.versions = known.versions, versions(network)
    in_training = torch.is_autocast_enabled(few.device.type) and before != known.versions
    try:
        if in_training and known.uses % RECHECKED:
            traced.check_reduced(few)
        elif not is_graph_of(known.graph, network):
            return None
        else:
            traced.check_answers(few)
            traced.check_weights(few)
    except UnsuitableError:
        return None
    return traced


@dataclass
class _Known:
    """What was found out about a network, whatever weights it has."""

    structure: Structure
    graph: fx.Graph
    separable: bool = False  # no image's answer depends on another: False until it was tried
    checked: str = ""  # the digest of the weights when that was tried
    versions: tuple[int, ...] = ()  # the counters of changes at the last use
    slack: float = 0.0  # when answers were last compared
    uses: int = 0
    reduced: dict[torch.dtype, bool] = field(default_factory=dict)  # types in which answers hold
    folds: dict[Place, FoldedGraph] = field(default_factory=dict)
    filled_by: dict[Place, object] = field(default_factory=dict)  # whose weights the folds have
    parts: dict[Place, SplitGraph | None] = field(default_factory=dict)


_known: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()


def _say(words: str) -> None:
    if words not in _said:
        _said.add(words)
        LOG.info(words)


class TracedNetwork(FrozenCall):
    """A network with its weights of the moment, folded when a type is first met."""

    def __init__(self, network: nn.Module, known: _Known) -> None:
        self.network, self._known, self.slack = network, known, known.slack
        self._use = object()  # this use of the network, of several that may be under way
        self._convolves = any(isinstance(m, nn.Conv2d) for m in network.modules())
        self._reduced: dict[torch.dtype, bool] = {}
        self._few: Tensor | None = None
        self._checked = False  # its gradient was compared, and images were tried, with its weights

    @property
    def deterministic(self) -> bool:
        """Whether it answers twice the same: it is made of operations that do."""
        return all(place.noise == 0 for place in noise_modules(self.network))

    @property
    def independent(self) -> bool:
        """Whether no image's answer depends on another image, as was tried."""
        return self.separable and all(
            place.std_over == "example" for place in noise_modules(self.network)
        )

    @property
    def separable(self) -> bool:
        """Whether no image's answer depends on another image but by the scale of its noise."""
        return self._checked and self._known.separable

    def __call__(self, images: Tensor) -> Any:
        """Return the logits for images, as the network takes them."""
        place = self._place(images)
        return logits_of(self.network(images)) if place is None else self._answer(images, place)

    def _answer(self, images: Tensor, place: Place) -> Any:
        with torch.autocast(images.device.type, enabled=False):  # the types are chosen here
            # Not called: a graph module prints a traceback of errors that are caught here.
            return self._whole(place).forward(self._given(images, place))

    def before_noise(self, images: Tensor) -> list[Tensor] | None:
        """Return what every draw of the noise starts from; None where that cannot be shared."""
        place = self._place(images)
        parts = None if place is None else self._split(place)
        if place is None or parts is None:
            return None
        with torch.autocast(images.device.type, enabled=False):
            return list(parts.before.forward(self._given(images, place)))

    def after_noise(self, states: list[Tensor]) -> Tensor:
        """Return the logits for a fresh draw, from what :meth:`before_noise` gave; takes it."""
        place = (states[0].dtype, states[0].device)
        parts = self._split(place)
        assert parts is not None  # before_noise split it
        own = [states.pop(0) for _ in range(parts.states)]
        if parts.overwrites:  # a leaf that wants a gradient may not be written over
            own = [state.clone() for state in own]
        with torch.autocast(place[1].type, enabled=False):
            logits: Tensor = parts.after.forward(*own)
        return logits

    def holds_in_bfloat16(self) -> bool:
        """Return whether its answers and gradients are the same in bfloat16, but for rounding."""
        return self._holds_in(torch.bfloat16)

    def _holds_in(self, dtype: torch.dtype) -> bool:
        if dtype not in self._reduced:
            try:
                holds = self._compared_in(dtype)
            except Exception:  # an operation that has no such type, or two that do not fit
                holds = False
            self._reduced[dtype] = self._known.reduced[dtype] = holds
            if not holds:
                name = str(dtype).removeprefix("torch.")
                _say(
                    f"attacks do not compute a copy of {type(self.network).__name__} in {name}: "
                    "its answers or gradients differ"
                )
        return self._reduced[dtype]

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _compared_in(self, dtype: torch.dtype) -> bool:
        few = self._few
        assert few is not None
        with without_noise(self.network):
            exact, slope = self._answer_and_gradient(few, (few.dtype, few.device))
            reduced, other = self._answer_and_gradient(few, (dtype, few.device))
        if not distance(exact.float(), reduced.float()) < CLOSE_REDUCED:
            return False
        alike = torch.cosine_similarity(slope.flatten(1).float(), other.flatten(1).float())
        there = slope.flatten(1).any(dim=1)
        return not there.any() or float(alike[there].mean()) >= ALIKE_REDUCED

    def _answer_and_gradient(self, few: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        leaf = few.clone().requires_grad_()
        logits = self._answer(leaf, place)
        return logits.detach(), gradient_at_images(logits, leaf)

    @torch.inference_mode(False)
    def check(self, few: Tensor) -> None:
        """Try it on a few images; raise where it is not the network, or not always the same."""
        self.check_answers(few)
        assert self._few is not None
        few = self._few
        whole = torch.autocast(few.device.type, enabled=False)
        with whole, without_noise(self.network), torch.no_grad():
            pair = logits_of(self.network(few[:2].clone()))
            before = StateBefore(self.network)
            for _ in range(TIMES):
                if not torch.equal(logits_of(self.network(few[:2].clone())), pair):
                    raise UnsuitableError("it does not answer the same each time")
            if change := before.change() or switched_mode(self.network, few[:2]):
                raise UnsuitableError(change)
        self.check_gradient(few)

    def check_weights(self, few: Tensor) -> None:
        """Compare its gradient with the network's, if that was not done with the same weights."""
        self._checked = weights_digest(self.network) == self._known.checked
        if not self._checked:
            self.check_gradient(few)

    @torch.inference_mode(False)
    def check_gradient(self, few: Tensor) -> None:
        """Compare its gradient with the network's, and see whether images meet in it.

        Both may change with the weights: images that meet by a share of 0 do not.
        """
        few = self.take(few)
        with torch.autocast(few.device.type, enabled=False), without_noise(self.network):
            try:
                if not self._has_the_gradient(few):
                    raise UnsuitableError("its gradient differs once it is traced")
                self._known.separable = not images_meet(self, few)
                self._known.checked, self._checked = weights_digest(self.network), True
            except UnsuitableError:
                raise
            except Exception as error:
                raise UnsuitableError(f"it fails once it is traced ({error})") from error

    @torch.inference_mode(False)
    def check_answers(self, few: Tensor) -> None:
        """Compare its answers with the network's, with the weights of the moment."""
        few = self.take(few)
        close = CLOSE if few.dtype == torch.float32 else CLOSE_REDUCED
        # In training autocast is on, where rounding would hide whether the two are the same.
        whole = torch.autocast(few.device.type, enabled=False)
        with whole, without_noise(self.network), torch.no_grad():
            try:
                first = logits_of(self.network(few.clone()))
            except Exception as error:  # a user's code; who calls it as it is names the error
                raise UnsuitableError(f"it fails on the images ({error})") from error
            if wrong_logits(first, len(few)):
                raise UnsuitableError("it does not return logits")
            try:
                own = self(few.clone())
                alike = own.shape == first.shape and distance(first, own) < close
            except Exception as error:  # whatever folding meets, the network itself can be called
                raise UnsuitableError(f"it fails once it is traced ({error})") from error
            if not alike:
                raise UnsuitableError("it answers otherwise once it is traced")
        self.slack = self._known.slack = SLACK * float((own - first).abs().max())

    @torch.inference_mode(False)
    def check_reduced(self, few: Tensor) -> None:
        """Compare its answers with the network's under the autocast that is on."""
        few = self.take(few)
        dtype = torch.get_autocast_dtype(few.device.type)
        known = self._known.reduced
        if not (known[dtype] if dtype in known else self._holds_in(dtype)):
            self._reduced[dtype] = False  # it is called as it is
            return
        with without_noise(self.network), torch.no_grad():
            try:
                first = logits_of(self.network(few.clone())).float()
                own = self._answer(few.clone(), (dtype, few.device)).float()
            except Exception as error:
                raise UnsuitableError(f"it fails once it is traced ({error})") from error
            if own.shape != first.shape or not distance(first, own) < 2 * CLOSE_REDUCED:
                raise UnsuitableError("it answers otherwise once it is traced")
        self._reduced[dtype] = True

    def take(self, few: Tensor) -> Tensor:
        """Take the images to try it on; return them."""
        self._few = few.detach().clone()
        if few.dtype not in _TYPES:
            name = str(few.dtype).removeprefix("torch.")
            raise UnsuitableError(f"there is no faster way to compute in {name}")
        if self._place(few) is None:
            raise UnsuitableError("its parameters are not all of the images' type")
        return self._few

    @torch.enable_grad()
    def _has_the_gradient(self, few: Tensor) -> bool:
        """Return whether its gradient at the images is that of the network, but for rounding.

        Where deep features are few, rounding that flips one ReLU changes the gradient by a percent.
        That is so at one point; what is computed otherwise is so beside it too.
        """
        if any(parameter.is_inference() for parameter in self.network.parameters()):
            return True  # the network itself has none
        if few.dtype != torch.float32:
            return self._gradient_within(CLOSE_REDUCED, few)
        if self._gradient_within(CLOSE_GRADIENT, few):
            return True
        beside = (few + NEARBY, few - NEARBY)
        return self._gradient_within(KINK, few) and all(
            self._gradient_within(CLOSE_GRADIENT, other) for other in beside
        )

    def _gradient_within(self, close: float, few: Tensor) -> bool:
        found = []
        for call in (self.network, self):
            leaf = few.clone().requires_grad_()
            found.append(gradient_at_images(logits_of(call(leaf)), leaf).float())
        one, two = found
        return bool((one - two).norm() <= close * one.norm())

    def _place(self, images: Tensor) -> Place | None:
        """Return the type and device to compute in; None where torch is to say what is wrong."""
        dtype = images.dtype
        if any(parameter.dtype != dtype for parameter in self.network.parameters()):
            return None
        if torch.is_autocast_enabled(images.device.type):
            reduced = torch.get_autocast_dtype(images.device.type)
            if reduced != dtype and not self._holds_in(reduced):
                return None
            dtype = reduced
        return (dtype, images.device) if dtype in _TYPES else None

    def _given(self, images: Tensor, place: Place) -> Tensor:
        images = images.to(place[0])
        if self._convolves and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        return images

    def _whole(self, place: Place) -> fx.GraphModule:
        folds, filled_by = self._known.folds, self._known.filled_by
        if filled_by.get(place) is not self._use:
            named = LogitsOnly(self.network)
            if place in folds:
                folds[place].fill(named)
            else:
                folds[place] = FoldedGraph(named, self._known.graph, *place)
            filled_by[place] = self._use
        return folds[place].whole

    def _split(self, place: Place) -> SplitGraph | None:
        known = self._known.parts
        whole = self._whole(place)
        if place not in known:
            parts = split_at_noise(whole)
            fits = parts is not None and self._fits(parts, whole, place)
            known[place] = parts if fits else None
        return known[place]

    def _fits(self, parts: SplitGraph, whole: fx.GraphModule, place: Place) -> bool:
        """Return whether the parts make up the whole, and the second takes draws together."""
        assert self._few is not None
        try:
            with torch.enable_grad(), without_noise(self.network):
                given = self._given(self._few, place)
                states = parts.before.forward(given)
                if not all(isinstance(s, Tensor) and s.is_floating_point() for s in states):
                    return False
                if any(len(state) != len(given) for state in states):
                    return False
                starts = [state.detach().requires_grad_() for state in states]
                # Clones: without noise the next operation may be one in place.
                alone = parts.after.forward(*(start.clone() for start in starts))
                both = parts.after.forward(*(torch.cat([start] * 2) for start in starts))
                torch.autograd.grad(both.sum(), starts)
                same = whole.forward(given)
                return distance(torch.cat([same, alone]), both) < CLOSE_REDUCED
        except Exception:  # where the parts fail, the whole is there
            return False
