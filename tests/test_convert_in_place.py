"""Sums that are made in place: the noise is seen under all their names, or they are refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.models import feynman_kac
from enresnet.models.noise import noise_modules
from problems import Net, seeded
from residual_blocks import Block

IMAGES = torch.rand(3, 3, 16, 16, generator=seeded())


class InPlace(Block):
    """Adds in place, and goes on with another name of the sum."""

    def forward(self, x):
        out = self.conv2(self.conv1(x).relu())
        if self.way == "returned":
            out.add_(x)
            return out
        if self.way == "activated":
            out.add_(x)
            return functional.relu(out, inplace=True)
        if self.way == "through mul_":
            active = out.mul_(0.5)
            active.add_(x)
            return out
        view, older = out.flatten(2), out
        if self.way == "+=":
            out += x
            return older
        out.add_(x)
        return view.unflatten(2, x.shape[2:]) + (0.0 * out if self.way == "view and sum" else 0.0)


class TestAddedInPlace:
    """The noise is seen under all names of the sum, or the network is refused."""

    @pytest.mark.parametrize("way", ["returned", "activated", "through mul_"])
    def test_noise_arrives(self, way):
        model = Net(InPlace(way=way)).eval()
        quiet = feynman_kac(model, members=1, noise=0.0)
        torch.testing.assert_close(quiet(IMAGES), model(IMAGES))
        made = feynman_kac(model, members=1, noise=0.3, generator=seeded())
        assert not torch.equal(made(IMAGES), made(IMAGES))
        (noise,) = noise_modules(made)
        sums = []
        noise.register_forward_hook(lambda *args: sums.append(args[-1].clone()))
        result = made.members[0].network.blocks[0](torch.rand(2, 8, 5, 5))
        assert torch.equal(result, sums[0].relu() if way == "activated" else sums[0])
        made(IMAGES).sum().backward()
        assert all(p.grad is not None for p in made.parameters())

    @pytest.mark.parametrize("way", ["view", "view and sum", "+="])
    def test_what_it_would_miss_is_refused(self, way):
        model = Net(InPlace(way=way), Block())
        found = "answers otherwise" if way == "+=" else r"other names.* blocks\.0 \(InPlace\);"
        for weight in (1e-6, 0.0):  # neither small logits nor a head of zeros hide it
            for parameter in model.head.parameters():
                nn.init.normal_(parameter, std=weight)
            with pytest.raises(ValueError, match=found):
                feynman_kac(model)
        made = feynman_kac(model, members=1, noise=0.3, blocks=[InPlace]).eval()
        assert len(list(noise_modules(made))) == 1
