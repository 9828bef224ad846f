"""Blocks with optional arguments become noisy where the network leaves these at their defaults."""

import copy
import pickle

import pytest
import torch
from torch import nn

from enresnet import load_model, save_model
from enresnet.models import feynman_kac, find_residuals
from problems import seeded

IMAGES = torch.rand(2, 3, 16, 16, generator=seeded())


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x, mask=None, *, scale=1.0, plain=False):
        out = self.conv(x)
        if mask is not None:
            out = out * mask
        if plain:
            return out
        return x + scale * out.relu()


class Net(nn.Module):
    """Calls its block once for each of some arguments."""

    def __init__(self, *calls, block=Masked):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.block, self.calls = block(), calls

    def forward(self, images):
        x = self.stem(images)
        for arguments in self.calls:
            x = self.block(x, **arguments)
        return self.head(x.mean(dim=(2, 3)))


MASK = torch.rand(8, 1, 1, generator=seeded(1))


@pytest.mark.parametrize(
    "calls", [[{}], [{}, {}], [{"mask": None}], [{"mask": MASK}], [{"scale": 0.5}, {}]]
)
def test_arguments_that_are_not_given_stay_at_their_defaults(calls, tmp_path):
    model = Net(*calls).eval()
    quiet = feynman_kac(model, members=1, noise=0.0)
    assert f"{len(calls)} residual mapping" in quiet.describe()
    save_model(quiet, tmp_path / "a.safetensors")
    again = load_model(tmp_path / "a.safetensors", network=Net(*calls)).eval()
    for made in (quiet, copy.deepcopy(quiet), pickle.loads(pickle.dumps(quiet)), again):
        assert torch.equal(made(IMAGES), model(IMAGES))


def test_later_calls_that_give_them_are_refused():
    made = feynman_kac(Net({}), members=1).members[0].network
    assert made.block(torch.rand(1, 8, 4, 4), mask=None).shape == (1, 8, 4, 4)
    with pytest.raises(
        ValueError, match=r"mask of Masked\.forward must stay.*found Tensor.*blocks="
    ):
        made.block(torch.rand(1, 8, 4, 4), MASK)


def test_a_block_that_asks_for_what_is_sometimes_given_is_skipped():
    model = Net({}, {"mask": MASK})
    with pytest.raises(ValueError, match=r"called with and without mask.*blocks=\[.*Masked"):
        find_residuals(model)
    assert len(find_residuals(model, blocks=[Masked]).found) == 1


def test_a_copy_that_fails_is_not_blamed_on_the_images():
    class Asks(Net):
        def forward(self, images):
            if "out" not in type(self.block).forward.__code__.co_varnames:
                raise RuntimeError("another forward")
            return super().forward(images)

    with pytest.raises(ValueError, match=r"takes the example images, but fails.*another.*blocks="):
        feynman_kac(Asks({}))
