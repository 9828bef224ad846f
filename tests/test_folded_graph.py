"""A traced network's copy is made once; later attacks give it the weights of the moment."""

import gc
import weakref

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from enresnet.models.frozen import FrozenCall, fold_graph, frozen, traced
from problems import random_problem, seeded

IMAGES, _ = random_problem((6, 3, 8, 8), classes=4)


class Network(nn.Module):
    """Every way in which weights reach the copy."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)  # with its BatchNorm and ReLU
        self.bn = nn.BatchNorm2d(16)
        self.alone = nn.BatchNorm2d(16)  # after a sum: it stays
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False)  # not fused
        self.folded = nn.BatchNorm2d(16)
        self.twice = nn.Conv2d(16, 16, 3, padding=1)  # in two places
        self.norm = nn.GroupNorm(4, 16)
        self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1)  # to 2 x 2 pixels
        self.small = nn.Conv2d(32, 32, 3, padding=1)  # a matrix
        self.scale = nn.Parameter(torch.ones(32, 1, 1))
        self.register_buffer("shift", torch.zeros(32, 1, 1))
        self.head = nn.Linear(32, 4)

    def forward(self, images):
        x = functional.relu(self.bn(self.stem(images)))
        x = self.alone(x + self.folded(self.grouped(x)))
        x = self.norm(x + self.twice(functional.relu(self.twice(x))))
        x = functional.relu(self.small(functional.relu(self.down(x))))
        return self.head((x * self.scale + self.shift).mean(dim=(2, 3)))


def change(network, seed):
    """Draw other weights and statistics, in place."""
    generator = seeded(seed)
    with torch.no_grad():
        for value in (*network.parameters(), *network.buffers()):
            if value.is_floating_point():
                value.add_(torch.rand(value.shape, generator=generator) * 0.2)


@pytest.fixture
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Network().eval()


@pytest.mark.parametrize("autocast", [False, True])
def test_it_has_the_weights_of_the_moment(network, autocast):
    for seed in range(3):
        change(network, seed)
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
            frozen(network, few=IMAGES) as call,
        ):
            assert isinstance(call, FrozenCall)
            point = IMAGES.clone().requires_grad_()
            logits = call(point).float()
            (gradient,) = torch.autograd.grad(logits[:, 0].sum(), point)
        point = IMAGES.clone().requires_grad_()
        expected = network(point)
        (own,) = torch.autograd.grad(expected[:, 0].sum(), point)
        close = 0.05 if autocast else 1e-4
        assert (logits - expected).norm() < close * expected.norm()
        assert (gradient - own).norm() < 4 * close * own.norm()


def test_every_weight_matters(network):
    """Each of them alone is changed, and the copy has it."""
    with frozen(network, few=IMAGES):
        pass
    for name, value in (*network.named_parameters(), *network.named_buffers()):
        if not value.is_floating_point():
            continue
        with torch.no_grad():
            value.add_(0.5)
        with frozen(network, few=IMAGES) as call:
            assert isinstance(call, FrozenCall), name
            torch.testing.assert_close(call(IMAGES), network(IMAGES), rtol=1e-3, atol=1e-3)


def test_what_was_computed_before_keeps_its_weights(network):
    """A gradient asked for after the next attack began is that of the weights it went through."""
    network = nn.Sequential(network.stem, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    point = IMAGES.clone().requires_grad_()
    with frozen(network, few=IMAGES) as call:
        before = call(point)
        (expected,) = torch.autograd.grad(network(point)[:, 0].sum(), point)
    change(network, 1)
    with frozen(network, few=IMAGES) as call:
        call(IMAGES)
        (gradient,) = torch.autograd.grad(before[:, 0].sum(), point)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_it_is_made_once(network, monkeypatch):
    made = []

    class Counted(fold_graph.FoldedGraph):
        def __init__(self, *arguments):
            made.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(traced, "FoldedGraph", Counted)
    for seed in range(4):
        change(network, seed)
        with frozen(network, few=IMAGES) as call:
            call(IMAGES)
    assert len(made) == 1


def graphs():
    return sum(issubclass(type(each), fx.GraphModule) for each in gc.get_objects())


def test_attacks_leave_no_garbage(network):
    """A graph refers to itself: what every step of a training made anew would pile up."""
    with frozen(network, few=IMAGES) as call:
        call(IMAGES)
    gc.collect()
    gc.disable()
    try:
        before = graphs()
        for seed in range(5):
            change(network, seed)
            with frozen(network, few=IMAGES) as call:
                call(IMAGES)
        assert graphs() == before
    finally:
        gc.enable()


def test_a_network_that_is_gone_is_forgotten():
    network = Network().eval()
    with frozen(network, few=IMAGES) as call:
        call(IMAGES)
    seen = weakref.ref(network)
    del network, call
    gc.collect()
    assert seen() is None


def counted(monkeypatch):
    """Return a list that grows with every comparison of answers."""
    asked = []
    check = traced.TracedNetwork.check_answers

    def counting(self, few):
        asked.append(len(few))
        check(self, few)

    monkeypatch.setattr(traced.TracedNetwork, "check_answers", counting)
    return asked


def test_answers_are_compared_in_every_evaluation(network, monkeypatch):
    asked = counted(monkeypatch)
    for _ in range(5):
        with frozen(network, few=IMAGES):
            pass
    assert len(asked) == 5


def test_in_reduced_training_they_are_compared_in_full_now_and_then(network, monkeypatch):
    asked = counted(monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(1 + 3 * traced.RECHECKED):
            with torch.no_grad():
                network.head.bias.add_(0.01)
            with frozen(network, few=IMAGES) as call:
                assert isinstance(call, FrozenCall)
    assert len(asked) == 4
