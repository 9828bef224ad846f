"""What a ``forward`` reads and keeps besides its input: followed, or refused in words."""

import copy
import pickle

import pytest
import torch
from torch import nn

from enresnet import load_model, save_model
from enresnet.models import feynman_kac, find_residuals
from problems import Net, seeded

IMAGES = torch.rand(2, 3, 16, 16, generator=seeded())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.register_buffer("temperature", torch.ones(()))
        self.alpha, self.calls, self.last = 1.0, 0, None

    def forward(self, x):
        return x + self.conv(x).relu() * self.scale()

    def scale(self):
        return self.alpha


class Item(Block):
    def scale(self):
        return self.temperature.item()


class Root(Block):
    def scale(self):
        return (self.temperature + 1).sqrt()


class Counts(Block):
    def scale(self):
        self.calls += 1
        return 1.0


class Keeps(Block):
    def forward(self, x):
        self.last = x
        return super().forward(x)


class Steps(Block):
    def scale(self):
        self.temperature += 1
        return self.temperature


class Made(Block):
    def scale(self):
        return torch.ones(8, 1, 1)


@pytest.mark.parametrize("kind", [Item, Root])
def test_buffers_are_read_in_every_call(kind, tmp_path):
    model = Net(kind()).eval()
    model.blocks[0].temperature.fill_(3.0)
    made = feynman_kac(model, members=1, noise=0.0)
    assert torch.equal(made(IMAGES), model(IMAGES))
    save_model(made, tmp_path / "a.safetensors")
    again = load_model(tmp_path / "a.safetensors", network=Net(kind())).eval()
    assert torch.equal(again(IMAGES), model(IMAGES))
    for network in (model, made.members[0].network):
        network.blocks[0].temperature.fill_(7.0)
    assert torch.equal(made(IMAGES), model(IMAGES))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Counts, "the forward of Counts changes the module"),
        (Keeps, "the forward of Keeps changes the module"),
        (Steps, "the forward of Steps changes the module"),
        (Made, "makes tensors that do not depend on its input"),
    ],
)
def test_what_would_happen_once_is_refused(kind, why):
    with pytest.raises(ValueError, match=rf"{why}.*blocks=\[.*{kind.__name__}"):
        feynman_kac(Net(kind()))
    found = find_residuals(Net(kind(), Block()))
    assert [r.module for r in found.found] == ["blocks.1"]
    assert why in found.describe()
    made = feynman_kac(Net(kind()), members=1, blocks=[kind]).eval()
    made(IMAGES)
    assert made.members[0].network.blocks[0].calls > 0 or kind is not Counts


def test_plain_attributes_that_were_read_cannot_change_in_silence():
    made = feynman_kac(Net(Block()), members=1, noise=0.0)
    for one in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        block = one.members[0].network.blocks[0]
        with pytest.raises(AttributeError, match=r"alpha of Block was read.*feynman_kac"):
            block.alpha = 2.0
        block.alpha, block.calls = 1.0, 5  # the same value, and one that was not read
        assert block.calls == 5
