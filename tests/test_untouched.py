"""Attacks leave the model as it was, whatever it hides in and whatever happens."""

import functools
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import enresnet
from enresnet.attacks import FGSM, PGD, RandomNoise
from enresnet.attacks.determinism import looks_deterministic
from enresnet.models.frozen import frozen
from problems import SmallNet, assert_same_state, every_attack, random_problem, seeded, snapshot


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.integers(0, len(every_attack()) - 1),
    st.integers(0, 99),
    st.booleans(),
)
def test_the_model_is_as_it_was(shape, dtype, number, seed, training):
    attack = every_attack()[number]
    model = SmallNet(channels=shape[1], noise=0.1).to(dtype).train(training)
    model.bn.train(not training)  # a mixture of flags, as in fine-tuning
    model.conv.weight.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = snapshot(model)
    images, labels = random_problem(shape, seed=seed)
    attack(model, images.to(dtype), labels)
    assert_same_state(before, snapshot(model))


@pytest.mark.parametrize("attack", every_attack(), ids=repr)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_model_is_as_it_was_when_the_attack_fails(attack, error, wrapped):
    calls = []

    class Broken(SmallNet):
        def forward(self, images):
            if isinstance(images, torch.Tensor):  # not where its forward is only followed
                calls.append(1)
            if len(calls) == min(2, attack.passes):
                raise error("stop")
            return super().forward(images)

    model = Broken().train()
    model.bn.eval()
    before = snapshot(model)
    with pytest.raises(error, match="stop"):
        attack((lambda x: model(x)) if wrapped else model, *random_problem())
    assert_same_state(before, snapshot(model))


class Trainer:
    """A plain object that holds a network, as users have them."""

    __slots__ = ("inner",)

    def __init__(self, net):
        self.inner = types.SimpleNamespace(nets={"one": [net]})

    def predict(self, images):
        return next(net(images) for net in self.inner.nets["one"])

    __call__ = predict


WRAPPERS = {
    "closure": lambda net: lambda x: net(x),
    "bound method of the network": lambda net: net.forward,
    "bound method of an object": lambda net: Trainer(net).predict,
    "callable object": lambda net: Trainer(net),
    "partial": lambda net: functools.partial(lambda f, x: f(x), net),
    "namespace": lambda net: (lambda space: lambda x: space.net(x))(types.SimpleNamespace(net=net)),
    "nested function": lambda net: lambda x: (lambda: [net(x) for _ in range(1)])()[0],
}


@pytest.mark.parametrize("attack", every_attack(), ids=repr)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_network_inside_a_callable_is_as_it_was(attack, wrapper):
    model = SmallNet().train()
    model.head.weight.requires_grad_(False)
    before = snapshot(model)
    attack(WRAPPERS[wrapper](model), *random_problem())
    assert_same_state(before, snapshot(model))


class DropsAlways(SmallNet):
    """Dropout, and statistics of the batch, at test time too."""

    def train(self, mode=True):
        super().train(mode)
        self.dropout.train()
        self.bn.train()
        return self


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_networks_own_evaluation_mode_is_respected(wrapped):
    net = DropsAlways().eval()
    model = (lambda x: net(x)) if wrapped else net
    before = snapshot(net)
    images, labels = random_problem((6, 3, 8, 8))
    with frozen(model, few=images) as call:
        assert not torch.equal(call(images), call(images))
    assert not looks_deterministic(model, images)
    PGD(steps=3)(model, images, labels)
    result = enresnet.evaluate(model, (images, labels), ["fgsm"], epsilon=0.1, draws=3)
    assert result.rows()[0]["draws"] == 3
    after = snapshot(net)
    after["rng"] = before["rng"]  # dropout draws
    assert_same_state(before, after)


def test_only_the_attackers_thread_is_frozen():
    """The hook that finds modules inside a callable is global; another thread's must not notice."""
    import threading

    bystander, flags = nn.Dropout(0.5), []

    def model(images):
        thread = threading.Thread(
            target=lambda: (bystander(torch.ones(1)), flags.append(bystander.training))
        )
        thread.start()
        thread.join()
        return images.flatten(1)[:, :4] * 1.0

    FGSM(eot=1)(model, *random_problem())
    assert flags == [True]


def test_a_model_made_in_inference_mode_is_as_it_was():
    with torch.inference_mode():
        model = SmallNet()
    RandomNoise(generator=seeded())(model, *random_problem())
    assert all(parameter.requires_grad for parameter in model.parameters())
