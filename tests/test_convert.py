"""Any network with residual connections becomes a Feynman-Kac ensemble: where noise is added."""

import copy
import operator
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet import load_model, save_model
from enresnet.attacks import IFGSM
from enresnet.models import create_model, feynman_kac, find_residuals, seed_noise
from enresnet.models.conversion.fresh import like
from enresnet.models.noise import noise_modules
from problems import seeded

IMAGES = torch.rand(3, 3, 16, 16, generator=seeded())


class Block(nn.Module):
    """A residual block whose addition is written in one of several ways."""

    def __init__(self, width=8, way="plus", stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, stride, 1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(width, width, 1, stride)
        self.way, self.width = way, width

    def forward(self, x):
        out, skip = self.conv2(self.conv1(x).relu()), self.shortcut(x)
        if self.way == "plus":
            return functional.relu(out + skip)
        if self.way == "iadd":
            out += skip
            return out.relu()
        if self.way == "operator":
            return operator.iadd(out, skip).relu()
        if self.way == "method":
            return out.add(skip).relu()
        return torch.add(skip, out).relu()


class Net(nn.Module):
    """A stem, residual blocks, a head."""

    def __init__(self, *blocks):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))


@pytest.mark.parametrize("way", ["plus", "iadd", "operator", "method", "function"])
def test_every_way_to_add_is_found(way):
    model = Net(Block(way=way), Block(way=way, stride=2)).eval()
    found = find_residuals(model)
    assert [(r.module, r.number) for r in found.found] == [("blocks.0", 0), ("blocks.1", 0)]
    quiet = feynman_kac(model, members=1, noise=0.0)
    torch.testing.assert_close(quiet(IMAGES), model(IMAGES))
    noisy = feynman_kac(model, members=2, noise=0.3, generator=seeded())
    assert len(list(noise_modules(noisy))) == 4
    assert not torch.equal(noisy(IMAGES), noisy(IMAGES))


@pytest.mark.parametrize("base", ["resnet8", "resnet11_bottleneck", "wrn10_2"])
def test_of_our_networks_it_is_that_of_the_registry(base):
    """Down-sampling blocks included: equal weights and equal noise give equal bits."""
    network = create_model(base, generator=seeded()).eval()
    made = feynman_kac(network, members=2, noise=0.1)
    named = create_model(f"en2_{base}").eval()
    named.load_state_dict(made.state_dict())
    for model in (made, named):
        seed_noise(model, seeded(1))
    assert torch.equal(made(IMAGES), named(IMAGES))
    assert all(place.noise == 0 for place in noise_modules(network))  # which is left as it was
    attacks = [IFGSM(steps=2, eot=2)(m, IMAGES, torch.arange(3)) for m in (made, named)]
    for model in (made, named):
        seed_noise(model, seeded(1))
    attacks = [IFGSM(steps=2, eot=2)(m, IMAGES, torch.arange(3)) for m in (made, named)]
    assert torch.equal(*attacks)


def test_what_follows_may_work_in_place():
    class InPlace(Block):
        def forward(self, x):
            out = self.conv2(self.conv1(x).relu_())
            out += x
            return out.relu_()

    made = feynman_kac(Net(InPlace(), InPlace()), members=2, noise=0.1).train()
    made(IMAGES).sum().backward()
    assert all(p.grad is not None for p in made.parameters())


class TestWhatCounts:
    """Additions that are no residual mappings are left alone, and said to be."""

    def test_parameters_and_numbers(self):
        class Embedded(Block):
            def __init__(self):
                super().__init__()
                self.position = nn.Parameter(torch.rand(1, 8, 16, 16))

            def forward(self, x):
                x = x + self.position
                x = x + 1.0
                return super().forward(x)

        found = find_residuals(Net(Embedded()), example=IMAGES)
        assert [r.number for r in found.found] == [1]  # of those of two tensors
        assert "a term does not depend on the images" in found.describe()

    def test_branches_without_a_shortcut(self):
        class Branches(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

            def forward(self, x):
                return self.one(x).relu() + self.two(x).relu()

        found = find_residuals(Net(Branches(), Block()))
        assert [r.module for r in found.found] == ["blocks.1"]
        assert "neither term is a shortcut" in found.describe()

    def test_terms_of_different_shape(self):
        class Gate(nn.Module):
            def forward(self, x):
                return x + x.mean(dim=(2, 3), keepdim=True)

        found = find_residuals(Net(Gate(), Block()))
        assert [r.module for r in found.found] == ["blocks.1"]
        assert "differ in shape" in found.describe()

    def test_concatenation_is_refused(self):
        class Dense(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(8, 4, 1)
                self.down = nn.Conv2d(12, 8, 1)

            def forward(self, x):
                return self.down(torch.cat([x, self.conv(x).relu()], dim=1))

        with pytest.raises(
            ValueError,
            match=r"no residual connection.*concatenates.*not a residual.*blocks=.*Dense",
        ):
            feynman_kac(Net(Dense()))
        assert len(find_residuals(Net(Dense(), Block())).found) == 1  # in part

    def test_squeeze_and_excite_and_stochastic_depth(self):
        class Drop(nn.Module):
            def forward(self, x):
                if self.training and torch.rand(()) < 0.5:
                    return 0 * x
                return x

        class Excited(Block):
            def __init__(self):
                super().__init__()
                self.squeeze, self.drop = nn.Conv2d(8, 8, 1), Drop()

            def forward(self, x):
                out = self.conv2(self.conv1(x).relu())
                out = out * self.squeeze(out.mean(dim=(2, 3), keepdim=True)).sigmoid()
                return x + self.drop(out)

        model = Net(Excited())
        made = feynman_kac(model, members=1, noise=0.0).train()
        assert "1 residual mapping\n    Excited: 1 module" in made.describe()
        kept = model.eval()(IMAGES)
        dropped = []
        for seed in range(8):
            answers = []
            for network in (model.train(), made):
                torch.manual_seed(seed)
                answers.append(network(IMAGES))
            torch.testing.assert_close(*answers)
            dropped.append(not torch.allclose(answers[0], kept))
        assert 0 < sum(dropped) < 8
        torch.testing.assert_close(made.eval()(IMAGES), kept)

    def test_pre_activation_with_a_projection_of_the_activated_input(self):
        class Pre(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm2d(8)
                self.conv, self.skip = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, 1, 2)

            def forward(self, x):
                x = self.norm(x).relu()
                return self.conv(x).relu() + self.skip(x)

        assert len(find_residuals(Net(Pre())).found) == 1

    def test_all_in_one_forward(self):
        class Flat(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem, self.one, self.two = (nn.Conv2d(c, 8, 3, padding=1) for c in (3, 8, 8))
                self.head = nn.Linear(8, 4)

            def forward(self, x):
                x = self.stem(x)
                x = x + self.one(x).relu()
                x = x + self.two(x).relu()
                return self.head(x.mean(dim=(2, 3)))

        model = feynman_kac(Flat(), members=2, noise=0.1)
        assert [r.number for r in model.members[0].residuals.found] == [0, 1]
        assert "the network itself" in model.describe()
        assert set(model.members[0].network.state_dict()) == set(Flat().state_dict())


class Branching(Block):
    """Its ``forward`` looks at the data, which no tracer can follow."""

    def forward(self, x):
        if float(x.mean()) > 1e9:
            return x
        return super().forward(x)


class TestUntraceable:
    def test_the_error_names_candidates_and_blocks_help(self):
        model = Net(Branching(), Branching()).eval()
        with pytest.raises(ValueError, match=r"cannot be traced.*blocks=.*Branching"):
            feynman_kac(model)
        for blocks in ([Branching], ["blocks.0", "blocks.1"]):
            made = feynman_kac(model, members=2, noise=0.2, blocks=blocks, generator=seeded())
            assert len(list(noise_modules(made))) == 4
            assert not torch.equal(made(IMAGES), made(IMAGES))
            assert set(made.members[0].network.state_dict()) == set(model.state_dict())
        quiet = feynman_kac(model, members=1, noise=0.0, blocks=[Branching])
        torch.testing.assert_close(quiet(IMAGES), model(IMAGES))

    def test_blocks_that_are_not_there(self):
        with pytest.raises(ValueError, match=r"found 'blocks\.9'; among them are Block"):
            feynman_kac(Net(Block()), blocks=["blocks.9"])
        with pytest.raises(ValueError, match="found 'Branching'"):
            feynman_kac(Net(Block()), blocks=[Branching])

    def test_a_forward_that_differs_in_training_is_not_traced(self):
        class Dropped(Block):
            def dropped(self, x):
                return functional.dropout(self.conv1(x)) if self.training else self.conv1(x)

            def forward(self, x):
                return x + self.dropped(x)

        with pytest.raises(ValueError, match="differs between training and evaluation"):
            feynman_kac(Net(Dropped()))
        made = feynman_kac(Net(Dropped()), members=1, blocks=[Dropped])
        assert made.train()(IMAGES).shape == (3, 4)


class Lottery(Block):
    """Stochastic depth in its own ``forward``."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        if self.training and self.draw() < 0.5:
            return x
        return x+self.conv1(x)  # fmt: skip


class Held(Lottery):
    """It has a generator of its own."""

    def __init__(self, generator):
        super().__init__(None)
        self.generator = generator

    def forward(self, x):
        if isinstance(self.generator, torch.Generator):
            dropped = torch.rand((), generator=self.generator) < 0.5
        else:
            dropped = self.generator.random() < 0.5
        return x if dropped else x + self.conv1(x)


class TestStochasticDepth:
    """A forward that draws is left alone, whatever it draws, and the reason is given."""

    BLOCKS = (
        lambda: Lottery(lambda: torch.rand(())),
        lambda: Lottery(random.random),
        lambda: Lottery(lambda: np.random.random()),  # noqa: NPY002
        lambda: Held(torch.Generator().manual_seed(0)),
        lambda: Held(random.Random(0)),
        lambda: Held(np.random.default_rng(0)),
        lambda: Held(np.random.RandomState(0)),
    )

    @pytest.mark.parametrize("block", BLOCKS)
    def test_every_seed_gives_the_same(self, block):
        for seed in range(4):
            for start in (torch.manual_seed, random.seed, np.random.seed):
                start(seed)
            before = torch.random.get_rng_state(), random.getstate()
            with pytest.raises(ValueError, match=r"no residual .* draws random numbers.*blocks="):
                feynman_kac(Net(block()))
            found = find_residuals(Net(block(), Block()))
            assert [r.module for r in found.found] == ["blocks.1"]
            assert "skipped blocks.0" in found.describe()
            assert "draws random numbers" in found.describe()
            assert random.getstate() == before[1]
        made = feynman_kac(Net(block()), members=1, blocks=[Lottery]).train()
        assert made(IMAGES).shape == (3, 4)

    def test_the_global_generators_stand_where_they_stood(self):
        def draw():
            return torch.rand(()) + random.random() + np.random.random()  # noqa: NPY002

        model = Net(Lottery(draw))
        states = torch.random.get_rng_state, random.getstate, np.random.get_state
        before = [str(list(get())) for get in states]
        with pytest.raises(ValueError, match="draws random numbers"):
            feynman_kac(model)
        assert [str(list(get())) for get in states] == before

    def test_a_builder_whose_blocks_draw_is_refused_in_words(self):
        with pytest.raises(ValueError, match=r"blocks\.0 \(Lottery\): .*draws random.*blocks="):
            feynman_kac(
                Net(Block()), init="fresh", builder=lambda: Net(Lottery(random.random)), members=1
            )


class TestMembers:
    @pytest.mark.parametrize("init", ["fresh", "copy"])
    def test_they_differ_after_a_step(self, init):
        torch.manual_seed(0)
        model = Net(Block(), Block())
        made = feynman_kac(model, members=2, noise=0.1, init=init, generator=seeded()).train()
        first, second = (dict(member.named_parameters()) for member in made.members)
        same = all(torch.equal(first[name], second[name]) for name in first)
        assert same == (init == "copy")
        optimiser = torch.optim.SGD(made.parameters(), 0.1)
        functional.cross_entropy(made(IMAGES), torch.arange(3)).backward()
        optimiser.step()
        assert not any(torch.equal(first[n], second[n]) for n in first if "conv" in n)

    def test_fresh_weights_come_from_the_seed_and_leave_the_global_generator(self):
        model, before = Net(Block()), torch.random.get_rng_state()
        one, two = (
            feynman_kac(model, members=2, init="fresh", generator=seeded(3)) for _ in range(2)
        )
        torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_weights_that_no_one_can_draw_need_a_builder(self):
        class Scaled(Block):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, x):
                return x + self.scale * self.conv1(x).relu()

        with pytest.raises(ValueError, match=r"cannot draw new weights for blocks\.0 \(Scaled\)"):
            feynman_kac(Net(Scaled()), init="fresh")
        made = feynman_kac(Net(Scaled()), init="fresh", builder=lambda: Net(Scaled()), members=2)
        first, second = (member.network.stem.weight for member in made.members)
        assert not torch.equal(first, second)

    @pytest.mark.parametrize("init", ["fresh", "copy"])
    def test_they_have_the_types_and_devices_of_the_network(self, init):
        def build():
            return Net(Block(), nn.BatchNorm2d(8))

        model = build().double()
        made = feynman_kac(model, members=2, init=init, builder=build).eval()
        assert made(IMAGES.double()).dtype == torch.float64
        for member in made.members:
            for name, tensor in model.state_dict().items():
                assert member.network.state_dict()[name].dtype == tensor.dtype, name
        with pytest.raises(TypeError, match="builder must return an nn.Module, found int"):
            feynman_kac(model, init="fresh", builder=lambda: 3)

    def test_mixed_types_and_devices_are_kept(self):
        model = Net(Block()).to(torch.bfloat16)
        model.head.float()
        made = like(Net(Block()), model)
        assert made.head.weight.dtype == torch.float32
        assert made.stem.weight.dtype == torch.bfloat16
        assert like(Net(Block()), Net(Block()).to("meta")).stem.weight.device.type == "meta"


def test_it_survives_copies_and_state_dicts():
    made = feynman_kac(Net(Block(way="iadd")), members=2, generator=seeded()).eval()
    again = copy.deepcopy(made)
    other = feynman_kac(Net(Block(way="iadd")), members=2)
    other.load_state_dict(made.state_dict())
    other.eval()
    found = []
    for model in (made, again, other):
        seed_noise(model, seeded(4))
        found.append(model(IMAGES))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": lambda x: x}, "model must be an nn.Module"),
        ({"members": 0}, "members must be at least 1"),
        ({"noise": -1}, "noise must be finite and at least 0"),
        ({"init": "old"}, "init must be one of copy, fresh"),
        ({"example": torch.rand(2, 5, 8, 8)}, r"fails on the example images \(2, 5, 8, 8\)"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        feynman_kac(**{"model": Net(Block()), **arguments})


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


class OneConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1)

    def dropped(self, x):
        return functional.dropout(self.conv1(x)) if self.training else self.conv1(x)


class Unspaced(OneConvolution):
    def forward(self, x):
        return x+self.dropped(x)  # fmt: skip


class Helped(OneConvolution):
    def forward(self, x):
        return self.join(x, self.dropped(x))

    def join(self, x, out):
        out += x
        return out


class Named(OneConvolution):
    def forward(self, x):
        out = self.dropped(x)
        return torch.add(input=out, other=x)


class Inherited(Unspaced):
    def forward(self, x):
        return super().forward(x.relu())


def joined(x, out):
    return sum([x, out])


class Outside(OneConvolution):
    def forward(self, x):
        return joined(x, self.dropped(x))


class Counting(nn.Module):
    """A layer that cannot be traced, adds numbers, and is no residual block."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(8, 1, 1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale: float = 1.0):
        if self.training:
            self.calls.add_(1)
            self.calls = self.calls + 1
        names = "a" + "b"
        height = x.shape[2] + x.size(3) + len(names)
        return functional.dropout(x, 0.1, self.training) * (scale + 0 * height) + self.bias


class TestWhatIsSkipped:
    """Blocks that add activations and cannot be traced are listed; other modules are not."""

    @pytest.mark.parametrize("kind", [Unspaced, Helped, Named, Inherited, Outside])
    def test_however_the_addition_is_written(self, kind):
        found = find_residuals(Net(Block(), kind())).describe()
        assert f"skipped blocks.1 ({kind.__name__}): its forward differs" in found

    def test_terms_may_be_given_by_name(self):
        class Sum(Block):
            def forward(self, x):
                out = self.conv1(x).relu()
                if self.way == "method":
                    return out.add(other=x)
                return torch.add(input=out, other=x)

        model = Net(Sum(way="method"), Sum()).eval()
        assert len(find_residuals(model).found) == 2
        quiet = feynman_kac(model, members=1, noise=0.0)
        torch.testing.assert_close(quiet(IMAGES), model(IMAGES))

    @pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
    def test_layers_of_torch_with_residual_connections(self, kind):
        decodes = kind is nn.TransformerDecoderLayer

        class Attends(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = kind(8, 2, 16, batch_first=True)

            def forward(self, x):
                tokens = x.flatten(2).mT
                return self.layer(*[tokens] * (1 + decodes)).mT.unflatten(2, x.shape[2:])

        model = Net(Block(), Attends()).eval()
        if decodes:  # it can be traced
            assert "TransformerDecoderLayer: 1 module, 3 each" in find_residuals(model).describe()
            quiet = feynman_kac(model, members=1, noise=0.0)
            torch.testing.assert_close(quiet(IMAGES), model(IMAGES))
        else:
            found = find_residuals(model).describe()
            assert "skipped blocks.1.layer (TransformerEncoderLayer): its forward cannot" in found
            with pytest.raises(ValueError, match=r"blocks=\[\.\.\.\].*TransformerEncoderLayer"):
                feynman_kac(Net(Attends()))
        made = feynman_kac(model, members=1, noise=0.2, blocks=[Block, kind]).eval()
        assert len(list(noise_modules(made))) == 2

    def test_what_adds_no_activations_is_not_listed(self):
        assert "skipped" not in find_residuals(Net(Counting(), Block())).describe()

    def test_one_line_for_each_reason(self):
        found = find_residuals(Net(Block(), *(Unspaced() for _ in range(6)))).describe()
        assert found.count("skipped") == 1
        assert "skipped 6 places: blocks.1 (Unspaced), " in found
        assert ", ... blocks.6 (Unspaced): its forward differs" in found
