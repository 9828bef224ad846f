"""The explicit fast path: which networks have one, and that it says what the network says."""

import types

import pytest
import torch
from torch import nn
from torch.nn.modules import module

from enresnet.attacks import FGSM, IFGSM
from enresnet.attacks.known_networks import (
    is_batch_independent,
    is_deterministic,
    is_separable,
    our_network,
)
from enresnet.models import (
    Ensemble,
    NoiseInjection,
    Normalized,
    create_model,
    seed_noise,
    using_noise,
)
from enresnet.models.frozen import FrozenEnsemble, FrozenResNet, frozen
from enresnet.models.noise import noise_modules
from problems import random_problem, seeded


def _set(place, name):
    """Return what wraps a part of a network in a Sequential."""

    def change(model):
        owner = model.get_submodule(place)
        setattr(owner, name, nn.Sequential(getattr(owner, name)))

    return change


SURGERY = {
    "classifier": lambda m: setattr(
        m, "classifier", nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10))
    ),
    "stem": _set("", "stem"),
    "bn": _set("", "bn"),
    "convolution": _set("stages.0.0", "conv1"),
    "shortcut": _set("stages.1.0", "shortcut"),
    "noise": lambda m: setattr(m.stages[0][0], "noise", nn.Sequential()),
    "one more layer": lambda m: m.stages[0].append(nn.Conv2d(16, 16, 1, bias=False)),
    "stages": lambda m: setattr(m, "stages", nn.ModuleList([nn.Sequential(*m.stages)])),
}


def is_fast(model):
    """Return whether the model has a fast path."""
    with frozen(model) as call:
        if isinstance(call, FrozenEnsemble):
            return all(isinstance(member, FrozenResNet) for member in call.members)
        return isinstance(call, FrozenResNet)


@pytest.mark.parametrize("name", ["resnet8", "en1_resnet8", "en2_resnet11", "wrn10_2"])
class TestFrozen:
    def networks(self, name, **options):
        """Return a network with statistics of its own."""
        model = create_model(name, generator=seeded(), **options)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.running_mean.normal_(0, 0.3, generator=seeded(1))
                    module.running_var.uniform_(0.5, 2, generator=seeded(2))
                    module.weight.uniform_(0.5, 1.5, generator=seeded(3))
                    module.bias.normal_(0, 0.3, generator=seeded(4))
        return model.eval()

    @pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 16), (3, 9)])
    def test_it_gives_the_same_logits_and_gradients(self, name, channels, size):
        model = self.networks(name, in_channels=channels)
        images = torch.rand(4, channels, size, size, generator=seeded(5))
        with using_noise(model, 0.0):
            results = []
            with frozen(model) as call:
                for way in (model, call):
                    leaf = images.clone().requires_grad_()
                    logits = way(leaf)
                    (gradient,) = torch.autograd.grad(logits.square().sum(), leaf)
                    results.append((logits.detach(), gradient))
        (plain, plain_gradient), (fast, fast_gradient) = results
        torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-4)
        error = (fast_gradient - plain_gradient).norm() / plain_gradient.norm()
        assert error < 1e-2

    def test_noise_has_the_same_law(self, name):
        model, images = self.networks(name), torch.rand(1, 3, 16, 16, generator=seeded(5))
        if "en" not in name[:2]:
            pytest.skip("a network without noise")
        seed_noise(model, seeded())
        with frozen(model) as call, torch.no_grad():
            plain, fast = (way(images.expand(2000, -1, -1, -1)) for way in (model, call))
        error = plain.std(dim=0) / 2000**0.5
        assert ((plain.mean(dim=0) - fast.mean(dim=0)).abs() < 7 * error).all()
        ratio = plain.std(dim=0) / fast.std(dim=0)
        torch.testing.assert_close(ratio, torch.ones(10), rtol=0, atol=0.1)

    def test_the_gradient_is_that_of_the_same_noise(self, name):
        """Against the slope of the loss along the gradient, the draws held fast."""
        model = self.networks(name)
        images = torch.rand(3, 3, 16, 16, generator=seeded(5))

        def loss(x):
            seed_noise(model, seeded(6))
            return call(x).double().square().sum()

        with using_noise(model, 0.3 if name.startswith("en") else 0.0), frozen(model) as call:
            leaf = images.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(leaf), leaf)
            step = 1e-3 * gradient / gradient.norm()
            slope = (loss(images + step) - loss(images - step)) / 2e-3
        assert float(slope / gradient.norm()) == pytest.approx(1, abs=0.02)

    def test_each_block_has_the_weights_of_its_moment(self, name):
        model, images = self.networks(name), torch.rand(2, 3, 16, 16, generator=seeded(5))

        def answers():
            with frozen(model) as call, torch.no_grad():
                return call(images)

        with using_noise(model, 0.0):
            before = answers()
            with torch.no_grad():
                next(model.parameters()).mul_(2)
            assert not torch.equal(answers(), before)
            torch.testing.assert_close(answers(), model(images).detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet8", "en2_resnet8"])
def test_outside_there_is_one_path(name):
    """Noise of one seed does not depend on what wants a gradient, nor on the mode of autograd."""
    model, images = create_model(name, generator=seeded()).eval(), torch.rand(2, 3, 16, 16)
    found = []
    for wanting in (True, False):
        model.requires_grad_(wanting)
        for way in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            seed_noise(model, seeded(1))
            with way():
                found.append(model(images).clone())
    assert all(torch.equal(one.detach(), found[0].detach()) for one in found)


def test_inside_it_is_the_fast_one():
    network = create_model("en2_resnet8").eval()
    assert is_fast(network)
    assert is_fast(network.forward)
    assert is_fast(create_model("resnet8").train())  # it is put in evaluation mode
    with frozen(network) as call:
        assert not any(p.requires_grad for p in network.parameters())
        assert call(torch.rand(1, 3, 16, 16)).shape == (1, 10)
    assert all(p.requires_grad for p in network.parameters())
    with frozen(Normalized(network, 0.5, 0.25)) as call:
        fast = call(torch.full((1, 3, 16, 16), 0.75))
    assert fast.shape == (1, 10)


def test_who_is_listened_to_or_trains_has_none():
    network = create_model("resnet8").eval()
    images = torch.rand(1, 3, 16, 16)
    seen = []
    for place in (network.stages[0][0].conv1, network):
        hook = place.register_forward_hook(lambda *_: seen.append(1))
        with frozen(network) as call:
            call(images)
        hook.remove()
    assert seen == [1, 1]
    for register in (
        module.register_module_forward_hook,
        module.register_module_forward_pre_hook,
        module.register_module_full_backward_hook,
        module.register_module_full_backward_pre_hook,
    ):
        hook = register(lambda *_: None)
        assert not is_fast(network)
        hook.remove()
    with frozen(network.train(), evaluating=False) as call:
        assert not isinstance(call, FrozenResNet)
    network.eval()
    network.stages[0][0].conv1 = torch.nn.Sequential(network.stages[0][0].conv1)
    network.stages[0][0].conv1[0] = torch.nn.utils.parametrizations.weight_norm(
        network.stages[0][0].conv1[0]
    )
    assert not is_fast(network)


class TestWhoIsOurs:
    """Shortcuts are for our own networks, as we made them: anything else is called as it is."""

    def ensemble(self):
        return create_model("en2_resnet8", generator=seeded()).eval()

    def others(self):
        class Turned(Ensemble):
            def forward(self, images):
                return super().forward(1 - images)

        subclass = Turned(list(self.ensemble().members)).eval()
        patched = self.ensemble()
        patched.forward = lambda images: Ensemble.forward(patched, 1 - images)
        owner = self.ensemble()
        method = types.MethodType(lambda self, images: self.forward(1 - images), owner)
        return {"subclass": subclass, "patched": patched, "method": method}

    @pytest.mark.parametrize("kind", ["subclass", "patched", "method"])
    def test_several_draws_attack_the_same_model_as_one(self, kind):
        images, labels = random_problem((3, 3, 16, 16), classes=10)
        model = self.others()[kind]
        for place in noise_modules(getattr(model, "__self__", model)):
            place.noise = 0.0
        one, two = (FGSM(eot=eot, precision="32")(model, images, labels) for eot in (1, 2))
        assert (one != two).float().mean() < 0.01
        assert our_network(model) is None

    def test_hooks_and_training_make_it_another(self):
        model = create_model("resnet8", generator=seeded()).eval()
        assert is_deterministic(model)
        assert is_deterministic(model.forward)
        assert is_batch_independent(model)
        for register in (
            model.register_forward_pre_hook,
            model.register_full_backward_hook,
            model.stages.register_full_backward_pre_hook,
        ):
            hook = register(lambda *_: None)
            assert not is_deterministic(model)
            assert not is_batch_independent(model)
            hook.remove()
        model.train()
        assert not is_deterministic(model)
        assert not is_batch_independent(model)

    def test_images_of_another_type_are_refused_frozen_or_not(self):
        model = create_model("resnet8", generator=seeded()).eval().double()
        images, _ = random_problem((2, 3, 16, 16))
        with frozen(model) as call:
            for way in (model, call):
                with pytest.raises(RuntimeError, match="same dtype|type"):
                    way(images)

    def test_batchnorm_without_statistics_makes_it_another(self):
        """It takes those of the batch, so that images meet, also in evaluation."""
        model = create_model("resnet8", generator=seeded()).eval()
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.track_running_stats, part.running_mean, part.running_var = False, None, None
        assert not is_batch_independent(model)
        assert not is_separable(model)
        assert not is_fast(model)

    @pytest.mark.parametrize("change", SURGERY)
    def test_parts_in_other_places_make_it_another(self, change):
        model = create_model("resnet8", generator=seeded()).eval()
        images, labels = random_problem((4, 3, 16, 16), classes=10)
        SURGERY[change](model)
        model.eval()
        assert our_network(model) is None
        assert not is_fast(model)
        with frozen(model, few=images) as call, torch.no_grad():
            torch.testing.assert_close(call(images), model(images))
        assert IFGSM(steps=2)(model, images, labels).shape == images.shape

    @pytest.mark.parametrize("kind", ["named alike", "random", "mixing"])
    def test_a_layer_of_another_kind_makes_it_another(self, kind):
        model = create_model("resnet8", generator=seeded()).eval()
        images, _ = random_problem((4, 3, 16, 16))

        class Conv2d(nn.Conv2d):
            def forward(self, x):
                return 2 * super().forward(x)

        class Random(nn.Module):
            def forward(self, x):
                return x + 0.1 * torch.randn(x.shape)

        class Mixing(nn.Module):
            def forward(self, x):
                return x - x.mean(dim=0)

        if kind == "named alike":
            other = Conv2d(3, 16, 3, padding=1, bias=False)
            other.weight = model.stem.weight
        else:
            other = nn.Sequential({"random": Random, "mixing": Mixing}[kind](), model.stem)
        model.stem = other
        assert not is_deterministic(model)
        assert not is_batch_independent(model)
        assert not is_fast(model)
        with frozen(model) as call:
            assert call(images).shape == (4, 10)

    @pytest.mark.parametrize("option", ["affine", "track_running_stats"])
    def test_batchnorm_that_cannot_be_folded_is_not(self, option):
        model = create_model("resnet8", generator=seeded()).eval()
        model.stages[0][0].bn1 = nn.BatchNorm2d(16, **{option: False}).eval()
        assert not is_fast(model)


class TestUnusualNetworks:
    """What the fast path says is what the network says, however it was changed before."""

    def agree(self, model, images):
        with frozen(model) as call, torch.no_grad():
            torch.testing.assert_close(call(images), model(images), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: setattr(m.stages[0][0].bn1, "eps", 1.0),
            lambda m: setattr(m.stem, "stride", (2, 2)),
            lambda m: (
                setattr(m.stages[1][0].shortcut, "stride", (2, 1))
                or setattr(m.stages[1][0].conv1, "stride", (2, 1))
            ),
        ],
    )
    def test_with_other_settings(self, change):
        images, _ = random_problem((2, 3, 16, 16))
        model = create_model("resnet8", generator=seeded()).eval()
        change(model)
        self.agree(model, images)

    def test_with_noise_that_was_replaced(self):
        images, _ = random_problem((2, 3, 16, 16))
        model = create_model("en1_resnet8", generator=seeded()).eval()
        for member in model.members:
            for block in member.all_blocks():
                block.noise = NoiseInjection(0.0).eval()
        self.agree(model, images)

    def test_with_layers_of_another_making(self):
        images, _ = random_problem((2, 3, 16, 16))
        for stem in (
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.Conv2d(3, 16, 3, padding=1, bias=False, padding_mode="reflect"),
            torch.nn.Conv2d(3, 16, 3, padding=2, bias=False, dilation=2),
        ):
            model = create_model("resnet8", generator=seeded()).eval()
            model.stem = stem
            self.agree(model, images)

    def test_a_weight_that_changes_between_forward_and_backward(self):
        """The gradient is that of the weights at the time of the forward pass."""
        images, _ = random_problem((2, 3, 16, 16))
        model = create_model("resnet8", generator=seeded()).eval()
        leaf = images.clone().requires_grad_()
        with frozen(model) as call:
            (expected,) = torch.autograd.grad(call(leaf).square().sum(), leaf)
            loss = call(leaf).square().sum()
            for parameter in model.parameters():
                parameter.mul_(2)
            (found,) = torch.autograd.grad(loss, leaf)
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("std_over", ["example", "batch"])
    def test_inference_mode_leaves_nothing_behind(self, std_over):
        images, labels = random_problem((2, 3, 16, 16), classes=10)
        model = create_model("en1_resnet8", std_over=std_over, generator=seeded()).eval()
        with torch.inference_mode(), frozen(model) as call:
            call(images)
            IFGSM(steps=2, precision="32")(model, images, labels)
        IFGSM(steps=2, precision="32")(model, images, labels)


def test_torch_may_look_on():
    """Fake tensors and function transforms meet the network as it is."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    images, _ = random_problem((2, 3, 16, 16))
    model = create_model("resnet8", generator=seeded()).eval()
    with frozen(model) as call:
        expected = call(images)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert call(mode.from_tensor(images)).shape == (2, 10)
        slope = torch.func.grad(lambda x: call(x).sum())(images)
        leaf = images.clone().requires_grad_()
        (plain,) = torch.autograd.grad(call(leaf).sum(), leaf)
        torch.testing.assert_close(slope, plain, rtol=1e-2, atol=1e-4)
        torch.testing.assert_close(call(images), expected)
