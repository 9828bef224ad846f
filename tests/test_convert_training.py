"""A converted network in training mode is the network in training mode, or is refused in words."""

import copy
import pickle
import random

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from enresnet import load_model, save_model
from enresnet.models import (
    feynman_kac,
    find_residuals,
    seed_noise,
    set_recompute,
    without_noise,
)
from problems import Net, seeded

IMAGES = torch.rand(4, 3, 16, 16, generator=seeded())


class Children(nn.Module):
    """Computes with what its children hold, and with their flags."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.parts = nn.ModuleList([nn.Dropout(0.5)])

    def forward(self, x):
        norm, drop = self.norm, self.parts[0]
        out = functional.batch_norm(
            self.conv(x),
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            training=norm.training,
        )
        return x + functional.dropout(out.relu(), drop.p, self.flag(drop))

    def flag(self, drop):
        return drop.training


class Both(Children):
    def flag(self, drop):
        return self.training and drop.training


class Either(Children):
    def flag(self, drop):
        return self.training or drop.training


class Unregistered(Children):
    def __init__(self):
        super().__init__()
        self.hidden = [nn.Dropout()]

    def flag(self, _):
        return self.hidden[0].training


def logits_and_state(network, mode):
    """Modes differ between modules, as where normalisation is frozen."""
    network = copy.deepcopy(network)
    network.train(mode != "evaluation")
    if mode == "frozen":
        network.blocks[0].norm.eval()
    torch.manual_seed(0)
    return network(IMAGES), network.state_dict()


@pytest.mark.parametrize("converted_in", [True, False])
def test_flags_of_children_are_followed(converted_in, tmp_path):
    model = Net(Children()).train(converted_in)
    made = feynman_kac(model, members=1, noise=0.0, example=IMAGES)
    assert model.blocks[0].norm.training == converted_in
    save_model(made, tmp_path / "a.safetensors")
    loaded = load_model(tmp_path / "a.safetensors", network=Net(Children()).train(converted_in))
    for one in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made)), loaded):
        for mode in ("training", "evaluation", "frozen"):
            logits, state = logits_and_state(one.members[0].network, mode)
            expected, wanted = logits_and_state(model, mode)
            assert torch.equal(logits, expected), mode
            for name, value in wanted.items():
                assert torch.equal(value, state[name]), (mode, name)


@pytest.mark.parametrize("kind", [Both, Either])
def test_functions_of_two_flags_are_refused(kind):
    with pytest.raises(ValueError, match="differs between training and evaluation"):
        find_residuals(Net(kind()), example=IMAGES)


def test_the_flag_of_a_module_that_is_not_registered_is_refused():
    with pytest.raises(ValueError, match=r"asks a Dropout that is none of its parts.*blocks="):
        find_residuals(Net(Unregistered()), example=IMAGES)


def test_what_was_read_of_a_child_cannot_change_in_silence():
    made = feynman_kac(Net(Children()), members=1, noise=0.0, example=IMAGES)
    for one in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        drop = one.members[0].network.blocks[0].parts[0]
        drop.p = 0.1
        with pytest.raises(ValueError, match=r"parts\.0\.p of Children must stay 0\.5, found 0\.1"):
            one(IMAGES)
        drop.p = 0.5
        assert one(IMAGES).shape == (4, 4)
    assert "__getattribute__" not in vars(nn.Module)  # which is watched only during a trace


class Sly(Children):
    """Does something in training that no trace sees."""

    def __init__(self, way="answer"):
        super().__init__()
        self.way = way
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.training and not isinstance(x, torch.fx.Proxy):
            if self.way == "answer":
                x = x.flip(0)
            else:
                self.count += 1
        return super().forward(x)


class Draws(nn.Module):
    """Is not repeatable in training: its numbers come from the system."""

    def forward(self, x):
        if self.training:
            x = x * random.SystemRandom().random()
        return x


@pytest.mark.parametrize(
    ("way", "words"), [("answer", "answers"), ("count", "changes its buffers")]
)
def test_what_a_trace_does_not_see_in_training_is_refused(way, words):
    message = rf"in training mode Net {words} otherwise.*blocks=\[.*Sly"
    model = Net(Sly(way))
    with pytest.raises(ValueError, match=message):
        feynman_kac(model, example=IMAGES)
    assert feynman_kac(model, members=1, blocks=[Sly], example=IMAGES).training
    assert not any(buffer.any() for name, buffer in model.named_buffers() if "mean" in name)


def test_what_cannot_be_compared_in_training_is_converted():
    for model, images in ((Net(Children(), Draws()), IMAGES), (Net(Children()), IMAGES[:1])):
        if len(images) == 1:  # normalisation of one value fails in training
            model.stem.stride = (16, 16)
        assert feynman_kac(model, members=1, example=images).training


def test_generators_of_the_network_stand_where_they_stood():
    generator = torch.Generator().manual_seed(0)

    class Own(nn.Module):
        def forward(self, x):
            return x * torch.rand((), generator=generator) if self.training else x

    before = generator.get_state()
    feynman_kac(Net(Children(), Own()), members=1, example=IMAGES)
    assert torch.equal(generator.get_state(), before)


class Checkpointed(Net):
    """Runs its blocks again in the backward pass, to save memory."""

    again = True
    reentrant = False

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) if self.again else block(x)
        return self.head(x.mean(dim=(2, 3)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x).tanh()


class TestGradientCheckpointing:
    """Its second pass would have other noise than the first."""

    def test_it_is_refused(self):
        with pytest.raises(ValueError, match="would meet other noise there.*set_recompute"):
            feynman_kac(Checkpointed(Residual(), Residual()))

    def test_where_it_hides_the_blocks_from_autograd_the_reason_is_said(self):
        network = Checkpointed(Residual(), Residual())
        network.reentrant = True
        with pytest.raises(ValueError, match="gradient checkpointing with use_reentrant=True"):
            feynman_kac(network)

    def test_switched_on_later_it_is_an_error(self):
        network = Checkpointed(Residual(), Residual())
        network.again = False
        made = feynman_kac(network, members=2, noise=0.3)
        made(IMAGES).sum().backward()
        for member in made.members:
            member.network.again = True
        logits = made(IMAGES)
        with pytest.raises(RuntimeError, match="Turn gradient checkpointing off"):
            logits.sum().backward()
        with without_noise(made):  # the same function twice
            made(IMAGES).sum().backward()

    def test_our_own_way_to_save_memory_repeats_the_noise(self):
        made = feynman_kac(Net(Residual(), Residual()), members=2, noise=0.3)
        found = []
        for recompute in (False, True):
            set_recompute(made, recompute)
            seed_noise(made, seeded(1))
            point = IMAGES.clone().requires_grad_()
            found += [torch.autograd.grad(made(point).square().sum(), point)[0]]
        torch.testing.assert_close(*found)
