"""Folded networks: which are folded, and that they say what the network itself says."""

import types

import pytest
import torch
from torch import nn
from torch.nn.modules import module

from enresnet.attacks import FGSM, IFGSM
from enresnet.attacks.precision import is_deterministic, keeps_apart, our_network
from enresnet.models import (
    Ensemble,
    NoiseInjection,
    create_model,
    load_model,
    save_model,
    seed_noise,
    using_noise,
)
from enresnet.models.frozen.fold import folded
from enresnet.models.noise import noise_modules
from problems import random_problem, seeded


@pytest.mark.parametrize("name", ["resnet8", "en1_resnet8", "en2_resnet11", "wrn10_2"])
class TestFolded:
    def networks(self, name, **options):
        """Return a frozen network with statistics of its own, and one that is never folded."""
        model = create_model(name, generator=seeded(), **options)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.running_mean.normal_(0, 0.3, generator=seeded(1))
                    module.running_var.uniform_(0.5, 2, generator=seeded(2))
                    module.weight.uniform_(0.5, 1.5, generator=seeded(3))
                    module.bias.normal_(0, 0.3, generator=seeded(4))
        return model.eval().requires_grad_(False)

    @pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 16), (3, 9)])
    def test_it_gives_the_same_logits_and_gradients(self, name, channels, size):
        model = self.networks(name, in_channels=channels)
        images = torch.rand(4, channels, size, size, generator=seeded(5))
        with using_noise(model, 0.0):
            results = []
            for wanting in (True, False):  # parameters that want gradients are not folded
                model.requires_grad_(wanting)
                leaf = images.clone().requires_grad_()
                logits = model(leaf)
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
        draws = {}
        for wanting in (True, False):
            model.requires_grad_(wanting)
            with torch.no_grad():
                draws[wanting] = model(images.expand(2000, -1, -1, -1))
        error = draws[True].std(dim=0) / 2000**0.5
        assert ((draws[True].mean(dim=0) - draws[False].mean(dim=0)).abs() < 7 * error).all()
        ratio = draws[True].std(dim=0) / draws[False].std(dim=0)
        torch.testing.assert_close(ratio, torch.ones(10), rtol=0, atol=0.1)

    def test_the_gradient_is_that_of_the_same_noise(self, name):
        """Against the slope of the loss along the gradient, the draws held fast."""
        model = self.networks(name)
        images = torch.rand(3, 3, 16, 16, generator=seeded(5))

        def loss(x):
            seed_noise(model, seeded(6))
            return model(x).double().square().sum()

        with using_noise(model, 0.3 if name.startswith("en") else 0.0):
            leaf = images.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(leaf), leaf)
            step = 1e-3 * gradient / gradient.norm()
            slope = (loss(images + step) - loss(images - step)) / 2e-3
        assert float(slope / gradient.norm()) == pytest.approx(1, abs=0.02)

    def test_a_changed_weight_is_noticed(self, name, tmp_path):
        model, images = self.networks(name), torch.rand(2, 3, 16, 16, generator=seeded(5))
        with using_noise(model, 0.0):
            before = model(images)
            first = next(model.parameters())
            first.mul_(2)
            assert not torch.equal(model(images), before)
            first.div_(2)
            torch.testing.assert_close(model(images), before)
            first.data = first.data * 3
            assert not torch.equal(model(images), before)
            statistics = next(b for n, b in model.named_buffers() if "running_mean" in n)
            changed = model(images)
            statistics.add_(1)
            assert not torch.equal(model(images), changed)
            save_model(model, tmp_path / "m.safetensors")
            again = load_model(tmp_path / "m.safetensors").requires_grad_(False)
            torch.testing.assert_close(again(images), model(images))


def test_what_is_watched_or_trains_is_not_folded():
    network = create_model("resnet8").eval()
    images = torch.rand(1, 3, 16, 16)
    assert folded(network, images) is None  # its parameters want gradients
    network.requires_grad_(False)
    assert folded(network, images) is not None
    seen = []
    hook = network.stages[0][0].conv1.register_forward_hook(lambda *_: seen.append(1))
    network(images)
    assert seen == [1]
    hook.remove()
    for register in (
        module.register_module_forward_hook,
        module.register_module_forward_pre_hook,
        module.register_module_full_backward_hook,
        module.register_module_full_backward_pre_hook,
    ):
        hook = register(lambda *_: None)
        assert folded(network, images) is None
        hook.remove()
    network.stages[0][0].bn1.train()
    assert folded(network, images) is None
    network.eval()
    network.stages[0][0].conv1 = torch.nn.Sequential(network.stages[0][0].conv1)
    network.stages[0][0].conv1[0] = torch.nn.utils.parametrizations.weight_norm(
        network.stages[0][0].conv1[0]
    )
    assert folded(network.requires_grad_(False), images) is None


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
        assert keeps_apart(model)
        for register in (
            model.register_forward_pre_hook,
            model.register_full_backward_hook,
            model.stages.register_full_backward_pre_hook,
        ):
            hook = register(lambda *_: None)
            assert not is_deterministic(model)
            assert not keeps_apart(model)
            hook.remove()
        model.train()
        assert not is_deterministic(model)
        assert not keeps_apart(model)

    def test_images_of_another_type_are_refused_frozen_or_not(self):
        model = create_model("resnet8", generator=seeded()).eval().double()
        images, _ = random_problem((2, 3, 16, 16))
        for wants in (True, False):
            with pytest.raises(RuntimeError, match="same dtype|type"):
                model.requires_grad_(wants)(images)

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
        assert not keeps_apart(model)
        frozen = model.requires_grad_(False)
        assert folded(frozen, images) is None

    @pytest.mark.parametrize("option", ["affine", "track_running_stats"])
    def test_batchnorm_that_cannot_be_folded_is_not(self, option):
        model = create_model("resnet8", generator=seeded()).eval().requires_grad_(False)
        images, _ = random_problem((4, 3, 16, 16))
        model.stages[0][0].bn1 = nn.BatchNorm2d(16, **{option: False}).eval()
        assert folded(model, images) is None
        assert model(images).shape == (4, 10)


class TestChanges:
    """A fold is of the weights that are there, however they were changed."""

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: [p.data.mul_(1.5) for p in m.parameters()],
            lambda m: next(m.parameters()).data.neg_(),
            lambda m: next(m.parameters()).detach().numpy().__imul__(2),
            lambda m: next(b for n, b in m.named_buffers() if "mean" in n).data.add_(1),
            lambda m: setattr(m.stages[0][0].bn1, "eps", 1.0),
            lambda m: setattr(m.stem, "stride", (2, 2)),
            lambda m: (
                setattr(m.stages[1][0].shortcut, "stride", (2, 1))
                or setattr(m.stages[1][0].conv1, "stride", (2, 1))
            ),
        ],
    )
    def test_they_are_noticed(self, change):
        images, _ = random_problem((2, 3, 16, 16))
        model = create_model("resnet8", generator=seeded()).eval().requires_grad_(False)
        before = model(images)
        change(model)
        after = model(images)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, model.requires_grad_(True)(images), rtol=1e-3, atol=1e-4)

    def test_noise_that_is_replaced(self):
        images, _ = random_problem((2, 3, 16, 16))
        model = create_model("en1_resnet8", generator=seeded()).eval().requires_grad_(False)
        model(images)
        for member in model.members:
            for block in member.all_blocks():
                block.noise = NoiseInjection(0.0).eval()
        assert torch.equal(model(images), model(images))

    def test_between_forward_and_backward(self):
        """The gradient is that of the weights at the time of the forward pass."""
        images, _ = random_problem((2, 3, 16, 16))
        model = create_model("resnet8", generator=seeded()).eval().requires_grad_(False)
        leaf = images.clone().requires_grad_()
        (expected,) = torch.autograd.grad(model(leaf).square().sum(), leaf)
        loss = model(leaf).square().sum()
        for parameter in model.parameters():
            parameter.mul_(2)
        (found,) = torch.autograd.grad(loss, leaf)
        assert torch.equal(found, expected)

    def test_layers_of_another_making_are_not_folded(self):
        images, _ = random_problem((2, 3, 16, 16))
        for stem in (
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.Conv2d(3, 16, 3, padding=1, bias=False, padding_mode="reflect"),
            torch.nn.Conv2d(3, 16, 3, padding=2, bias=False, dilation=2),
        ):
            model = create_model("resnet8", generator=seeded())
            model.stem = stem
            model.eval().requires_grad_(False)
            folded_logits = model(images)
            torch.testing.assert_close(
                folded_logits, model.requires_grad_(True)(images), rtol=1e-3, atol=1e-4
            )

    @pytest.mark.parametrize("std_over", ["example", "batch"])
    def test_inference_mode_leaves_nothing_behind(self, std_over):
        images, labels = random_problem((2, 3, 16, 16), classes=10)
        model = create_model("en1_resnet8", std_over=std_over, generator=seeded())
        model.eval().requires_grad_(False)
        with torch.inference_mode():
            model(images)
        IFGSM(steps=2, precision="32")(model, images, labels)


def test_torch_may_look_on():
    """Fake tensors and function transforms meet the network unfolded."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    images, _ = random_problem((2, 3, 16, 16))
    model = create_model("resnet8", generator=seeded()).eval().requires_grad_(False)
    expected = model(images)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(images)).shape == (2, 10)
    slope = torch.func.grad(lambda x: model(x).sum())(images)
    leaf = images.clone().requires_grad_()
    (plain,) = torch.autograd.grad(model(leaf).sum(), leaf)
    torch.testing.assert_close(slope, plain, rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(model(images), expected)
