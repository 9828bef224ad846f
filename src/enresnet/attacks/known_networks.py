"""What is known of a network before it is asked: of ours, and of those that torch.fx can follow."""

from __future__ import annotations

from torch import nn

from enresnet.models import Ensemble, ResNet
from enresnet.models.frozen import FrozenCall
from enresnet.models.frozen.fold import is_as_made, is_listened_to
from enresnet.models.interface import Model
from enresnet.models.noise import noise_modules


def our_network(model: Model) -> ResNet | Ensemble | None:
    """Return the network that a model is, if it is one of ours, as we made it.

    A subclass, a layer of another kind, a method of its own or a hook may do anything, so those are
    other people's models.
    """
    owner = getattr(model, "__self__", model)
    plain = owner is model or getattr(model, "__name__", "") in ("forward", "__call__")
    if not plain or not isinstance(owner, ResNet | Ensemble):
        return None
    return owner if _is_ours(owner) else None


def _is_ours(module: nn.Module) -> bool:
    if type(module) is Ensemble:
        return not is_listened_to(module) and all(_is_ours(member) for member in module.members)
    return type(module) is ResNet and is_as_made(module)


def is_batch_independent(model: Model, call: object = None) -> bool:
    """Return whether a model is known to treat each image of a batch alone.

    And has room for more of them: one that recomputes does so for want of memory. ``call`` is the
    way to call it while it is frozen.
    """
    if isinstance(call, FrozenCall) and call.independent:
        return True
    network = our_network(model)
    if network is None or any(part.training for part in network.modules()):  # BatchNorm joins them
        return False
    if any(isinstance(part, Ensemble) and part.recompute for part in network.modules()):
        return False
    return all(place.std_over == "example" for place in noise_modules(network))


def is_separable(model: Model, call: object = None) -> bool | None:
    """Return whether images of a batch meet in nothing but the scale of their noise.

    None where that is not known; ``call`` as above.
    """
    network = our_network(model)
    if network is not None and not any(part.training for part in network.modules()):
        return True
    return True if isinstance(call, FrozenCall) and call.separable else None


def is_deterministic(model: Model, call: object = None) -> bool:
    """Return whether a model is known to answer twice the same; ``call`` as above."""
    if isinstance(call, FrozenCall) and call.deterministic:
        return True
    network = our_network(model)
    if network is None or any(part.training for part in network.modules()):
        return False
    return all(place.noise == 0 for place in noise_modules(network))
