"""A network of another library, or of the user's own, as one of ours: images in [0, 1] to logits.

It remembers where it came from, so that its weights can be stored with a description it is built
again from: no code is stored, and none is run that the user did not name.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.common.user_code import at_its_line, import_named
from enresnet.models.interface import logits_of
from enresnet.models.names import LIBRARIES, is_code
from enresnet.models.normalized import mean_and_std, normalise

# What networks trained on ImageNet are given, in torchvision and unless timm says otherwise.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_SIZE = 32


@dataclass(frozen=True)
class NetworkSource:
    """Where a network comes from, and for which images it is built.

    Attributes:
        source: ``timm:NAME``, ``torchvision:NAME`` or ``module.path:function``.
        num_classes: The number of classes.
        in_channels: The colour channels of the images.
        image_size: The side of the images in pixels.
    """

    source: str
    num_classes: int = 10
    in_channels: int = 3
    image_size: int = DEFAULT_SIZE

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or ":" not in self.source:
            raise ValueError(f"source must be LIBRARY:NAME, found {checks.brief(self.source)}")
        checks.integer("num_classes", self.num_classes, low=2)
        checks.integer("in_channels", self.in_channels, low=1)
        checks.integer("image_size", self.image_size, low=1)

    @property
    def is_code(self) -> bool:
        """Whether it is the user's own code, and not a library's."""
        return is_code(self.source)

    def build(self, *, try_it: bool = True) -> nn.Module:
        """Return the network with new weights, drawn from torch's global generator.

        With ``try_it`` two images go through it.

        Raises:
            ImportError: The library is not installed.
            FileNotFoundError: The user's module is not there.
            TypeError: The user's function is not one that builds a network.
            ValueError: There is no such network, or it does not fit the images.
        """
        library, _, name = self.source.partition(":")
        if library == "timm":
            network = self._from_timm(name)
        elif library == "torchvision":
            network = self._from_torchvision(name)
        else:
            network = self._from_code()
        if try_it:
            self._check(network)
        return network

    def size(self) -> tuple[int, int]:
        """Return how many tensors the network has, and numbers in them, without building it.

        Code of the user's own is not asked: (0, 0).
        """
        if self.is_code:
            return 0, 0
        try:
            with torch.device("meta"):
                tensors = list(self.build(try_it=False).parameters())
        except NotImplementedError:  # some read numbers back while they are made
            name = self.source.partition(":")[2]
            found = import_torchvision().models.get_model_weights(name).DEFAULT.meta["num_params"]
            return 1, found // 2  # its classifier may have fewer classes
        return len(tensors), sum(tensor.numel() for tensor in tensors)

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Return the mean and std that the network's library gives its images; None for code."""
        library, _, name = self.source.partition(":")
        if library not in LIBRARIES:
            return None
        mean, std = IMAGENET_MEAN, IMAGENET_STD
        if library == "timm":
            found = import_timm().get_pretrained_cfg(name, allow_unregistered=True)
            if found is not None:
                mean, std = tuple(found.mean), tuple(found.std)
        if self.in_channels != len(mean):  # gray images: the mean over the colours
            return (sum(mean) / len(mean),), (sum(std) / len(std),)
        return mean, std

    def example(self) -> Tensor:
        """Return two random images that the network takes."""
        shape = (2, self.in_channels, self.image_size, self.image_size)
        return torch.rand(shape, generator=torch.Generator().manual_seed(0))

    def _from_timm(self, name: str) -> nn.Module:
        timm = import_timm()
        if not timm.is_model(name):
            raise ValueError(
                f"timm has no network {name!r}" + checks.did_you_mean(name, timm.list_models())
            )
        options: dict[str, Any] = {"num_classes": self.num_classes, "in_chans": self.in_channels}
        config = timm.get_pretrained_cfg(name, allow_unregistered=True)
        if config is not None and config.fixed_input_size:
            options["img_size"] = self.image_size
        try:
            return cast("nn.Module", timm.create_model(name, pretrained=False, **options))
        except Exception as error:
            raise ValueError(
                f"timm cannot build {name} for {self._images()}: {type(error).__name__}: {error}"
            ) from error

    def _from_torchvision(self, name: str) -> nn.Module:
        library = import_torchvision()
        names = library.models.list_models(module=library.models)
        if name not in names:
            raise ValueError(
                f"torchvision has no classifier {name!r}" + checks.did_you_mean(name, names)
            )
        if self.in_channels != 3:
            raise ValueError(
                f"torchvision's networks take colour images, 3 channels; found {self.in_channels}: "
                f"timm:{name} may have the same network for any number of channels"
            )
        options = {"image_size": self.image_size} if name.startswith("vit_") else {}
        try:
            return cast(
                "nn.Module",
                library.models.get_model(
                    name, weights=None, num_classes=self.num_classes, **options
                ),
            )
        except NotImplementedError:
            raise
        except Exception as error:
            raise ValueError(
                f"torchvision cannot build {name} for {self._images()}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _from_code(self) -> nn.Module:
        function = import_named(self.source)
        if isinstance(function, nn.Module) or not callable(function):
            raise TypeError(
                f"{self.source} must be a function that builds a network, with new weights each "
                f"time; found {type(function).__name__}"
            )
        try:
            network = function(**self._options(function))
        except Exception as error:
            raise at_its_line(f"{self.source} failed", error) from error
        if not isinstance(network, nn.Module):
            raise TypeError(
                f"{self.source} must return an nn.Module, found {type(network).__name__}"
            )
        return network

    def _options(self, function: Any) -> dict[str, int]:
        """Return what a function takes of what is known, by the names that are in use."""
        known = {
            "num_classes": self.num_classes,
            "in_channels": self.in_channels,
            "in_chans": self.in_channels,
            "image_size": self.image_size,
            "img_size": self.image_size,
        }
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return {}
        taken = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        return {name: value for name, value in known.items() if name in taken}

    def _check(self, network: nn.Module) -> None:
        """Raise unless the network answers such images with a number for each class."""
        before = network.training
        network.eval()
        try:
            with torch.no_grad():
                found = logits_of(network(self.example()))
        except Exception as error:
            raise at_its_line(f"{self.source} fails on {self._images()}", error) from error
        finally:
            network.train(before)
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if shape != (2, self.num_classes):
            raise ValueError(
                f"{self.source} must return logits, 2 x {self.num_classes} for two images; found "
                f"{shape}"
            )

    def _images(self) -> str:
        return f"images of {self.in_channels} x {self.image_size} x {self.image_size}"


class ExternalNetwork(nn.Module):
    """A network that is not ours, from images in [0, 1] to logits, like one of ours.

    :func:`~enresnet.models.create_model` makes one of ``timm:NAME``, ``torchvision:NAME`` or
    ``module.path:function``; :func:`~enresnet.models.feynman_kac` makes its members from it.

    Args:
        network: From normalised images to logits; what holds the logits will do.
        source: Where it comes from; None if only its owner knows.
        mean: Subtracted from the images, one number a channel; nothing by default.
        std: Divides the images after that; nothing by default.

    Attributes:
        network: The network inside.
        source: Where it comes from.
        residuals: Where noise is added; None if nowhere.

    Shape:
        - images: N x C x H x W in [0, 1]
        - result: N x classes, logits

    Raises:
        TypeError: The network is not an ``nn.Module``.
        ValueError: Mean and std do not fit each other.

    Example::

        import torch
        from torch import nn
        from enresnet.models import ExternalNetwork

        inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        model = ExternalNetwork(inner, mean=(0.5,), std=(0.2,))
        logits = model(torch.rand(2, 1, 8, 8))
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        source: NetworkSource | None = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise TypeError(f"network must be an nn.Module, found {type(network).__name__}")
        if (mean is None) != (std is None):
            there, missing = ("mean", "std") if std is None else ("std", "mean")
            raise ValueError(f"{there} needs {missing}: mean and std belong together")
        self.network = network
        self.source = source
        self.kind = f"{type(network).__module__}.{type(network).__qualname__}"
        self.residuals: Any = None
        values = (None, None) if mean is None or std is None else mean_and_std(mean, std)
        for name, numbers in zip(("mean", "std"), values, strict=True):
            if source and numbers is not None and len(numbers) not in (1, source.in_channels):
                raise ValueError(
                    f"{name} must be one number, or one a channel: found {len(numbers)}, and the "
                    f"images have {source.in_channels} channel(s)"
                )
        # Not persistent: they are hyper-parameters, and stand in the description.
        self.register_buffer("mean", values[0], persistent=False)
        self.register_buffer("std", values[1], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits N x classes for images N x C x H x W in [0, 1]."""
        logits: Tensor = logits_of(self.network(self.normalised(images)))
        return logits

    def normalised(self, images: Tensor) -> Tensor:
        """Return images as the network inside takes them."""
        if self.mean is None or self.std is None:
            return images
        return normalise(images, self.mean, self.std)

    def with_network(self, network: nn.Module, residuals: Any) -> ExternalNetwork:
        """Return the same around a network in which noise is added to these residual mappings."""
        result = ExternalNetwork(network, self.source)
        result.kind, result.residuals = self.kind, residuals
        for name in ("mean", "std"):
            value = getattr(self, name)
            setattr(result, name, None if value is None else value.clone())
        return result.train(self.training)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that build this network again, as plain JSON, without the noise."""
        return {
            "source": None if self.source is None else asdict(self.source),
            "kind": self.kind,
            "mean": None if self.mean is None else self.mean.flatten().tolist(),
            "std": None if self.std is None else self.std.flatten().tolist(),
        }

    def extra_repr(self) -> str:
        """Show where it comes from."""
        return self.kind if self.source is None else self.source.source


def import_timm() -> Any:
    """Return the library timm."""
    _make_torchvision_importable()
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise ImportError(
            f"timm:NAME needs the library timm, which cannot be imported ({error}): "
            "pip install timm"
        ) from error


def import_torchvision() -> Any:
    """Return the library torchvision."""
    _make_torchvision_importable()
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise ImportError(
            "torchvision:NAME needs the library torchvision, which cannot be imported "
            f"({error}): pip install torchvision"
        ) from error


def _make_torchvision_importable() -> None:
    """Import torchvision, if it is there, also where its compiled part does not fit this torch.

    Its networks need none of that part, but it declares how operators of that part behave.
    """
    if "torchvision" in sys.modules:
        return
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", boxes)
        importlib.import_module("torchvision")
