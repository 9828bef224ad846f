"""The fast path of attacks: a network frozen, its BatchNorm folded away, its CPU code fused.

It is entered explicitly, and only there is a network anything but its ``forward``::

    with frozen(model) as call:
        logits = call(images)
"""

from enresnet.models.frozen.call import FrozenCall as FrozenCall
from enresnet.models.frozen.freeze import ThreadsError as ThreadsError
from enresnet.models.frozen.freeze import frozen as frozen
from enresnet.models.frozen.networks import FrozenEnsemble as FrozenEnsemble
from enresnet.models.frozen.networks import FrozenResNet as FrozenResNet

__all__ = ["FrozenCall", "FrozenEnsemble", "FrozenResNet", "ThreadsError", "frozen"]
