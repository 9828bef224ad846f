"""The networks of the paper: sizes, shapes, initialisation."""

import pytest
import torch
from torch import nn

from enresnet.models import ResNet, create_model
from enresnet.models.resnet import BasicBlock, Bottleneck
from problems import seeded


def millions(model):
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ResNet.of_depth(20), 0.27),
        (ResNet.of_depth(44), 0.66),
        (ResNet.of_depth(110), 1.73),
        (ResNet.wide(14, 2), 0.69),
        (ResNet.of_depth(164, block="bottleneck"), 1.70),
    ],
    ids=["resnet20", "resnet44", "resnet110", "wrn14_2", "resnet164_bottleneck"],
)
def test_parameter_counts(model, expected):
    assert round(millions(model), 2) == expected


def test_the_large_network_has_46_2_million():
    assert round(millions(ResNet.wide(34, 10)), 1) == 46.2


@pytest.mark.parametrize("depth", [8, 20, 26, 32, 44, 56, 110])
def test_depth_counts_the_weighted_layers_on_the_longest_path(depth):
    model = ResNet.of_depth(depth)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    shortcuts = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert len(convolutions) - len(shortcuts) + 1 == depth  # and the classifier
    assert len(shortcuts) == 2  # where a stage halves the image


@pytest.mark.parametrize("size", [(8, 8), (9, 13), (28, 28), (32, 32), (64, 48)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "make", [lambda **o: ResNet.of_depth(8, **o), lambda **o: ResNet.of_depth(11, **o)]
)
def test_any_size_and_channels_and_classes(size, channels, make):
    model = make(in_channels=channels, num_classes=7, noise=0.1)
    logits = model(torch.rand(2, channels, *size))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_blocks_follow_the_equation():
    block = ResNet.of_depth(8, noise=0.0).stages[1][0].eval()
    assert isinstance(block, BasicBlock)
    x = torch.randn(2, 16, 8, 8, generator=seeded())
    active = torch.relu(block.bn1(x))
    residual = block.conv2(torch.relu(block.bn2(block.conv1(active))))
    torch.testing.assert_close(block(x), block.shortcut(active) + residual)
    block = ResNet.of_depth(14).stages[0][1].eval()
    assert block.shortcut is None
    x = x.requires_grad_()
    active = torch.relu(block.bn1(x))
    residual = block.conv2(torch.relu(block.bn2(block.conv1(active))))
    torch.testing.assert_close(block(x), x + residual)


def test_bottlenecks_widen_and_halve_in_the_middle():
    block = ResNet.of_depth(11).stages[1][0].eval()
    assert isinstance(block, Bottleneck)
    strides = [conv.stride[0] for conv in (block.conv1, block.conv2, block.conv3)]
    assert strides == [1, 2, 1]
    assert (block.conv2.kernel_size, block.conv3.out_channels) == ((3, 3), 128)
    x = torch.randn(2, 64, 8, 8, generator=seeded())
    active = torch.relu(block.bn1(x))
    residual = block.conv2(torch.relu(block.bn2(block.conv1(active))))
    residual = block.conv3(torch.relu(block.bn3(residual)))
    torch.testing.assert_close(block(x), block.shortcut(active) + residual)


def test_noise_comes_after_every_block():
    model = ResNet.of_depth(20, noise=0.1)
    blocks = [block for stage in model.stages for block in stage]
    assert len(blocks) == 9
    assert all(block.noise.noise == 0.1 for block in blocks)
    assert ResNet.of_depth(29, noise=0.2).config["noise"] == 0.2
    assert isinstance(ResNet.of_depth(29).stages[0][0], Bottleneck)


def test_weights_are_drawn_as_he_prescribes():
    model = ResNet.wide(10, 4, generator=seeded())
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            area = module.kernel_size[0] * module.kernel_size[1]
            variance = 2 / (area * module.out_channels)
            assert module.weight.var().item() == pytest.approx(variance, rel=0.1)


def test_normalisation_happens_inside():
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    inside = ResNet.of_depth(8, mean=mean, std=std, generator=seeded()).eval()
    outside = ResNet.of_depth(8, generator=seeded()).eval()
    images = torch.rand(2, 3, 8, 8)
    shaped = [torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std)]
    torch.testing.assert_close(inside(images), outside((images - shaped[0]) / shaped[1]))
    assert set(inside.state_dict()) == set(outside.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype):
    model = create_model("en2_resnet8", mean=[0.5] * 3).to(dtype)
    assert model(torch.rand(2, 3, 8, 8).to(dtype)).dtype == dtype


def test_generators_repeat_the_weights():
    one, two, three = (create_model("resnet8", generator=seeded(s)).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["stem.weight"], three["stem.weight"])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ResNet.of_depth(21), r"6n\+2, or 9n\+2 .*found 21; the nearest are 20 and 26"),
        (lambda: ResNet.of_depth(29, block="basic"), r"6n\+2, found 29"),
        (lambda: ResNet.of_depth(26, block="bottleneck"), r"9n\+2, found 26"),
        (lambda: ResNet.of_depth(2), "found 2"),
        (lambda: ResNet.of_depth(20, block="dense"), "block must be one of basic, bottleneck"),
        (lambda: ResNet.wide(20, 2), r"6n\+4.*found 20"),
        (lambda: ResNet.wide(4, 2), "found 4"),
        (lambda: ResNet.of_depth(8, num_classes=1), "num_classes must be at least 2"),
        (lambda: ResNet.of_depth(8, in_channels=0), "in_channels must be at least 1"),
        (lambda: ResNet.of_depth(8, mean=[0.5]), "mean must hold 3 numbers"),
        (lambda: ResNet.of_depth(8, std=[0.5, 0.5, 0]), "std must be"),
        (
            lambda: ResNet.of_depth(8)(torch.rand(2, 1, 8, 8)),
            "images must be N x 3 x H x W.*2 x 1 x 8 x 8",
        ),
        (lambda: ResNet.of_depth(8)(torch.rand(3, 8, 8)), "images must be N x 3"),
        (lambda: ResNet.of_depth(8)(torch.rand(2, 3, 8, 7)), "H and W at least 8"),
    ],
)
def test_bad_input(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_integer_images():
    with pytest.raises(TypeError, match="images must be floating point"):
        ResNet.of_depth(8)(torch.ones(2, 3, 8, 8, dtype=torch.uint8))
