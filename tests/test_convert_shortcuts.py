"""Which additions are those of a shortcut: what a projection may be made of."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.models import feynman_kac, find_residuals
from enresnet.models.noise import noise_modules
from problems import seeded

IMAGES = torch.rand(2, 3, 16, 16, generator=seeded())


class FrozenNorm(nn.Module):
    """A normalisation with constants, as detection networks have it."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("scale", torch.rand(width, 1, 1) + 0.5)
        self.register_buffer("shift", torch.rand(width, 1, 1))

    def forward(self, x):
        return x * self.scale + self.shift


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Filled(nn.Module):
    """Halves the sides, and doubles the channels with zeros."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x):
        x = functional.avg_pool2d(x, 2)
        return torch.cat([x, torch.zeros_like(x) if self.way == "zeros" else x.mul(0)], dim=1)


class Down(nn.Module):
    """A residual block between two sizes, with some shortcut."""

    def __init__(self, shortcut):
        super().__init__()
        self.mapping = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.shortcut = shortcut

    def forward(self, x):
        return (self.mapping(x) + self.shortcut(x)).relu()


class Net(nn.Module):
    def __init__(self, block, width=16):
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 8, 3, padding=1), block
        self.head = nn.Linear(width, 4)

    def forward(self, images):
        return self.head(self.block(self.stem(images)).mean(dim=(2, 3)))


def projection(norm):
    return nn.Sequential(nn.Conv2d(8, 16, 1, 2), norm)


PROJECTIONS = {
    "group": lambda: projection(nn.GroupNorm(4, 16)),
    "layer": lambda: projection(ChannelNorm(16)),
    "instance": lambda: projection(nn.InstanceNorm2d(16, affine=True)),
    "frozen": lambda: projection(FrozenNorm(16)),
    "max pool": lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 1)),
    "zeros": lambda: Filled("zeros"),
    "times zero": lambda: Filled("times zero"),
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_what_a_projection_may_be_made_of(name):
    model = Net(Down(PROJECTIONS[name]())).eval()
    assert [r.module for r in find_residuals(model, example=IMAGES).found] == ["block"]
    quiet = feynman_kac(model, members=1, noise=0.0, example=IMAGES)
    assert torch.equal(quiet(IMAGES), model(IMAGES))


def test_a_sum_of_a_list():
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1)

        def forward(self, x):
            return sum([x, self.conv(x).relu()])

    found = find_residuals(Net(Summed(), 8), example=IMAGES)
    assert len(found.found) == 1


class Chain(nn.Module):
    """Adds two branches to a shortcut; numbers and sums are in the test below."""

    def __init__(self, way):
        super().__init__()
        self.one, self.two = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.bias, self.way = nn.Parameter(torch.rand(8, 1, 1)), way

    def forward(self, x):
        one, two = self.one(x).relu(), self.two(x).relu()
        if self.way == "shortcut first":
            return x + one + two
        if self.way == "shortcut last":
            return one + two + x
        if self.way == "sum":
            return sum([x, one, two])
        if self.way == "in place":
            one.add_(x)
            one.add_(two)
            return one
        if self.way == "parameter":
            return x + one + self.bias
        if self.way == "used twice":
            x = x + one
            return x + self.two(x).relu()
        total = one.add_(x) + two  # "other name"
        return total * one.sigmoid()


CHAINS = {
    "shortcut first": [1],
    "shortcut last": [1],
    "sum": [1],
    "in place": [1],
    "parameter": [1],
    "used twice": [0, 1],
    "other name": [0],
}


@pytest.mark.parametrize("way", CHAINS)
def test_a_chain_of_sums_is_one_residual_mapping(way):
    """Its noise is added after the last sum, where no one else reads the others."""
    model = Net(Chain(way), 8).eval()
    found = find_residuals(model, example=IMAGES)
    assert [r.number for r in found.found] == CHAINS[way]
    assert ("skipped" in found.describe()) == (way == "other name")
    quiet = feynman_kac(model, members=1, noise=0.0, example=IMAGES)
    torch.testing.assert_close(quiet(IMAGES), model(IMAGES))
    made = feynman_kac(model, members=1, noise=0.1, example=IMAGES)
    if CHAINS[way] == [1]:
        (noise,) = noise_modules(made)
        sums = []
        noise.register_forward_hook(lambda _, given, out: sums.extend([given[0].clone(), out]))
        x = torch.rand(2, 8, 5, 5)
        out = made.members[0].network.block(x)
        torch.testing.assert_close(sums[0], model.block(x))
        assert torch.equal(out, sums[1])


@pytest.mark.parametrize(
    "branch",
    [
        lambda: nn.Sequential(nn.Conv2d(8, 16, 1, 2), nn.GroupNorm(4, 16), nn.ReLU()),
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 1), nn.SiLU()),
        lambda: nn.Sequential(nn.GELU(), Filled("zeros"), nn.Sigmoid()),
    ],
)
def test_branches_with_an_activation_each_are_none(branch):
    with pytest.raises(ValueError, match="neither term is a shortcut"):
        find_residuals(Net(Down(branch())), example=IMAGES)
