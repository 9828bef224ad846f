"""Whether a model answers twice the same, and how many draws its gradient therefore needs.

Of our own networks it is known, and of those that torch.fx can follow and that draw nothing. Others
are asked: twice on some images and on images near them, since noise may show only where no clean
image is, and many times on a few, since a call's noise may be the same for all its images (one of
several networks answers). One that draws random numbers, or changes what it holds, is not taken for
deterministic even if all its answers were the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from enresnet.attacks.failures import naming_model
from enresnet.attacks.known_networks import is_deterministic, our_network
from enresnet.models.frozen import frozen
from enresnet.models.interface import Model, device_of, wrong_logits
from enresnet.models.side_effects import StateBefore

LOG = logging.getLogger("enresnet")
EOT = 5  # the paper's, for models with noise
LOOK = 64  # images that a model is asked about
NEAR = 8 / 255  # and how far from them others are looked at
FEW = 8  # images that a network which is not ours is tried on before it is folded
ASKED = (4, 64)  # few images, many times: noise may be the same for all images of a call


def usual_eot(model: Model, images: Tensor) -> int:
    """Return how many draws a gradient needs: 1 for a model that always answers the same."""
    return 1 if looks_deterministic(model, images) else EOT


@torch.no_grad()
def looks_deterministic(model: Model, images: Tensor) -> bool:
    """Return whether a model answers the same about these images, as far as can be seen."""
    device = device_of(model, default=images.device)
    few = images.detach()[:FEW].to(device) if len(images) else None
    with frozen(model, few=few) as call:
        if is_deterministic(model, call):
            return True
        if our_network(model) is not None or len(images) == 0:
            return False
    with frozen(model) as call:  # a folded network answers as itself but for rounding
        chosen = torch.linspace(0, len(images) - 1, min(LOOK, len(images))).long()
        few = images.detach()[chosen.to(images.device)]
        change = torch.rand(few.shape, generator=torch.Generator().manual_seed(0)).to(few) - 0.5
        near = (few + 2 * NEAR * change).clamp(0, 1)
        asked, times = ASKED
        return (
            _answers_alike(model, call, few, 2)
            and _answers_alike(model, call, near, 2)
            and _answers_alike(model, call, few[:asked], times)
        )


def _answers_alike(model: Model, call: Callable[[Tensor], Any], images: Tensor, times: int) -> bool:
    images = images.to(device_of(model, default=images.device))
    first: object = None
    before: StateBefore | None = None
    for number in range(times):
        with naming_model(model, images):
            answer: object = call(images.clone())
        if wrong_logits(answer, len(images)):
            return True  # no logits: the gate says so
        if number == 0:
            first, before = answer, StateBefore(model)
        elif not _same(first, answer):
            return False
    return before is None or leaves_no_trace(model, before)


def leaves_no_trace(model: Model, before: StateBefore) -> bool:
    """Return whether a model drew no numbers and changed nothing that it holds; the log says so."""
    change = before.change()
    if change:
        name = getattr(model, "__name__", type(model).__name__)
        LOG.info(f"{name} is not taken for deterministic: {change}")
    return not change


def _same(one: object, two: object) -> bool:
    assert isinstance(one, Tensor)
    assert isinstance(two, Tensor)
    return one.shape == two.shape and bool(((one == two) | (one.isnan() & two.isnan())).all())
