"""A converted network in training mode is the network in training mode, or is refused in words."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet import load_model, save_model
from enresnet.models import feynman_kac, find_residuals
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

    def flag(self, drop):
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
