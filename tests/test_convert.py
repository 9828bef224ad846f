"""Any network with residual connections becomes a Feynman-Kac ensemble: where noise is added."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.attacks import IFGSM
from enresnet.models import create_model, feynman_kac, find_residuals, seed_noise
from enresnet.models.conversion.fresh import like
from enresnet.models.noise import noise_modules
from problems import Net, seeded
from residual_blocks import Block

IMAGES = torch.rand(3, 3, 16, 16, generator=seeded())


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
