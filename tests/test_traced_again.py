"""Networks that were attacked before, and are not what they were then."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.attacks import IFGSM, PGD, Square
from enresnet.models.frozen import FrozenCall, frozen, trace_graph
from enresnet.models.frozen.traced import RECHECKED, TracedNetwork
from problems import random_problem

IMAGES, LABELS = random_problem((8, 3, 8, 8), classes=5)
LIMIT = [100.0]  # what a forward may read beside its network's attributes


class Meets(nn.Module):
    """Images meet by shares of 0 as long as it is fresh, as where a branch starts at 0."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 16, 3, padding=1)
            self.head = nn.Linear(16, 5)
        self.share = nn.Parameter(torch.zeros(16, 1, 1))

    def forward(self, x):
        features = functional.relu(self.conv(x))
        features = features + self.share * features.mean(dim=0, keepdim=True)
        return self.head(functional.relu(features).mean(dim=(2, 3)))


@pytest.mark.parametrize("autocast", [False, True])
def test_images_that_meet_once_weights_have_changed_stay_together(autocast):
    network = Meets().eval()
    for share, meets in ((0.0, False), (-1.0, True), (-1.0, True)):
        network.share.data.fill_(share)  # which autograd's counter of changes does not see
        with frozen(network, few=IMAGES) as call:
            assert call.separable is not meets
    network.share.data.fill_(0.0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for _ in range(2):
            with frozen(network, few=IMAGES) as call:
                separable = call.separable
    assert separable


def test_a_change_that_keeps_all_sums_is_a_change():
    network, fresh = Meets().eval(), Meets().eval()
    attacks = [IFGSM(epsilon=0.1, steps=5, early_stop=True), Square(epsilon=0.1, steps=20)]
    for attack in attacks:
        attack(network, IMAGES, LABELS)
    for one in (network, fresh):
        one.share.data[::2], one.share.data[1::2] = 3.0, -3.0
    with frozen(network, few=IMAGES) as call:
        assert isinstance(call, FrozenCall)
        assert not call.separable
    for attack in attacks:
        one, two = (attack(each, IMAGES, LABELS, seed=0) for each in (network, fresh))
        assert torch.equal(one, two)


def test_training_in_bfloat16_does_not_ask_in_every_step(monkeypatch):
    asked, traced = [], []
    once = trace_graph._traced_once
    monkeypatch.setattr(TracedNetwork, "check_gradient", lambda *_: asked.append(1))
    monkeypatch.setattr(trace_graph, "_traced_once", lambda n: (traced.append(1), once(n))[1])
    network = Meets().eval()
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(RECHECKED + 1):
            with torch.no_grad():
                network.share.fill_(step)
            with frozen(network, few=IMAGES) as call:
                assert not call.separable
    assert len(asked) == 2  # at first and once more
    assert len(traced) == 3  # twice at first


class Kept:
    """An object that holds a number where nothing looks for it."""

    __slots__ = ("limit",)


def deeply(value):
    """Return a list in a list, and so on."""
    for _ in range(9):
        value = [value]
    return value


class Clamped(nn.Module):
    """At grey images one class wins; beyond a limit of its average the other rises steeply.

    The limit does not bind at the images themselves.
    """

    of_class = 100.0

    def __init__(self, where):
        super().__init__()
        self.halves = nn.Linear(192, 2, bias=False)
        half = (torch.arange(192) % 8 < 4).float() / 96
        self.halves.weight.data = torch.stack([half, 1 / 96 - half])
        self.where, self.of_object = where, Kept()
        self.of_list, self.of_array, self.inside = [0.0] * 1200, np.zeros(3), deeply(0.0)
        self.of_tensor = torch.zeros(40)
        self.register_buffer("of_buffer", torch.zeros(40))
        self.set(100.0)

    def set(self, limit):
        LIMIT[0] = type(self).of_class = self.of_object.limit = self.of_list[-1] = limit
        self.of_array[:] = limit
        for value in (self.of_tensor, self.of_buffer):
            value.data.fill_(limit)
        innermost = self.inside
        while isinstance(innermost[0], list):
            innermost = innermost[0]
        innermost[0] = limit

    def limit(self):
        found = self.inside
        while isinstance(found, list):
            found = found[0]
        return {
            "global": LIMIT[0],
            "class": self.of_class,
            "object with slots": self.of_object.limit,
            "long list": self.of_list[-1],
            "array": float(self.of_array.max()),
            "tensor": float(self.of_tensor.max()),
            "buffer": float(self.of_buffer.max()),
            "deep list": found,
        }[self.where]

    def forward(self, x):
        means = self.halves(x.flatten(1))
        left, right = means[:, :1], means[:, 1:]
        over = left - left.clamp(max=self.limit())
        other = left - 0.1 * right + 50 * over * right
        return torch.cat([0 * other + 1.8, other], dim=1)


@pytest.mark.parametrize(
    "where",
    ["global", "class", "object with slots", "long list", "array", "tensor", "buffer", "deep list"],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_numbers_that_a_forward_reads_may_change(where, autocast):
    images = 0.5 + 0.001 * torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(4, dtype=torch.long)
    network = Clamped(where).eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for attack in (
            IFGSM(epsilon=0.1, step_size=0.01, steps=20),
            PGD(epsilon=0.1, step_size=0.01, steps=20),
        ):
            for limit, holds in ((100.0, True), (0.55, False), (100.0, True)):
                network.set(limit)
                with frozen(network, few=images) as call:
                    assert isinstance(call, FrozenCall)
                answers = network(attack(network, images, labels, seed=0)).argmax(dim=1)
                assert bool((answers == labels).all()) is holds


def test_a_graph_that_can_be_followed_no_longer_is_called_as_it_is(caplog):
    class Branches(Meets):
        branch = False

        def forward(self, x):
            return super().forward(x) * (2 if type(self).branch and x.sum() > 0 else 1)

    network = Branches().eval()
    with frozen(network, few=IMAGES) as call:
        assert isinstance(call, FrozenCall)
    Branches.branch = True
    with caplog.at_level(logging.INFO), frozen(network, few=IMAGES) as call:
        assert not isinstance(call, FrozenCall)
        torch.testing.assert_close(call(IMAGES), network(IMAGES))
    assert "cannot be traced" in caplog.text
