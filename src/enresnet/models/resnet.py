r"""Pre-activation residual networks (Sec. 2.1, Eqs. 3-4) with noise after every residual mapping.

.. math:: F(x_l) = w^{C2} \otimes \mathrm{relu}(w^{B2} \odot w^{C1} \otimes
          \mathrm{relu}(w^{B1} \odot x_l))

Where a block changes the shape, its shortcut is a 1 x 1 convolution of the pre-activated input.
Images come in [0, 1]; normalisation, if any, happens inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.common.randomness import checked_generator
from enresnet.models.architecture import (
    BLOCK_KINDS,
    EXPANSION,
    STEM_WIDTH,
    WIDTHS,
    Architecture,
    Block,
    StdOver,
    resnet_blocks,
    wide_resnet_blocks,
)
from enresnet.models.noise import NoiseInjection, NoiseStream, noise_modules

SMALLEST_IMAGE = 8  # pixels a side: two halvings leave 2 x 2


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions, each after BatchNorm and ReLU."""

    expansion = EXPANSION["basic"]

    def __init__(self, in_width: int, width: int, stride: int, noise: NoiseInjection) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_width)
        self.conv1 = _conv(in_width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.shortcut = _shortcut(in_width, width, stride)
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        """Return x + F(x) + sigma N(0, I)."""
        active = self.bn1(x).relu_()
        skip = x if self.shortcut is None else self.shortcut(active)
        residual = self.conv2(self.bn2(self.conv1(active)).relu_())
        out: Tensor = self.noise(residual + skip)
        return out


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions; the last widens by four."""

    expansion = EXPANSION["bottleneck"]

    def __init__(self, in_width: int, width: int, stride: int, noise: NoiseInjection) -> None:
        super().__init__()
        out_width = self.expansion * width
        self.bn1 = nn.BatchNorm2d(in_width)
        self.conv1 = _conv(in_width, width, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, out_width, 1)
        self.shortcut = _shortcut(in_width, out_width, stride)
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        """Return x + F(x) + sigma N(0, I)."""
        active = self.bn1(x).relu_()
        skip = x if self.shortcut is None else self.shortcut(active)
        residual = self.conv2(self.bn2(self.conv1(active)).relu_())
        residual = self.conv3(self.bn3(residual).relu_())
        out: Tensor = self.noise(residual + skip)
        return out


BLOCKS: dict[Block, type[BasicBlock] | type[Bottleneck]] = {
    "basic": BasicBlock,
    "bottleneck": Bottleneck,
}


class ResNetOptions(TypedDict, total=False):
    """The arguments of :class:`ResNet` that its depth does not decide."""

    num_classes: int
    in_channels: int
    noise: float
    std_over: StdOver
    mean: Sequence[float] | None
    std: Sequence[float] | None
    generator: torch.Generator | None


class ResNet(nn.Module):
    """A pre-activation residual network from images in [0, 1] to logits.

    It is a 3 x 3 convolution, stages of residual blocks, global average pooling and a linear
    classifier. Every stage but the first halves the image's sides. ``noise=0`` gives the base
    network, ``noise=0.1`` the paper's ResNet'. :meth:`of_depth` and :meth:`wide` build it from its
    number of layers, :func:`~enresnet.models.create_model` from its name.

    Args:
        blocks: The number of residual blocks in each stage.
        widths: The channels of each stage; (16, 32, 64) by default. Bottleneck blocks put out four
            times as many.
        block: ``"basic"``, two 3 x 3 convolutions (the default), or ``"bottleneck"``, convolutions
            of 1 x 1, 3 x 3 and 1 x 1.
        num_classes: The number of classes; 10 by default, at least 2.
        in_channels: The colour channels of the images; 3 by default.
        noise: The paper's a, the noise after every block in units of the block's standard
            deviation; 0 by default.
        std_over: What that standard deviation is taken over: each ``"example"`` by itself (the
            default), or the whole ``"batch"``.
        mean: Subtracted from the images, one number a channel; nothing by default.
        std: Divides the images after that, one number a channel; nothing by default.
        generator: Draws the weights, and then the noise. By default both start from the system's
            entropy.

    Shape:
        - images: N x in_channels x H x W in [0, 1], H and W at least 8
        - result: N x num_classes

    Raises:
        TypeError: An argument has the wrong type, or the images are not floating point.
        ValueError: An argument is out of range, or the images have the wrong shape.

    Example::

        import torch
        from enresnet.models import ResNet

        network = ResNet(blocks=3, noise=0.1)  # ResNet20 with noise
        logits = network(torch.rand(2, 3, 32, 32))
    """

    _shift: Tensor | None
    _scale: Tensor | None

    def __init__(
        self,
        *,
        blocks: int,
        widths: Sequence[int] = WIDTHS,
        block: Block = "basic",
        num_classes: int = 10,
        in_channels: int = 3,
        noise: float = 0.0,
        std_over: StdOver = "example",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.blocks = checks.integer("blocks", blocks, low=1)
        self.widths = tuple(checks.integer("widths", width, low=1) for width in widths)
        checks.choice("block", block, BLOCK_KINDS)
        self.block = block
        self.num_classes = checks.integer("num_classes", num_classes, low=2)
        self.in_channels = checks.integer("in_channels", in_channels, low=1)
        self.mean = _per_channel("mean", mean, in_channels)
        self.std = _per_channel("std", std, in_channels, low=1e-6)
        generator = checked_generator(generator)
        stream = NoiseStream(generator)

        make, in_width = BLOCKS[self.block], STEM_WIDTH
        self.stem = _conv(in_channels, in_width, 3)
        self.stages = nn.ModuleList()
        for index, width in enumerate(self.widths):
            stage = nn.Sequential()
            for position in range(blocks):
                stride = 2 if index > 0 and position == 0 else 1
                injection = NoiseInjection(noise, std_over=std_over, generator=stream)
                stage.append(make(in_width, width, stride, injection))
                in_width = make.expansion * width
            self.stages.append(stage)
        self.bn = nn.BatchNorm2d(in_width)
        self.classifier = nn.utils.skip_init(nn.Linear, in_width, num_classes)
        # Not persistent: they are hyper-parameters, kept in ``config``.
        self.register_buffer("_shift", _channel_buffer(self.mean), persistent=False)
        self.register_buffer("_scale", _channel_buffer(self.std), persistent=False)
        self.reset_parameters(generator)

    @classmethod
    def of_depth(
        cls, depth: int, *, block: Block | None = None, **options: Unpack[ResNetOptions]
    ) -> Self:
        """Return the ResNet of ``depth`` layers: 6n+2 with basic blocks, 9n+2 with bottlenecks.

        Args:
            depth: The number of layers. One that fits both rules, such as 20 or 110, means basic
                blocks.
            block: The kind of block; by default the one that the depth fits.
            **options: Any other argument of :class:`ResNet`.

        Raises:
            ValueError: No such network has this depth; the error names the nearest depths.

        Example::

            from enresnet.models import ResNet

            resnet20 = ResNet.of_depth(20, num_classes=100)
        """
        blocks, block = resnet_blocks(depth, block)
        return cls(blocks=blocks, block=block, **options)

    @classmethod
    def wide(cls, depth: int, widen: int, **options: Unpack[ResNetOptions]) -> Self:
        """Return WRN-``depth``-``widen``: 6n+4 layers, with ``widen`` times the channels.

        Args:
            depth: The number of layers: 6n+4, or 14 for the paper's WRN-14-2, which counts 6n+2.
            widen: The factor of the channels.
            **options: Any other argument of :class:`ResNet`.

        Raises:
            ValueError: No such network has this depth.

        Example::

            from enresnet.models import ResNet

            wrn16_4 = ResNet.wide(16, 4)
        """
        widths = [width * widen for width in WIDTHS]
        return cls(blocks=wide_resnet_blocks(depth), widths=widths, **options)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew: He's normal with variance 2 / (kernel area x output channels)."""
        generator = checked_generator(generator)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
        bound = self.classifier.in_features**-0.5
        self.classifier.weight.uniform_(-bound, bound, generator=generator)
        self.classifier.bias.zero_()

    @property
    def architecture(self) -> Architecture:
        """Its shape, whatever its weights."""
        return Architecture(self.blocks, self.widths, self.block)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that build this network again."""
        first, *others = noise_modules(self)
        if any((o.noise, o.std_over) != (first.noise, first.std_over) for o in others):
            raise ValueError(
                "noise differs between the blocks of this network; set_noise makes it one number"
            )
        return {
            "blocks": self.blocks,
            "widths": list(self.widths),
            "block": self.block,
            "num_classes": self.num_classes,
            "in_channels": self.in_channels,
            "noise": first.noise,
            "std_over": first.std_over,
            "mean": self.mean,
            "std": self.std,
        }

    def forward(self, images: Tensor) -> Tensor:
        """Return logits N x num_classes for images N x in_channels x H x W in [0, 1]."""
        x = self.stem(self.normalised(images))
        for stage in self.stages:
            x = stage(x)
        features = self.bn(x).relu_().mean(dim=(2, 3))
        logits: Tensor = self.classifier(features)
        return logits

    def normalised(self, images: Tensor) -> Tensor:
        """Return images as the first convolution takes them."""
        self._check(images)
        x = images
        if self._shift is not None:
            x = x - self._shift
        if self._scale is not None:
            x = x / self._scale
        return x

    def all_blocks(self) -> Iterator[nn.Module]:
        """Yield the residual blocks in order."""
        for stage in self.stages:
            assert isinstance(stage, nn.Sequential)
            yield from stage

    def _check(self, images: Tensor) -> None:
        if not images.is_floating_point():
            raise TypeError(f"images must be floating point in [0, 1], found {images.dtype}")
        shape = tuple(images.shape)
        if len(shape) != 4 or shape[1] != self.in_channels or min(shape[2:]) < SMALLEST_IMAGE:
            raise ValueError(
                f"images must be N x {self.in_channels} x H x W with H and W at least "
                f"{SMALLEST_IMAGE}, found {' x '.join(map(str, shape))}{self._remedy(shape)}"
            )

    def _remedy(self, shape: tuple[int, ...]) -> str:
        if len(shape) == 3 and shape[0] == self.in_channels:
            return "; a single image becomes a batch by images[None]"
        if len(shape) == 4 and shape[3] == self.in_channels:
            return "; N x H x W x C becomes N x C x H x W by images.permute(0, 3, 1, 2)"
        return ""

    def extra_repr(self) -> str:
        """Show the hyper-parameters."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config.items())


def _conv(in_width: int, out_width: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    # skip_init: torch's own initialisation would draw from the global generator.
    conv: nn.Conv2d = nn.utils.skip_init(
        nn.Conv2d, in_width, out_width, kernel, stride=stride, padding=kernel // 2, bias=False
    )
    return conv


def _shortcut(in_width: int, out_width: int, stride: int) -> nn.Conv2d | None:
    return _conv(in_width, out_width, 1, stride) if (in_width, 1) != (out_width, stride) else None


def _per_channel(
    name: str, values: Sequence[float] | None, channels: int, *, low: float = -float("inf")
) -> list[float] | None:
    if values is None:
        return None
    if len(values) != channels:
        raise ValueError(f"{name} must hold {channels} numbers, one a channel; found {values!r}")
    return [checks.number(name, value, low=low) for value in values]


def _channel_buffer(values: list[float] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values).view(1, -1, 1, 1)
