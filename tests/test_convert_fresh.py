"""Fresh members share no weight with the network they were made of, or they are refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.models import feynman_kac
from problems import seeded


class Gained(nn.Conv2d):
    """A convolution with a weight that its ``reset_parameters`` does not know of."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.gain * super().forward(x)


class Measured(nn.BatchNorm2d):
    """A layer with a statistic of its own."""

    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("largest", torch.zeros(()))


class Block(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return x + functional.relu(self.part(x))


class Net(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.block = Block(part)

    def forward(self, images):
        return self.head(self.block(self.stem(images)).mean(dim=(2, 3)))


@pytest.mark.filterwarnings("ignore")  # spectral_norm is an old name
@pytest.mark.parametrize(
    ("build", "kept"),
    [
        (lambda: nn.utils.spectral_norm(nn.Conv2d(8, 8, 1)), "weight_orig"),
        (lambda: Gained(8, 8, 1), "gain"),
        (lambda: Measured(8), "largest"),
    ],
)
def test_weights_that_reset_parameters_leaves_are_named(build, kept):
    with pytest.raises(ValueError, match=rf"leaves block\.part\.{kept}.* as it was; give builder="):
        feynman_kac(Net(build()), init="fresh")
    made = feynman_kac(Net(build()), init="fresh", builder=lambda: Net(build()), members=2)
    first, second = (member.network.stem.weight for member in made.members)
    assert not torch.equal(first, second)


def test_weights_that_are_set_to_what_they_were_are_fresh():
    part = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))  # ones and zeros again
    part.register_buffer("constant", torch.ones(1), persistent=False)
    part.reset_parameters = lambda: None
    made = feynman_kac(Net(part), init="fresh", members=2, generator=seeded())
    first, second = (member.network.block.part for member in made.members)
    assert torch.equal(first[1].weight, torch.ones(8))
    assert torch.equal(second.constant, torch.ones(1))
    assert not torch.equal(first[0].weight, second[0].weight)
