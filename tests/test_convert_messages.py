"""Networks that once failed in torch's words: converted, or refused with what to do."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.models import create_model, feynman_kac, find_residuals
from enresnet.models.noise import noise_modules
from problems import Net, seeded

IMAGES = torch.rand(2, 3, 16, 16, generator=seeded())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x).relu()


class Dropped(Block):
    """Dropout as WideResNets have it."""

    def forward(self, x):
        out = functional.dropout(self.conv(x), p=0.5, training=self.training)
        return x + functional.alpha_dropout(out, 0.5, not self.training)


def test_a_flag_that_is_handed_on_is_followed():
    model = Net(Dropped())
    made = feynman_kac(model, members=1, noise=0.0, example=IMAGES)
    for mode in (True, False, True):
        answers = []
        for network in (model.train(mode), made.train(mode)):
            torch.manual_seed(0)
            answers.append(network(IMAGES))
        assert torch.equal(*answers)


@pytest.mark.parametrize("blocks", [Block, "blocks.1"])
def test_one_block_needs_no_list(blocks):
    found = find_residuals(Net(Block(), Block()), blocks=blocks, example=IMAGES).found
    assert [r.module for r in found] == ["blocks.0", "blocks.1"][-1 if blocks != Block else 0 :]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "at least one module, found none"),
        ([3], "names of modules or their classes, found int"),
    ],
)
def test_blocks_that_are_none(blocks, message):
    with pytest.raises((TypeError, ValueError), match=rf"blocks must .*{message}; .*Block"):
        feynman_kac(Net(Block()), blocks=blocks)


@pytest.mark.parametrize("own", [True, False])
def test_a_network_with_noise_is_refused(own):
    made = (
        create_model("en1_resnet8") if own else feynman_kac(Net(Block()), members=1, example=IMAGES)
    )
    for model in (made, made.members[0]):
        with pytest.raises(ValueError, match=r"has noise .* already: convert .*set_noise"):
            feynman_kac(model)
    quiet = feynman_kac(Net(Block()), members=1, noise=0.0, example=IMAGES).members[0]
    again = feynman_kac(quiet, members=1, noise=0.2, example=IMAGES)
    assert [place.noise for place in noise_modules(again)] == [0.2]


@pytest.mark.filterwarnings("ignore")
def test_scripts_and_old_weight_norm():
    class Plain(nn.Module):
        def forward(self, x):
            return x

    with pytest.raises(TypeError, match=r"of Python code, found .*Traced.*before torch\.jit"):
        feynman_kac(torch.jit.trace(Plain(), IMAGES))
    model = Net(Block())
    nn.utils.weight_norm(model.stem)
    model(IMAGES)
    with pytest.raises(ValueError, match=r"model cannot be copied .*torch\.nn\.utils\.param"):
        feynman_kac(model)
