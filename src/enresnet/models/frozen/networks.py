r"""Networks as attacks call them: folded, and split at their first noise.

Up to the first noise all draws are the same, so that several of them share that part:

.. math:: f(x; \text{noise}) = g(h(x), \text{noise})

with h ``before_noise`` and g ``after_noise``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from enresnet import native
from enresnet.models.ensemble import Ensemble
from enresnet.models.external import ExternalNetwork
from enresnet.models.frozen.call import FrozenCall
from enresnet.models.frozen.fold import FoldedNetwork, can_be_folded, is_listened_to
from enresnet.models.frozen.fused_cpu import FusedNetwork, works_for
from enresnet.models.frozen.traced import follow
from enresnet.models.interface import Model, module_of
from enresnet.models.noise import noise_modules
from enresnet.models.normalized import Normalized
from enresnet.models.recompute import lean_call
from enresnet.models.resnet import ResNet


def fast_call(model: Model, few: Tensor | None = None) -> FrozenCall | None:
    """Return a faster way to call a frozen model; None where there is none.

    Of our own networks only those that nobody listens to and nobody changed have one: a subclass, a
    hook or a method of its own may do anything. Others are followed by torch.fx, if ``few`` images
    are given to try them on.
    """
    own = isinstance(model, types.MethodType) and model.__name__ in ("forward", "__call__")
    module = module_of(model) if own or isinstance(model, nn.Module) else None
    return None if module is None or is_listened_to(module) else _fast_module(module, few)


def _fast_module(model: nn.Module, few: Tensor | None) -> FrozenCall | None:
    if type(model) is ResNet:
        return FrozenResNet(model) if can_be_folded(model) else None
    if type(model) is Ensemble:
        members = [fast_call(member, few) or member for member in model.members]
        return FrozenEnsemble(model, members)
    if type(model) is Normalized or type(model) is ExternalNetwork:
        given = None if few is None else model.normalised(few)
        network = model.model if isinstance(model, Normalized) else model.network
        inner = fast_call(network, given)
        return None if inner is None else FrozenNormalized(model, inner)
    return None if few is None else follow(model, few)


class FrozenResNet(FrozenCall):
    """A residual network with its weights of the moment, folded when a type is first met."""

    def __init__(self, network: ResNet) -> None:
        self.network = network
        self._folds: dict[tuple[torch.dtype, torch.device], _Fold] = {}

    def __call__(self, images: Tensor) -> Tensor:
        """Return logits N x num_classes for images N x in_channels x H x W in [0, 1]."""
        x = self.network.normalised(images)
        fold = self._fold_for(x)
        if fold is None:
            logits: Tensor = self.network(images)
            return logits
        return fold.after_noise(fold.before_noise(x))

    @property
    def deterministic(self) -> bool:
        """Whether its noise is off."""
        return all(place.noise == 0 for place in noise_modules(self.network))

    @property
    def independent(self) -> bool:
        """Whether noise is scaled by each example alone."""
        return all(place.std_over == "example" for place in noise_modules(self.network))

    @property
    def separable(self) -> bool:
        """True, since BatchNorm uses the statistics that it has."""
        return True

    def holds_in_bfloat16(self) -> bool:
        """Return True: benchmarks/precision.py prints the difference."""
        return True

    def before_noise(self, images: Tensor) -> list[Tensor] | None:
        """Return what every draw of the noise starts from; None where that cannot be shared."""
        x = self.network.normalised(images)
        fold = self._fold_for(x)
        return None if fold is None else [fold.before_noise(x)]

    def after_noise(self, states: list[Tensor]) -> Tensor:
        """Return the logits for a fresh draw, from what :meth:`before_noise` gave; takes it."""
        state = states.pop(0)
        return self._folds[state.dtype, state.device].after_noise(state)

    def _fold_for(self, x: Tensor) -> _Fold | None:
        """Return the folded network in the type that ``x`` is to be computed in, if it may be."""
        if native.is_watched(x):
            return None
        dtype = x.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
        elif any(parameter.dtype != dtype for parameter in self.network.parameters()):
            return None  # torch says what is wrong with that
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return None
        place = (dtype, x.device)
        if place not in self._folds:
            self._folds[place] = _Fold(self.network, dtype, x.device)
        return self._folds[place]


class _Fold:
    """A network folded for one type and device, and the fused code for it where there is some."""

    def __init__(self, network: ResNet, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._folded = FoldedNetwork(network, dtype, device)
        self._fused = FusedNetwork(self._folded)

    def before_noise(self, x: Tensor) -> Tensor:
        """Return the sum that the first noise is added to: the same for every draw."""
        x = x.to(self._dtype)
        if self._device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self._device.type, enabled=False):  # the types are chosen here
            return self._best_for(x).before_noise(x)

    def after_noise(self, z: Tensor) -> Tensor:
        """Return the logits, with noise from the first on."""
        with torch.autocast(self._device.type, enabled=False):
            return self._best_for(z).after_noise(z)

    def _best_for(self, x: Tensor) -> FoldedNetwork | FusedNetwork:
        return self._fused if works_for(self._folded, x) else self._folded


class FrozenEnsemble(FrozenCall):
    """The weighted mean of members, each called in its fastest way."""

    def __init__(self, ensemble: Ensemble, members: Sequence[Callable[[Tensor], Any]]) -> None:
        self.ensemble, self.members = ensemble, list(members)
        # Weights sum to 1: the average is no further from the truth than its members.
        self.slack = max((m.slack for m in self._seen), default=0.0)

    @property
    def _seen(self) -> list[FrozenCall]:
        return [member for member in self.members if isinstance(member, FrozenCall)]

    @property
    def deterministic(self) -> bool:
        """Whether all members are known to answer twice the same."""
        seen = self._seen
        return len(seen) == len(self.members) and all(member.deterministic for member in seen)

    @property
    def independent(self) -> bool:
        """Whether all members are known to treat each image alone, and there is room for more.

        One that recomputes does so for want of memory.
        """
        seen = self._seen
        return (
            not self.ensemble.recompute
            and len(seen) == len(self.members)
            and all(member.independent for member in seen)
        )

    @property
    def separable(self) -> bool:
        """Whether images meet in no member."""
        seen = self._seen
        return len(seen) == len(self.members) and all(member.separable for member in seen)

    def holds_in_bfloat16(self) -> bool:
        """Return whether it does for all members."""
        seen = self._seen
        return len(seen) == len(self.members) and all(m.holds_in_bfloat16() for m in seen)

    def __call__(self, images: Tensor) -> Tensor:
        """Return logits (or log-probabilities) N x classes, averaged over members and draws."""
        recompute = self.ensemble.recompute and torch.is_grad_enabled()
        runs = [
            # An ensemble as a member keeps nothing but logits itself.
            lean_call(module, images, call=call)
            if recompute and not isinstance(module, Ensemble)
            else call(images)
            for _ in range(self.ensemble.draws)
            for module, call in zip(self.ensemble.members, self.members, strict=True)
        ]
        return self.ensemble.averaged(torch.stack(runs))

    def before_noise(self, images: Tensor) -> list[Tensor] | None:
        """Return what every draw of the noise starts from; None where that cannot be shared."""
        if self.ensemble.recompute or self.ensemble.draws > 1:
            return None
        states: list[Tensor] = []
        for member in self.members:
            if not isinstance(member, FrozenCall):
                return None
            own = member.before_noise(images)
            if own is None:
                return None
            states += own
        return states

    def after_noise(self, states: list[Tensor]) -> Tensor:
        """Return the prediction for a fresh draw, from what :meth:`before_noise` gave; takes it."""
        runs = [member.after_noise(states) for member in self._seen]
        return self.ensemble.averaged(torch.stack(runs))


class FrozenNormalized(FrozenCall):
    """A frozen network behind the normalisation of its images."""

    def __init__(self, outer: Normalized | ExternalNetwork, call: FrozenCall) -> None:
        self._outer, self._call, self.slack = outer, call, call.slack

    @property
    def deterministic(self) -> bool:
        """Whether the network inside is known to answer twice the same."""
        return self._call.deterministic

    @property
    def independent(self) -> bool:
        """Whether the network inside is known to treat each image alone."""
        return self._call.independent

    @property
    def separable(self) -> bool:
        """Whether images do not meet in the network inside."""
        return self._call.separable

    def holds_in_bfloat16(self) -> bool:
        """Return whether the network inside does."""
        return self._call.holds_in_bfloat16()

    def __call__(self, images: Tensor) -> Any:
        """Return the network's logits for images N x C x H x W in [0, 1]."""
        return self._call(self._outer.normalised(images))

    def before_noise(self, images: Tensor) -> list[Tensor] | None:
        """Return what every draw of the noise starts from; None where that cannot be shared."""
        return self._call.before_noise(self._outer.normalised(images))

    def after_noise(self, states: list[Tensor]) -> Tensor:
        """Return the logits for a fresh draw, from what :meth:`before_noise` gave; takes it."""
        return self._call.after_noise(states)
