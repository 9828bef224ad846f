"""Whose code failed, and where: the model's, or the attack's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from enresnet.common.user_code import is_bug, raised_by_us, users_line
from enresnet.models.interface import Model, module_of


class ModelFailedError(ValueError, RuntimeError):
    """A model does not take the images, or does not answer as it should."""


class AttackFailedError(ValueError, RuntimeError):
    """An attack of the user's own fails: its name, the error, and the user's line."""


@contextmanager
def naming_model(model: Model, images: Tensor) -> Iterator[None]:
    """Name a model in what it raises where it is given images.

    The sentence names the images' type or shape where that is the cause.
    Errors of other kinds, such as that memory is out, are raised as they are.
    """
    try:
        yield
    except Exception as error:
        if not is_bug(error):
            raise
        if type(error) in (RuntimeError, NotImplementedError):
            words = f"{_what_fails(model, images)}: {error}"
        elif raised_by_us(error):
            words = str(error)  # a sentence, on what the network takes
        else:
            named = f"{type(error).__name__}: {error}"
            words = f"{_what_fails(model, images)}: {named}{users_line(error)}"
        raise ModelFailedError(words) from error


def _what_fails(model: Model, images: Tensor) -> str:
    whole, one = (" x ".join(map(str, shape)) for shape in (images.shape, images.shape[1:]))
    module = module_of(model)
    parameters = () if module is None else module.parameters()
    types = {str(p.dtype).removeprefix("torch.") for p in parameters if p.is_floating_point()}
    own = str(images.dtype).removeprefix("torch.")
    channels = None if module is None else _channels(module)
    if types and own not in types:
        return (
            f"images must be of the model's own type, found {own} and a model in {min(types)}; "
            f"give it images.to(torch.{min(types)})"
        )
    if images.ndim == 3:
        return (
            f"images must be N x channels x height x width, found {whole}; a single image becomes "
            "a batch by images[None]"
        )
    if images.ndim == 4 and channels not in (None, images.shape[1]):
        advice = "; N x H x W x C becomes N x C x H x W by images.permute(0, 3, 1, 2)"
        found = f"images must be N x {channels} x height x width, found {whole}"
        return found + advice * (images.shape[3] == channels)
    return f"model fails on images of {one}" + f" in {own}" * (own != "float32")


@contextmanager
def naming_attack(name: str, kind: type) -> Iterator[None]:
    """Name an attack whose class is the user's own in what it raises, and show the user's line.

    What the model raises has its name already, and errors of our own attacks are sentences.
    """
    try:
        yield
    except Exception as error:
        ours = kind.__module__.partition(".")[0] == "enresnet"
        if ours or not is_bug(error):
            raise
        raise AttackFailedError(
            f"attack {name} ({kind.__name__}) fails, not the model: "
            f"{type(error).__name__}: {error}{users_line(error)}"
        ) from error


def _channels(module: nn.Module) -> int | None:
    """Return how many channels the first convolution of a network takes."""
    first = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    return None if first is None else first.in_channels
