"""Blocks that are used in several places, named in several ways, or asked for by their class."""

import copy
import pickle

import pytest
import torch
from torch import nn

from enresnet import load_model, save_model
from enresnet.models import feynman_kac, seed_noise
from enresnet.models.noise import noise_modules
from problems import Net, seeded
from residual_blocks import Block

IMAGES = torch.rand(3, 3, 16, 16, generator=seeded())


def test_what_a_parent_asks_a_block_for_survives_a_copy():
    class Wide(Block):
        def __init__(self):
            super().__init__()
            self.scale = 2.0

    class Asks(Net):
        def forward(self, images):
            return self.blocks[0].scale * super().forward(images)

    model = feynman_kac(Asks(Wide()), members=1, noise=0.0).eval()
    torch.testing.assert_close(copy.deepcopy(model)(IMAGES), model(IMAGES))


class SharedNet(nn.Module):
    """One block under several names, and in a list that is no ModuleList."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.a = Block()
        self.b = self.a
        self.more = nn.ModuleList([self.a, self.a])
        self.plain = [self.a]

    def forward(self, images):
        x = self.b(self.a(self.stem(images)))
        for block in (*self.more, *self.plain):
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


class TestShared:
    """A block that is used in several places is noisy in all of them, and stays one block."""

    @pytest.mark.parametrize("blocks", [None, [Block], ["b"]])
    def test_under_several_names(self, blocks):
        made = feynman_kac(SharedNet(), members=1, noise=0.2, blocks=blocks).eval()
        network, calls = made.members[0].network, []
        (noise,) = noise_modules(made)
        noise.register_forward_hook(lambda *_: calls.append(1))
        made(IMAGES)
        assert len(calls) == 5
        assert network.a is network.b is network.more[0] is network.more[1] is network.plain[0]
        assert "noise 0.2 in 5 places" in made.describe()
        assert "5 residual mappings\n    Block: 1 module, 5 each (a)" in made.describe()

    def test_in_a_sequence(self):
        block = Block()
        made = feynman_kac(Net(block, block, block), members=1, noise=0.0)
        assert "3 residual mappings" in made.describe()
        assert len({id(b) for b in made.members[0].network.blocks}) == 1

    def test_it_is_stored(self, tmp_path):
        made = feynman_kac(SharedNet(), members=1, noise=0.0)
        save_model(made, tmp_path / "a.safetensors")
        again = load_model(tmp_path / "a.safetensors", network=SharedNet())
        assert again.describe() == made.describe()
        torch.testing.assert_close(again.eval()(IMAGES), made.eval()(IMAGES))


def test_a_converted_block_is_still_one():
    class Asks(Net):
        def forward(self, images):
            x = self.stem(images)
            for block in self.blocks:
                x = block(x) if isinstance(block, Block) else 0 * x
            return self.head(x.mean(dim=(2, 3)))

    model, seen = Asks(Block(), Block()).eval(), []
    model.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    quiet = feynman_kac(model, members=1, noise=0.0)
    seen.clear()
    torch.testing.assert_close(quiet(IMAGES), model(IMAGES))
    assert len(seen) == 2  # hooks stay


def test_a_parent_that_asks_for_the_exact_class_is_refused_in_words():
    class Asks(Net):
        def forward(self, images):
            x = self.stem(images)
            for block in self.blocks:
                x = block(x) if type(block) is Block else 0 * x
            return self.head(x.mean(dim=(2, 3)))

    with pytest.raises(ValueError, match=r"exact class \(type\(block\) is.*blocks=\["):
        feynman_kac(Asks(Block(), Block()))
    made = feynman_kac(Asks(Block(), Block()), members=1, noise=0.2, blocks=[Block])
    assert len(list(noise_modules(made))) == 2


def test_pickles_keep_the_noise():
    made = feynman_kac(Net(Block(way="function"), Block(way="iadd")), members=1, noise=0.2).eval()
    again = pickle.loads(pickle.dumps(made))
    seed_noise(made, seeded(5))
    seed_noise(again, seeded(5))
    assert torch.equal(made(IMAGES), again(IMAGES))
    assert not torch.equal(again(IMAGES), again(IMAGES))


def test_a_block_named_twice_counts_once():
    chosen = ["blocks.0", Block, "Block", Block]
    made = feynman_kac(Net(Block()), members=1, noise=0.2, blocks=chosen)
    assert len(list(noise_modules(made))) == 1
    assert "noise 0.2 in 1 place\n" in made.describe()
    assert "1 residual mapping\n    Block: 1 module, 1 each (blocks.0)" in made.describe()


def test_a_class_may_be_named():
    made = feynman_kac(Net(Block(), Block()), members=1, noise=0.2, blocks="Block")
    assert len(list(noise_modules(made))) == 2


def test_a_block_that_is_not_called_is_refused():
    class Spare(Net):
        def __init__(self):
            super().__init__(Block())
            self.spare = Block()

    with pytest.raises(ValueError, match=r"spare \(Block\), which is not called"):
        feynman_kac(Spare(), blocks=[Block])


def test_a_block_that_returns_no_tensor_is_refused():
    class Packed(Block):
        def forward(self, x):
            return {"x": super().forward(x)}

    class Unpacks(Net):
        def forward(self, images):
            return self.head(self.blocks[0](self.stem(images))["x"].mean(dim=(2, 3)))

    with pytest.raises(ValueError, match="the block Packed returns a dict, to which no noise"):
        feynman_kac(Unpacks(Packed()), blocks="Packed")
