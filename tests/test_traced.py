"""Networks that are not ours, on the fast path: the same function, or called as they are."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.attacks import IFGSM
from enresnet.models import Normalized, feynman_kac, set_noise, using_noise
from enresnet.models.frozen import FrozenCall, frozen, traced
from enresnet.models.frozen.comparison import weights_digest
from enresnet.models.frozen.fuse_graph import FusedConvolution
from problems import seeded
from traced_networks import IMAGES, LABELS, NETWORKS, Gated, Net, PostActivation, trained

pytestmark = pytest.mark.usefixtures("same_weights")


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_same_function_with_the_same_gradient(name):
    model = trained(NETWORKS[name]())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with frozen(model, few=IMAGES[:3]) as call:
        assert isinstance(call, FrozenCall)
        assert call.deterministic
        assert call.independent
        assert 0 <= call.slack < 1e-3
        points = [IMAGES.clone().requires_grad_() for _ in range(2)]
        results = [call(points[0]), model(points[1])]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
        gradients = [
            torch.autograd.grad(functional.cross_entropy(result, LABELS), point)[0]
            for result, point in zip(results, points, strict=True)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_batch_norm_is_gone_after_a_convolution():
    model = trained(NETWORKS["post-activation"]())
    with frozen(model, few=IMAGES) as call:
        call(IMAGES)
        (graph,) = (fold.whole for fold in call._known.folds.values())
    kinds = [type(module) for module in graph.modules()]
    assert nn.BatchNorm2d not in kinds
    assert kinds.count(nn.Conv2d) + kinds.count(FusedConvolution) == 5


def test_second_derivatives_are_those_of_the_network():
    network = trained(NETWORKS["post-activation"]())
    found = []
    with frozen(network, few=IMAGES) as call:
        for function in (network, call):
            x = IMAGES.clone().requires_grad_()
            (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert found[0].abs().max() > 0
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_a_network_is_followed_under_autocast_as_in_training():
    model = trained(NETWORKS["post-activation"]())
    with torch.autocast("cpu", torch.bfloat16), frozen(model, few=IMAGES) as call:
        assert isinstance(call, FrozenCall)
        assert call.slack < 1e-3
        assert call.holds_in_bfloat16()
        torch.testing.assert_close(call(IMAGES).float(), model(IMAGES).float(), rtol=0.1, atol=0.1)


class Scaled(PostActivation):
    scale, parts = 1.0, (1,)

    def forward(self, x):
        return super().forward(x) * self.scale * self.parts[0]


def test_a_network_is_traced_once_and_again_when_it_is_built_otherwise(monkeypatch):
    """In training it is attacked in every step, with other weights."""
    traces = []
    original = traced.trace
    monkeypatch.setattr(traced, "trace", lambda n: traces.append(n) or original(n))
    model = trained(Net(Scaled(), PostActivation()))

    def is_followed():
        with frozen(model, few=IMAGES) as call, torch.no_grad():
            torch.testing.assert_close(call(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)
            return isinstance(call, FrozenCall)

    def weights():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)

    def hook():
        model.blocks[1].register_forward_hook(lambda *_: None)

    changes = {
        "nothing": (lambda: None, 1),
        "weights": (weights, 1),
        "an attribute": (lambda: setattr(model.blocks[0], "scale", 2.0), 2),
        "a tuple": (lambda: setattr(model.blocks[0], "parts", (3,)), 3),
        "a module": (lambda: model.blocks.__setitem__(1, trained(Gated())), 4),
        "the mode of a part": (lambda: setattr(model.drop, "p", 0.1), 5),
    }
    assert is_followed()
    for name, (change, times) in changes.items():
        change()
        assert is_followed(), name
        assert len(traces) == times, name
    hook()
    assert not is_followed()


def test_weights_of_the_moment():
    model = trained(NETWORKS["post-activation"]())
    for _ in range(2):
        with frozen(model, few=IMAGES) as call, torch.no_grad():
            torch.testing.assert_close(call(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            model.head.weight.mul_(2)


def test_images_that_meet_in_the_network_are_noticed():
    class Centred(PostActivation):
        def forward(self, x):
            return super().forward(x - x.mean(dim=0, keepdim=True))

    with frozen(trained(Net(Centred())), few=IMAGES) as call:
        assert call.deterministic
        assert not call.independent


def test_without_images_to_try_it_on_it_is_called_as_it_is():
    model = trained(NETWORKS["post-activation"]())
    with frozen(model) as call:
        assert not isinstance(call, FrozenCall)


def test_short_attacks_do_not_trace(monkeypatch):
    monkeypatch.setattr(traced, "trace", lambda _: pytest.fail("traced"))
    IFGSM(steps=9, eot=1)(trained(NETWORKS["post-activation"]()), IMAGES, LABELS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_other_types_of_numbers(dtype):
    model = trained(NETWORKS["post-activation"]()).to(dtype)
    attacked = IFGSM(steps=10)(model, IMAGES.to(dtype), LABELS)
    assert attacked.dtype == dtype


class TestNoise:
    def noisy(self, **options):
        torch.manual_seed(0)
        return feynman_kac(
            trained(NETWORKS["post-activation"]()),
            members=2,
            noise=0.2,
            generator=seeded(),
            **options,
        ).eval()

    def test_what_comes_before_the_first_noise_is_shared(self):
        model = self.noisy()
        with frozen(model, few=IMAGES) as call:
            assert not call.deterministic
            assert call.independent
            with torch.no_grad():
                states = call.before_noise(IMAGES)
                assert len(states) == 2  # one a member
                draws = torch.stack([call.after_noise(list(states)) for _ in range(300)])
                plain = torch.stack([model(IMAGES) for _ in range(300)])
        assert draws.std(dim=0).min() > 0
        error = 5 * (plain.var(dim=0) / 300 + draws.var(dim=0) / 300).sqrt()
        assert ((draws.mean(dim=0) - plain.mean(dim=0)).abs() < error).all()
        torch.testing.assert_close(draws.std(dim=0), plain.std(dim=0), rtol=0.3, atol=0.01)

    def test_draws_that_go_together_are_different(self):
        model = self.noisy()
        with frozen(model, few=IMAGES) as call, torch.no_grad():
            states = [torch.cat([state] * 2) for state in call.before_noise(IMAGES)]
            one, two = call.after_noise(states).chunk(2)
        assert not torch.equal(one, two)

    def test_the_noise_of_the_moment(self):
        model = self.noisy()
        with frozen(model, few=IMAGES) as call, torch.no_grad():
            with using_noise(model, 0.0):
                assert call.deterministic
                assert torch.equal(call(IMAGES), call(IMAGES))
            assert not torch.equal(call(IMAGES), call(IMAGES))
        set_noise(model, 0.0)
        with frozen(model, few=IMAGES) as call:
            assert call.deterministic

    def test_seeds_fix_attacks(self):
        results = []
        for _ in range(2):
            model = self.noisy()
            results.append(IFGSM(steps=5, eot=3)(model, IMAGES, LABELS, seed=1))
        assert torch.equal(*results)

    def test_noise_over_the_batch_is_not_independent(self):
        with frozen(self.noisy(std_over="batch"), few=IMAGES) as call:
            assert not call.independent

    def test_behind_a_normalisation(self):
        model = Normalized(self.noisy(), mean=(0.5,) * 3, std=(0.2,) * 3)
        with frozen(model, few=IMAGES) as call, torch.no_grad():
            assert len(call.before_noise(IMAGES)) == 2
            with using_noise(model, 0.0):
                torch.testing.assert_close(call(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)


class TestBfloat16:
    def test_where_answers_hold(self):
        with frozen(trained(NETWORKS["post-activation"]()), few=IMAGES) as call:
            assert call.holds_in_bfloat16()
            with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
                assert call(IMAGES).dtype == torch.float32  # logits keep their bits

    def test_where_they_do_not(self):
        class Cancels(nn.Module):
            """A small difference of large numbers."""

            def __init__(self):
                super().__init__()
                self.head = nn.Linear(432, 4)

            def forward(self, x):
                y = x.flatten(1)
                return self.head(1000 * ((y + 1000) - 1000))

        with frozen(Cancels().eval(), few=IMAGES) as call:
            assert isinstance(call, FrozenCall)
            assert not call.holds_in_bfloat16()


def test_what_is_made_of_weights_alone_is_no_state():
    class Scaled(PostActivation):
        def __init__(self):
            super().__init__()
            self.gamma = nn.Parameter(torch.rand(8))

        def forward(self, x):
            return x + super().forward(x) * self.gamma.reshape(1, -1, 1, 1)

    model = feynman_kac(trained(Net(Scaled(), Scaled())), members=1, noise=0.2, example=IMAGES)
    with frozen(model.eval(), few=IMAGES) as call, torch.no_grad():
        states = call.before_noise(IMAGES)
        assert {len(state) for state in states} == {len(IMAGES)}


@pytest.mark.filterwarnings("ignore:.*quantize")  # torch is about to drop such types
def test_weights_of_every_type_have_a_digest():
    network = nn.Linear(2, 2).half()
    network.register_buffer("count", torch.tensor(3))
    network.register_buffer("phase", torch.tensor([3 + 4j]), persistent=False)
    network.register_buffer("mask", torch.tensor([True, True]))
    quantized = torch._empty_affine_quantized([2], scale=0.5, zero_point=0, dtype=torch.qint8)
    network.register_buffer("codes", quantized.copy_(torch.ones(2)))
    network.register_buffer("sparse", torch.eye(2).to_sparse())
    digests = [weights_digest(network), weights_digest(network)]
    assert digests[0] == digests[1]
    for name in ("weight", "count", "phase", "mask"):
        value = getattr(network, name).data
        value.copy_(~value if name == "mask" else -value)
        digests.append(weights_digest(network))
    network.codes.copy_(torch.zeros(2))
    digests.append(weights_digest(network))
    assert len(set(digests)) == 6
