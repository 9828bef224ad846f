"""Convolutions in the library's order: the same result and the same gradient as torch's own."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.models.frozen.fold import Convolution
from enresnet.models.frozen.fuse_graph import FusedConvolution, fuse_graph
from enresnet.models.frozen.ordered_convolution import OrderedConvolution, computes_in
from problems import seeded

LAST = torch.channels_last
PARTS = ("weight", "bias", "stride", "padding")
# input and output channels, kernel, stride, padding
SHAPES = [
    (3, 8, (7, 7), 2, (3, 3)),  # as networks for ImageNet begin
    (3, 32, (4, 4), 4, (0, 0)),  # patches
    (3, 16, (3, 3), 2, (1, 1)),
    (3, 16, (3, 5), 2, (0, 2)),
    (1, 16, (2, 2), 3, (0, 0)),  # pixels that no kernel sees
    (5, 7, (3, 3), 3, (2, 2)),
    (4, 16, (1, 1), 2, (0, 0)),
    (3, 16, (3, 3), 1, (1, 1)),
    (16, 32, (3, 3), 1, (1, 1)),
    (32, 16, (3, 3), 2, (1, 1)),
    (16, 16, (3, 3), 1, (0, 0)),
]


@pytest.mark.parametrize("size", [(13, 13), (12, 17)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_result_and_gradient_are_torchs_own(shape, size):
    inputs, outputs, kernel, stride, padding = shape
    generator = seeded()
    x = torch.randn(3, inputs, *size, generator=generator).contiguous(memory_format=LAST)
    weight = torch.randn(outputs, inputs, *kernel, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    if not computes_in(torch.float32):
        pytest.skip("this torch has no fused convolution")
    layer = OrderedConvolution(Convolution(weight, bias, (stride, stride), padding))
    check(layer, x, generator)


def check(layer, x, generator):
    """Compare a layer and its gradient with torch's own."""
    x.requires_grad_()
    weight, bias, stride, padding = (getattr(layer.layer, each) for each in PARTS)
    expected = functional.conv2d(x, weight, bias, stride, padding)
    g = torch.randn(expected.shape, generator=generator).contiguous(memory_format=LAST)
    (gradient,) = torch.autograd.grad(expected, x, g)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(layer(x, "relu"), expected.relu(), rtol=1e-4, atol=1e-4)
        found = layer.back(g, x)
    assert found.shape == x.shape
    torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3), (3, 1)])
def test_planes_of_few_pixels_are_multiplied_by_a_matrix(size, stride, bias):
    generator = seeded()
    x = torch.randn(3, 16, *size, generator=generator).contiguous(memory_format=LAST)
    weight = torch.randn(32, 16, 3, 3, generator=generator)
    shift = torch.randn(32, generator=generator) if bias else None
    convolution = Convolution(weight, shift, (stride, stride), (1, 1))
    layer = OrderedConvolution(convolution, matrices=True)
    assert layer._is_matrix(x)
    assert not OrderedConvolution(convolution)._is_matrix(x)
    assert not layer._is_matrix(torch.rand(3, 16, 2, 3))
    check(layer, x, generator)
    check(layer, torch.randn(5, 16, 1, 2, generator=generator), generator)  # another plane


def fused(*modules):
    """Return a graph of these modules, with its convolutions replaced."""
    network = nn.Sequential(*modules).eval().requires_grad_(False)
    whole = torch.fx.symbolic_trace(network)
    fuse_graph(whole, torch.float32, torch.device("cpu"))
    return network, whole


def test_a_relu_goes_into_the_convolution_that_it_alone_follows():
    network, whole = fused(nn.Conv2d(3, 16, 3), nn.ReLU(inplace=True), nn.Conv2d(16, 16, 3))
    kinds = [module for module in whole.modules() if isinstance(module, FusedConvolution)]
    assert [module.relu for module in kinds] == [True, False]
    assert not any(isinstance(module, nn.ReLU) for module in whole.modules())
    x = torch.rand(2, 3, 9, 9, generator=seeded())
    torch.testing.assert_close(whole(x), network(x))


def test_a_sum_before_the_relu_keeps_it():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            out = self.conv(x)
            return torch.relu(out) + out

    network = Twice().eval().requires_grad_(False)
    whole = torch.fx.symbolic_trace(network)
    fuse_graph(whole, torch.float32, torch.device("cpu"))
    (module,) = (m for m in whole.modules() if isinstance(m, FusedConvolution))
    assert not module.relu
    x = torch.rand(2, 3, 5, 5, generator=seeded())
    torch.testing.assert_close(whole(x), network(x))


@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(16, 16, 3, groups=4),
        nn.Conv2d(16, 16, 3, dilation=2),
        nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(16, 16, 3, padding="same"),
        nn.Conv2d(16, 16, 3).double(),
    ],
    ids=["groups", "dilation", "reflect", "same", "double"],
)
def test_others_stay_as_they_are(convolution):
    _, whole = fused(convolution)
    assert not any(isinstance(module, FusedConvolution) for module in whole.modules())


def test_one_convolution_in_two_places():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x):
            return self.conv(torch.relu(self.conv(x)))

    network = Shared().eval().requires_grad_(False)
    whole = torch.fx.symbolic_trace(network)
    fuse_graph(whole, torch.float32, torch.device("cpu"))
    x = torch.rand(2, 16, 5, 5, generator=seeded())
    torch.testing.assert_close(whole(x), network(x))
