"""Whether the images of a batch meet inside a network: whether one's answer depends on the others.

They do in BatchNorm that keeps no statistics, and wherever a forward takes a mean over the batch.
Who takes an image out of such a batch changes the answers about the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

FEW = 6  # images that are tried together
DRAWS = 8  # of a network's noise, at most
CALLS = 5  # of a model whose gradient the first draw shows
CLOSE = 1e-3  # by how much rounding may change logits, relative to their spread
ROUNDINGS = 8  # the same in roundings, which are larger than that in bfloat16 and float16

Call = Callable[[Tensor], Tensor]
"""From images to logits."""


@torch.inference_mode(False)
def images_meet(call: Call, images: Tensor) -> bool:
    """Return whether an image's answer depends on another image, as far as some of them show.

    The gradient tells, whatever noise there is, but not of what a forward computes without one.
    So the logits of a model that answers twice the same are compared too. Where a model has no
    gradient, only logits are: then images that have noise of any kind are taken to meet.

    Args:
        call: From images to logits.
        images: Those that it is tried on; the first few are. To one alone, another is made up.
    """
    few = images.detach()[:FEW].clone()
    if not len(few):
        return False
    if len(few) == 1:
        other = torch.rand(few.shape, generator=torch.Generator().manual_seed(0))
        few = torch.cat([few, other.to(few)])
    if len(few) > 2:
        few[-1] = 1  # a white image: some meet only bright ones
    by_gradient = _gradients_meet(call, few)
    return by_gradient or _answers_differ(call, few, noisy=by_gradient is None)


@torch.enable_grad()
def _gradients_meet(call: Call, few: Tensor) -> bool | None:
    """Return whether a row's logits have a gradient at other images; None if some row's is flat.

    A network with dropout is flat in some draws, so several are looked at. Of the last of three or
    more, a white image, that says nothing.
    """
    flat = set(range(max(2, len(few) - 1)))
    for _ in range(DRAWS):
        leaf = few.clone().requires_grad_()
        try:
            logits = call(leaf)
        except Exception:  # such as of numpy; what else is wrong shows without a gradient too
            return None
        if not logits.requires_grad:
            return None
        weights = torch.outer(
            torch.linspace(1, 2, len(few)), torch.linspace(1, -1, logits.shape[1])
        ).to(logits.device)
        for rows in _groups(len(few)):
            try:
                found = _gradient((logits.float() * weights)[rows].sum(), leaf)
            except RuntimeError as error:
                if type(error) is not RuntimeError:  # such as that memory is out
                    raise
                return None
            if found is None:
                return None
            sloped = found.flatten(1).any(dim=1)
            flat.difference_update(row for row in rows if sloped[row])
            sloped[rows] = False
            if sloped.any():
                return True
        if not flat:
            return False
    return None


def _groups(count: int) -> Iterator[list[int]]:
    """Yield groups of rows: of any two rows, one group has the first and not the second."""
    for digit in range((count - 1).bit_length()):
        for value in (0, 1):
            yield [row for row in range(count) if row >> digit & 1 == value]


def _gradient(value: Tensor, leaf: Tensor) -> Tensor | None:
    return torch.autograd.grad(value, leaf, retain_graph=True, allow_unused=True)[0]


@torch.no_grad()
def _answers_differ(call: Call, few: Tensor, *, noisy: bool) -> bool:
    """Return whether images get other logits without the others than with them.

    Where a model does not answer twice the same, that says nothing: then it is ``noisy``.
    """
    together = call(few.clone())
    if not torch.equal(together, call(few.clone())):
        return noisy
    parted = torch.cat([call(part.clone()) for part in (few[:1], few[1:])])
    spread = (together - together.mean(dim=1, keepdim=True)).abs().mean().clamp_min(1e-12)
    close = max(CLOSE, ROUNDINGS * torch.finfo(together.dtype).eps)
    return not bool((together - parted).abs().max() < close * spread)
