"""Contexts inside a ``forward`` are not dropped: gradients off, autocast on or off."""

import pytest
import torch
from torch import nn

from enresnet.models import feynman_kac, find_residuals
from enresnet.models.conversion.checking import _other_gradient
from problems import Net, seeded

IMAGES = torch.rand(2, 3, 16, 16, generator=seeded())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.gate = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        return x + self.conv(x).relu() * self.gated(x)

    def gated(self, x):
        return self.gate(x).sigmoid()


class NoGrad(Block):
    def gated(self, x):
        with torch.no_grad():
            return self.gate(x).sigmoid()


class Enabled(Block):
    @torch.enable_grad()
    def gated(self, x):
        return self.gate(x).sigmoid()


class Inference(Block):
    def gated(self, x):
        with torch.inference_mode():
            out = self.gate(x).sigmoid()
        return out.clone()


class Autocast(Block):
    def __init__(self, enabled):
        super().__init__()
        self.enabled = enabled

    def gated(self, x):
        with torch.autocast("cpu", enabled=self.enabled):
            return self.gate(x.float()).sigmoid()


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (NoGrad, "switches gradients"),
        (Enabled, "switches gradients"),
        (Inference, "switches gradients"),
        (lambda: Autocast(True), "switches autocast"),
        (lambda: Autocast(False), "switches autocast"),
    ],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_they_are_noticed(block, why, gradients):
    with torch.set_grad_enabled(gradients):
        with pytest.raises(ValueError, match=rf"{why} on or off.*a trace would drop.*blocks=\["):
            feynman_kac(Net(block()))
        found = find_residuals(Net(block(), Block()))
        assert torch.is_grad_enabled() == gradients
    assert [r.module for r in found.found] == ["blocks.1"]
    assert why in found.describe()
    assert not torch.is_autocast_enabled("cpu")


def test_blocks_keep_them():
    model = Net(NoGrad()).eval()
    made = feynman_kac(model, members=1, noise=0.0, blocks=[NoGrad])
    made(IMAGES).sum().backward()
    assert made.members[0].network.blocks[0].gate.weight.grad is None


def test_contexts_of_parts_that_are_called_stay():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Gate()

        def forward(self, x):
            return x + x.relu() * self.inner(x)

    class Gate(NoGrad):
        def forward(self, x):
            return self.gated(x)

    made = feynman_kac(Net(Outer()), members=1, noise=0.1)
    made(IMAGES).sum().backward()
    assert made.members[0].network.blocks[0].inner.gate.weight.grad is None


def test_gradients_are_compared():
    images = IMAGES.clone().requires_grad_()
    one, two = Net(NoGrad()), Net(Block())
    two.load_state_dict(one.state_dict())
    assert _other_gradient(one(images), one, two(images), two, images) == "the images"
    assert _other_gradient(one(images), one, one(images), one, images) == ""
