"""Networks that are not ours, on the fast path: the same function, or called as they are."""

import logging
import random
import re
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import enresnet
from enresnet.attacks import APGD, IFGSM, PGD, Square, Strongest
from enresnet.attacks.counting import Classifier
from enresnet.attacks.known_networks import is_batch_independent, is_deterministic
from enresnet.models import Normalized, feynman_kac, set_noise, using_noise
from enresnet.models.frozen import FrozenCall, frozen, traced
from enresnet.models.frozen.fuse_graph import FusedConvolution
from problems import random_problem, seeded

IMAGES, LABELS = random_problem((6, 3, 12, 12), classes=4)


class PostActivation(nn.Module):
    """As in torchvision: the activation comes after the addition, in place."""

    def __init__(self, width=8, groups=1, bias=False):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=bias)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=bias)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Gated(PostActivation):
    """Squeeze and excite."""

    def forward(self, x):
        gate = torch.sigmoid(x.mean(dim=(2, 3), keepdim=True))
        return x + self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x))))) * gate


class Dense(PostActivation):
    def forward(self, x):
        return torch.cat([x, self.bn1(self.conv1(x))], dim=1)[:, :8] + x


class Shared(PostActivation):
    """One convolution, two places: it cannot take up a BatchNorm."""

    def forward(self, x):
        return x + self.bn2(self.conv1(functional.gelu(self.bn1(self.conv1(x)))))


class Net(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*blocks)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        features = self.blocks(self.stem(images))
        return self.head(self.drop(functional.adaptive_avg_pool2d(features, 1).flatten(1)))


@pytest.fixture(autouse=True)
def _same_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def trained(model):
    """Return a network whose BatchNorm is not the identity."""
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if "running_var" in name:
                value.add_(torch.rand(value.shape))
            elif value.is_floating_point():
                value.add_(0.2 * torch.rand(value.shape) - 0.1)
    return model.eval()


NETWORKS = {
    "post-activation": lambda: Net(PostActivation(), PostActivation()),
    "groups and bias": lambda: Net(PostActivation(groups=2, bias=True)),
    "squeeze and excite": lambda: Net(Gated()),
    "concatenation": lambda: Net(Dense()),
    "shared convolution": lambda: Net(Shared()),
    "layer norm": lambda: Net(nn.GroupNorm(2, 8), nn.GELU(), PostActivation()),
}


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


class Branching(PostActivation):
    def forward(self, x):
        return x if float(x.detach().mean()) > 1e9 else super().forward(x)


class TorchNoise(PostActivation):
    def forward(self, x):
        return super().forward(x) + 0.1 * torch.randn_like(x)


class ConstantNoise(PostActivation):
    """Of a fixed shape, so that a tracer takes what it drew for a constant."""

    def forward(self, x):
        return super().forward(x) + 0.1 * torch.randn(8, 12, 12)


class PythonNoise(PostActivation):
    def forward(self, x):
        return super().forward(x) * (1 + random.random())


class Dice(PostActivation):
    """One of two networks, by chance."""

    def forward(self, x):
        return super().forward(x) if random.random() < 0.5 else x


class Counting(PostActivation):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Listing(PostActivation):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return super().forward(x)


class RareDice(PostActivation):
    """Another network, so seldom that a few calls may not meet it."""

    def forward(self, x):
        return super().forward(x) if random.random() < 0.9 else super().forward(0 * x)


class NumpyDice(PostActivation):
    def forward(self, x):
        draw = np.random.rand()  # noqa: NPY002
        return super().forward(x) if draw < 0.999 else x


class OwnDice(PostActivation):
    def __init__(self):
        super().__init__()
        self._dice = random.Random(0)

    def forward(self, x):
        return super().forward(x) if self._dice.random() < 0.999 else x


class Late(PostActivation):
    """Turns its answer round after 20 calls, which it counts where nobody looks."""

    def __init__(self):
        super().__init__()
        self._calls, self.listed, self.named = 0, [0], {"calls": [0]}
        self.register_buffer("counted", torch.tensor(0))
        self._tensor = torch.zeros(())

    def sign(self):
        raise NotImplementedError

    def forward(self, x):
        return super().forward(x) if self.sign() < 20 else -super().forward(x)


class LatePrivate(Late):
    def sign(self):
        self._calls += 1
        return self._calls


class LateList(Late):
    def sign(self):
        self.listed[0] += 1
        return self.listed[0]


class LateNested(Late):
    def sign(self):
        self.named["calls"][0] += 1
        return self.named["calls"][0]


class LateBuffer(Late):
    def sign(self):
        self.counted += 1
        return float(self.counted)


class LateTensor(Late):
    def sign(self):
        self._tensor.add_(1)
        return float(self._tensor)


class NeverOff(PostActivation):
    def forward(self, x):
        return functional.dropout(super().forward(x), 0.5, training=True)


class Silent(PostActivation):
    """Changes what it was given and says nothing of it."""

    def forward(self, x):
        y = self.conv1(x)
        y.add_(1.0)
        return x + self.bn1(y)


FILE_DICE, FILE_COUNT = random.Random(0), [0]


def scale():
    return 0.5 if FILE_DICE.random() < 1e-9 else 1.0


class FileDice(PostActivation):
    """Draws, by another function, from a generator of its file."""

    def forward(self, x):
        return super().forward(x) * scale()


class FileCount(PostActivation):
    def forward(self, x):
        FILE_COUNT[0] += 1
        return super().forward(x) * (1 if FILE_COUNT[0] < 10**6 else 0)


class Clock(PostActivation):
    def forward(self, x):
        return super().forward(x) * (1 if time.time() > 0 else 0)


class Entropy(PostActivation):
    def forward(self, x):
        import os

        return super().forward(x) * (1 if os.urandom(1) else 0)


class HalfBlind(PostActivation):
    """A part without gradient, which a graph would not know."""

    def forward(self, x):
        with torch.no_grad():
            gate = torch.sigmoid(self.conv1(x))
        return super().forward(x) * gate


class Exact(PostActivation):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


class Hooked(PostActivation):
    def __init__(self):
        super().__init__()
        self.conv1.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Branching, "cannot be traced"),
        (TorchNoise, "randn_like"),
        (ConstantNoise, "draws random numbers"),
        (PythonNoise, "draws random numbers"),
        (Dice, "draws random numbers"),
        (RareDice, "draws random numbers"),
        (NumpyDice, "draws random numbers"),
        (OwnDice, "forward of OwnDice changes the module"),
        (LatePrivate, "forward of LatePrivate changes the module"),
        (LateList, "changes the module"),
        (LateNested, "changes the module"),
        (LateBuffer, "changes the module"),
        (LateTensor, "changes the module"),
        (Counting, "changes the module"),
        (Listing, "changes the module"),
        (NeverOff, "dropout that is never off"),
        (Silent, "not used"),
        (FileDice, "draws random numbers"),
        (FileCount, "changes FILE_COUNT, which its file holds"),
        (Clock, "reads the clock or the system's entropy .time.time"),
        (Entropy, "reads the clock or the system's entropy .os.urandom"),
        (HalfBlind, "switches autograd off for a part"),
        (Exact, "switches autocast for a part"),
        (Hooked, "hooks"),
    ],
)
def test_what_may_be_another_function_is_called_as_it_is(block, reason, caplog, monkeypatch):
    monkeypatch.setattr(traced, "_said", set())
    random.seed(3)
    model = trained(Net(block()))
    with caplog.at_level(logging.INFO, "enresnet"):
        for _ in range(2):
            with frozen(model, few=IMAGES) as call:
                assert not isinstance(call, FrozenCall)
                assert not is_deterministic(model, call)
                assert not is_batch_independent(model, call)
    (record,) = caplog.records  # once
    assert "attacks call Net as it is, which is slower" in record.message
    assert re.search(reason, record.message)
    assert getattr(model.blocks[0], "calls", 0) == 0
    assert not getattr(model.blocks[0], "seen", [])
    assert float(getattr(model.blocks[0], "counted", 0)) == 0  # tracing left the buffer alone
    assert not any(name.startswith("_tensor_constant") for name in vars(model))
    IFGSM(steps=10)(model, IMAGES, LABELS)


def test_a_gradient_that_is_not_the_networks_is_noticed(caplog, monkeypatch):
    monkeypatch.setattr(traced, "_said", set())
    monkeypatch.setattr(traced, "switched_mode", lambda *_: "")
    with caplog.at_level(logging.INFO, "enresnet"), frozen(trained(Net(HalfBlind())), few=IMAGES):
        assert "its gradient differs once it is traced" in caplog.text


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


EPSILON = 0.008
ATTACKS = {
    "ifgsm": lambda **o: IFGSM(epsilon=EPSILON, steps=20, **o),
    "pgd": lambda **o: PGD(epsilon=EPSILON, steps=20, restarts=2, **o),
    "apgd": lambda **o: APGD(epsilon=EPSILON, steps=20, **o),
    "targeted apgd": lambda **o: APGD(epsilon=EPSILON, steps=20, loss="targeted_dlr", **o),
}


MEETING = {name: partial(attack, early_stop=True) for name, attack in ATTACKS.items()} | {
    "restarts": lambda: PGD(epsilon=EPSILON, steps=5, restarts=4),
    "targets": lambda: APGD(epsilon=EPSILON, steps=5, loss="targeted_dlr"),
    "square": lambda: Square(epsilon=EPSILON, steps=20),
    "strongest": lambda: Strongest(epsilon=EPSILON, budget=100),
}


class TestEarlyStop:
    """Of images that a deterministic model gets wrong."""

    def problem(self):
        images, labels = random_problem((60, 3, 12, 12), classes=4, seed=1)
        model = trained(NETWORKS["post-activation"]())
        with torch.no_grad():  # labels that it mostly gets right
            model.head.bias.sub_(model(images).mean(dim=0))
            right = model(images).argmax(dim=1)
        return model, images, torch.where(torch.arange(60) < 55, right, labels)

    @pytest.mark.parametrize("precision", ["32", "bf16"])
    @pytest.mark.parametrize("name", ATTACKS)
    def test_the_same_accuracy_with_fewer_gradients(self, name, precision):
        model, images, labels = self.problem()
        kept = []
        for early in (False, True):
            attack = ATTACKS[name](early_stop=early, precision=precision)
            result = attack.run(model, images, labels, seed=0)
            assert (result.images - images).abs().max() <= EPSILON
            with torch.no_grad():
                right = (model(result.images).argmax(dim=1) == labels).sum().item()
            kept.append((right, result.gradients))
        (whole, all_gradients), (early, fewer) = kept
        assert 5 < whole < 50
        assert abs(early - whole) <= 1
        assert fewer < 0.95 * all_gradients

    def test_images_that_are_wrong_already_stay(self):
        model, images, labels = self.problem()
        with torch.no_grad():
            wrong = model(images).argmax(dim=1) != labels
        assert wrong.any()
        attacked = ATTACKS["ifgsm"](early_stop=True)(model, images, labels)
        assert torch.equal(attacked[wrong], images[wrong])

    def test_a_model_that_may_be_random_is_attacked_to_the_end(self):
        model, images, labels = self.problem()
        results = [
            ATTACKS["ifgsm"](early_stop=early).run(lambda x: model(x), images, labels)
            for early in (False, True)
        ]
        assert torch.equal(results[0].images, results[1].images)
        assert results[0].gradients == results[1].gradients

    @pytest.mark.parametrize("wrapped", [False, True], ids=["module", "function"])
    @pytest.mark.parametrize("name", MEETING)
    def test_none_leaves_a_batch_whose_images_meet(self, name, wrapped, monkeypatch):
        class Centred(PostActivation):
            def forward(self, x):
                return super().forward(x - 0.1 * x.mean(dim=0, keepdim=True))

        images, labels = random_problem((8, 3, 12, 12), classes=4, seed=1)
        model = trained(Net(Centred()))
        with torch.no_grad():
            labels[2:] = model(images).argmax(dim=1)[2:]
        sizes = []
        checked = Classifier.checked
        monkeypatch.setattr(
            Classifier,
            "checked",
            lambda self, logits, n, **k: sizes.append(n) or checked(self, logits, n, **k),
        )
        given = (lambda x: model(x)) if wrapped else model
        MEETING[name]()(given, images, labels, seed=0)
        # A few images are asked about, whether they meet and whether answers stay the same.
        assert set(sizes) <= {8, *((3, 4) if name in ("square", "strongest") else ())}
        assert sizes.count(8) > 10

    def test_settings_tell_of_it_where_there_is_one(self):
        assert "early_stop" not in IFGSM().settings()
        assert IFGSM(early_stop=True).settings()["early_stop"] is True
        assert "early_stop=True" in repr(PGD(early_stop=True))

    def test_by_name(self):
        assert enresnet.create_attack("pgd10", early_stop=True).early_stop
        with pytest.raises(TypeError, match="early_stop must be True or False, found 1"):
            IFGSM(early_stop=1)
        with pytest.raises(TypeError, match="early_stop is not an option of fgsm"):
            enresnet.create_attack("fgsm", early_stop=True)


def test_square_asks_once_a_step_of_a_network_that_it_can_follow():
    model = trained(NETWORKS["post-activation"]())
    with torch.no_grad():
        labels = model(IMAGES).argmax(dim=1)
    attack = Square(epsilon=1e-4, steps=30)
    known = attack.run(model, IMAGES, labels, seed=0)
    asked = attack.run(lambda x: model(x), IMAGES, labels, seed=0)
    assert known.evaluations == 31 * len(IMAGES)
    assert asked.evaluations > 60 * len(IMAGES)


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
