"""What tells a model from another, so that results of two are never taken for those of one.

Our networks, and networks of torch's usual layers, are told apart by their weights and by what
``extra_repr`` shows. Every other model, a function for instance, must also answer a few fixed
images, and the answers count to the last bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.evaluation.scoring import drawn_logits
from enresnet.evaluation.seeding import is_foreign, own_attributes, own_streams
from enresnet.models import Normalized
from enresnet.models.interface import Model, module_of

PROBES = 16  # images that a model is asked about
# No two of these layers show the same weights and the same extra_repr. Tanh and ReLU do, or
# BatchNorm2d and InstanceNorm2d: a network with any other layer must answer too.
_SHOW_ALL = (
    *(nn.Sequential, nn.ModuleList, nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.Dropout),
    *(nn.ReLU, nn.Flatten, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d),
)


@dataclass(frozen=True)
class Identity:
    """What tells a model from another.

    Attributes:
        digest: Sixteen hexadecimal digits.
        certain: Whether they do tell. A model whose answers vary, even with all of torch's
            generators seeded, may be another with the same digest.

    Example::

        from enresnet.evaluation import identify

        identity = identify(model)
        print(identity.digest, identity.certain)
    """

    digest: str
    certain: bool = True


def identify(
    model: Model, shape: Sequence[int] | None = None, *, dtype: torch.dtype = torch.float32
) -> Identity:
    """Return what tells a model from another.

    Args:
        model: From images in [0, 1] to logits.
        shape: That of an image, C x H x W. Our networks, and networks of torch's usual layers,
            need none; other models are known by their answers to a few fixed images.
        dtype: That of the images that the model takes; float32 by default.

    Returns:
        The model's digest, and whether it tells the model from every other.

    Raises:
        ValueError: The model must answer, and ``shape`` was not given.

    Example::

        from enresnet.evaluation import identify

        print(identify(lambda x: model(1 - x), shape=(3, 8, 8)).certain)
    """
    digest, module = hashlib.sha256(), module_of(model)
    if module is not None:
        _add_module(digest, module)
    if module is model and all(map(_shows_all, module.modules())):
        return Identity(digest.hexdigest()[:16])
    if shape is None:
        raise ValueError("shape, C x H x W, must be given: this model is known by its answers")
    kind = model if hasattr(model, "__qualname__") else type(model)
    digest.update(f"{kind.__module__}.{kind.__qualname__}".encode())
    one, two = _answers(model, shape, dtype), _answers(model, shape, dtype)
    if one == two:
        digest.update(one)
    return Identity(digest.hexdigest()[:16], certain=one == two)


def digest_of(
    model: Model, shape: Sequence[int] | None = None, *, dtype: torch.dtype = torch.float32
) -> str:
    """Return the digest that tells a model from another.

    Args:
        model: From images in [0, 1] to logits.
        shape: That of an image, C x H x W; see :func:`identify`.
        dtype: That of the images that the model takes; float32 by default.

    Returns:
        Sixteen hexadecimal digits; :func:`identify` says whether they are certain.

    Raises:
        ValueError: The model must answer, and ``shape`` was not given.

    Example::

        from enresnet.evaluation import digest_of

        assert digest_of(model) == digest_of(model.train())
    """
    return identify(model, shape, dtype=dtype).digest


def _add_module(digest: hashlib._Hash, module: nn.Module) -> None:
    digest.update(type(module).__name__.encode())
    digest.update(repr([part.extra_repr() for part in module.modules()]).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        if isinstance(tensor, Tensor):
            content: Any = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            digest.update(content)
    for name, part in module.named_modules():
        if is_foreign(type(part)):
            own = own_attributes(part).items()
            plain = {key: value for key, value in own if isinstance(value, int | float | str)}
            digest.update(repr((name, type(part).__qualname__, plain)).encode())


def _shows_all(part: nn.Module) -> bool:
    """Return whether a part's weights and extra_repr say all of what it computes."""
    known = type(part) in _SHOW_ALL or type(part).__module__.startswith("enresnet.")
    changed = "forward" in vars(part) or part._forward_hooks or part._forward_pre_hooks
    function = isinstance(part, Normalized) and not isinstance(part.model, nn.Module)
    return known and not changed and not function


def _answers(model: Model, shape: Sequence[int], dtype: torch.dtype) -> bytes:
    """Return a model's logits of fixed images under fixed noise."""
    images = torch.rand((PROBES, *shape), generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over several threads may differ in the last bit
    try:
        with own_streams([model], seed=0) as reseed:
            reseed("identity")
            (logits,) = drawn_logits(model, images.to(dtype), 1)
    finally:
        torch.set_num_threads(threads)
    return bytes(logits.numpy().tobytes())
