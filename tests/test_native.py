"""The loops in C: the law of their draws, and that they compute what torch's operations do."""

import subprocess
import sys
import types

import pytest
import torch

from enresnet import native
from enresnet.attacks import FGSM, IFGSM, PGD
from enresnet.attacks.base import Batch
from enresnet.attacks.precision import is_deterministic, keeps_apart, our_network
from enresnet.models import (
    Ensemble,
    NoiseInjection,
    create_model,
    inject_noise,
    load_model,
    save_model,
    seed_noise,
    using_noise,
    without_noise,
)
from enresnet.models import noise as noise_module
from enresnet.models.folded import Folded, folded
from enresnet.models.noise import NoiseStream, noise_modules
from problems import random_problem, seeded

needs_loops = pytest.mark.skipif(native.library() is None, reason="needs a C compiler")


def draw(count, key=0, dtype=torch.float32):
    draws = torch.empty(count, dtype=dtype)
    native.call("normal", draws, draws, count, key)
    return draws


COUNT = 2**22


@pytest.fixture(scope="module")
def draws():
    return draw(COUNT, key=1).double()


@needs_loops
class TestLaw:
    """Over 4 million draws; a bound of five standard errors is missed once in two million times."""

    def test_moments(self, draws):
        error = COUNT**-0.5
        assert abs(draws.mean()) < 5 * error
        assert abs(draws.square().mean() - 1) < 5 * 2**0.5 * error
        assert abs(draws.pow(3).mean()) < 5 * 15**0.5 * error
        assert abs(draws.pow(4).mean() - 3) < 5 * 96**0.5 * error

    @pytest.mark.parametrize("beyond", [0.5, 1.0, 2.0, 3.0, 4.0, 4.5])
    def test_tails(self, draws, beyond):
        share = torch.special.erfc(torch.tensor(beyond / 2**0.5, dtype=torch.float64)).item()
        error = (share * (1 - share) / COUNT) ** 0.5
        for tail in (draws > beyond, draws < -beyond):
            assert abs(tail.double().mean() - share / 2) < 5 * error

    def test_the_whole_distribution(self, draws):
        """Kolmogorov and Smirnov's distance to the normal law."""
        law = torch.special.ndtr(draws.sort().values)
        ranks = torch.arange(1, COUNT + 1, dtype=torch.float64) / COUNT
        assert (law - ranks).abs().max() < 2.3 * COUNT**-0.5

    def test_no_correlation_at_any_distance(self, draws):
        spectrum = torch.fft.rfft(draws, n=2 * COUNT)
        correlation = torch.fft.irfft(spectrum.abs() ** 2)[1 : COUNT // 2] / COUNT
        # The largest of two million: six and a half standard errors.
        assert correlation.abs().max() < 6.5 * COUNT**-0.5
        squares = torch.fft.rfft(draws.square() - 1, n=2 * COUNT)
        correlation = torch.fft.irfft(squares.abs() ** 2)[1 : COUNT // 2] / COUNT
        assert correlation.abs().max() < 2 * 7 * COUNT**-0.5

    def test_pairs_fill_the_plane(self, draws):
        """The two draws of one Box-Muller pair, sixteen apart: independent, angles uniform."""
        pairs = draws.view(-1, 2, 16)
        angles = torch.atan2(pairs[:, 0], pairs[:, 1]).flatten()
        counts = torch.histc(angles, bins=64, min=-torch.pi, max=torch.pi)
        expected = len(angles) / 64
        assert (counts - expected).abs().max() < 5.5 * expected**0.5
        assert abs((pairs[:, 0].square() * pairs[:, 1].square()).mean() - 1) < 0.02

    def test_keys_and_places_are_independent(self):
        for key in (0, 1, 2**40, 2**63 - 1):
            one, two = draw(2**18, key=key), draw(2**18, key=key + 1)
            assert abs((one * two).mean()) < 5 * 2**-9
            chunks = one.view(-1, 4096)
            assert abs((chunks[1:] * chunks[:-1]).mean()) < 5 * 2**-9

    def test_a_key_fixes_the_draws_whatever_the_threads(self):
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            one = draw(100_000, key=5)
            torch.set_num_threads(2)
            assert torch.equal(one, draw(100_000, key=5))
        finally:
            torch.set_num_threads(before)

    def test_bfloat16_is_float32_rounded(self):
        """Each 32 in another order: bfloat16 comes as even and odd elements."""
        wide = draw(4992, key=3).bfloat16().view(-1, 2, 16)
        assert torch.equal(draw(4992, key=3, dtype=torch.bfloat16), wide.transpose(1, 2).flatten())


MULTIPLIERS = torch.tensor([6364136223846793005, 1442695040888963407, 3935559000370003845, 1])


def repeated(draws):
    """Return how many runs of four values occur more than once."""
    codes = draws.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    windows = torch.stack([codes[i : len(codes) - 3 + i] for i in range(4)])
    hashes = (windows * MULTIPLIERS[:, None]).sum(dim=0)
    return len(hashes) - len(hashes.unique())


@needs_loops
def test_no_run_of_values_comes_again():
    """Over calls as a training makes them: 4 million draws, chance would repeat 4e-7 of a run."""
    stream = NoiseStream(seeded())
    draws = [stream.normal_like(torch.empty(64, 16384)).flatten() for _ in range(4)]
    assert repeated(torch.cat(draws)) == 0
    assert repeated(torch.cat([draws[0], draws[0][1000:3000]])) > 1900  # it would be seen


@needs_loops
@pytest.mark.slow
def test_no_run_of_values_comes_again_over_a_hundred_million():
    """At any distance: of all runs of four, those whose hash ends in one of eight ways are kept."""
    stream, seen = NoiseStream(seeded()), []
    for number in range(49):
        draws = stream.normal_like(torch.empty(128, 16384)).flatten()
        if number == 0:
            first = draws
        seen.append(some_hashes(draws))
    codes = torch.cat(seen)
    assert 49 * 128 * 16384 > 1e8
    assert len(codes) > 1e7
    assert len(codes.unique()) == len(codes)
    for offset in (1, 2, 3, 4):  # a pool used again would be seen
        again = torch.cat([some_hashes(first), some_hashes(first[offset : offset + 2**19])])
        assert len(again) - len(again.unique()) > 2**19 / 8 * 0.9


def some_hashes(draws):
    """Return the hashes of an eighth of all runs of four values, wherever they start."""
    codes = draws.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    windows = torch.stack([codes[i : len(codes) - 3 + i] for i in range(4)])
    hashes = (windows * MULTIPLIERS[:, None]).sum(dim=0)
    return hashes[(hashes >> 40) % 8 == 0]


@needs_loops
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (2, 16, 8, 8), (4, 3, 37), (2, 70_000), (1, 1)])
def test_injection_is_the_formula(shape, dtype):
    """With the draws that were added, result and gradient are those of torch's operations."""
    x = (3 + torch.randn(shape, generator=seeded())).to(dtype).requires_grad_()
    y = inject_noise(x, 0.5, generator=seeded(1))
    g = torch.randn(shape, generator=seeded(2)).to(dtype)
    (found,) = torch.autograd.grad(y, x, g)
    wide = x.detach().double().requires_grad_()
    std = noise_module.standard_deviation(wide, tuple(range(1, len(shape))))
    draws = torch.where(std > 0, (y.detach().double() - wide.detach()) / (0.5 * std.detach()), 0.0)
    (expected,) = torch.autograd.grad(wide + 0.5 * std * draws, wide, g.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    if x[0].numel() > 1000:
        assert abs(draws.std() - 1) < 0.1


@needs_loops
def test_memory_formats_and_slices():
    x = torch.randn(4, 16, 8, 8, generator=seeded())
    last = x.contiguous(memory_format=torch.channels_last)
    assert inject_noise(last, generator=seeded()).is_contiguous(memory_format=torch.channels_last)
    sliced = x[:, ::2]
    torch.testing.assert_close(
        inject_noise(sliced, generator=seeded()),
        inject_noise(sliced.contiguous(), generator=seeded()),
    )
    leaf = x.clone().requires_grad_()
    inject_noise(leaf, generator=seeded()).mean().backward()  # an expanded gradient
    assert leaf.grad.isfinite().all()


def test_nan_is_not_swallowed():
    network = create_model("en1_resnet8", generator=seeded()).eval().requires_grad_(False)
    images = torch.rand(2, 3, 16, 16)
    images[0, 0, 0, 0] = torch.nan
    logits = network(images)
    assert logits[0].isnan().all()
    assert logits[1].isfinite().all()


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
    network.stages[0][0].bn1.train()
    assert folded(network, images) is None
    network.eval()
    network.stages[0][0].conv1 = torch.nn.Sequential(network.stages[0][0].conv1)
    network.stages[0][0].conv1[0] = torch.nn.utils.parametrizations.weight_norm(
        network.stages[0][0].conv1[0]
    )
    assert folded(network.requires_grad_(False), images) is None


def test_without_loops_everything_works(tmp_path):
    """In a process of its own: no compiler, no loops, the same answers without noise."""
    path = tmp_path / "m.safetensors"
    model = create_model("en2_resnet8", generator=seeded())
    save_model(model, path)
    code = f"""
import torch
from enresnet import native
from enresnet.attacks import IFGSM
from enresnet.models import load_model, without_noise
assert native.library() is None
model = load_model({str(path)!r})
images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
attacked = IFGSM(steps=2, eot=2)(model, images, torch.arange(4))
assert 0 < (attacked - images).abs().max() <= 8 / 255 + 1e-6
with without_noise(model):
    print(model(images).flatten().tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"ENRESNET_NATIVE": "0", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    found = torch.tensor(eval(done.stdout)).view(4, 10)
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with using_noise(model, 0.0), torch.no_grad():
        torch.testing.assert_close(found, model.eval()(images), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet8", "en2_resnet8"])
def test_gradients_in_bfloat16_point_the_same_way(name):
    images, labels = random_problem((8, 3, 16, 16), classes=10)
    model = create_model(
        name, noise=0 if name.startswith("en") else None, generator=seeded()
    ).eval()
    one, two = (IFGSM(steps=1, precision=p)(model, images, labels) for p in ("32", "bf16"))
    inside = (images > 0.05) & (images < 0.95)
    agree = ((one - images).sign() == (two - images).sign())[inside].double().mean()
    assert agree > 0.9
    assert IFGSM().precision == "auto"
    with pytest.raises(ValueError, match="precision must be one of"):
        IFGSM(precision="16")


def test_other_models_are_attacked_in_their_own_precision():
    from enresnet.attacks.precision import wants_bfloat16

    images = torch.rand(1, 3, 16, 16)
    other = Ensemble([torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10))])
    assert not wants_bfloat16(other, images, "auto")
    assert wants_bfloat16(other, images, "bf16")
    assert not wants_bfloat16(create_model("resnet8"), images.double(), "auto")


def test_examples_that_are_fooled_are_not_started_again():
    """The same images are fooled as by trying all again, with fewer passes."""
    images, labels = random_problem((32, 3, 16, 16), classes=10)
    model = create_model("resnet8", generator=seeded()).eval()
    labels[:16] = model(images[:16]).argmax(dim=1)
    seen, fooled = {}, {}
    for kind in ("ours", "any"):
        attack = PGD(epsilon=1 / 255, steps=3, restarts=4, precision="32", generator=seeded())
        attacked = attack(model if kind == "ours" else lambda x: model(x), images, labels)
        seen[kind] = attack.spent[1]
        fooled[kind] = model(attacked).argmax(dim=1) != labels
    assert torch.equal(fooled["ours"], fooled["any"])
    assert seen["ours"] < seen["any"]


def test_draws_share_what_comes_before_the_noise(monkeypatch):
    images, labels = random_problem((4, 3, 16, 16), classes=10)
    model = create_model("en2_resnet8", generator=seeded()).eval()
    sizes = {"before_noise": [], "after_noise": []}
    for name, seen in sizes.items():
        whole = getattr(Folded, name)

        def counted(self, x, whole=whole, seen=seen):
            seen.append(len(x))
            return whole(self, x)

        monkeypatch.setattr(Folded, name, counted)
    FGSM(eot=5)(model, images, labels)
    assert sizes == {"before_noise": [4, 4], "after_noise": [20, 20]}  # two members
    monkeypatch.undo()
    monkeypatch.setattr("enresnet.attacks.base.TOGETHER", 2 * 4 * 256)
    FGSM(eot=5)(model, images, labels)
    seen = []
    model.register_forward_hook(lambda *_: seen.append(1))
    FGSM(eot=5)(model, images, labels)
    assert len(seen) == 5  # who listens hears every draw
    model._forward_hooks.clear()
    with without_noise(model):
        one, five = (
            FGSM(eot=eot, norm="l2", precision="32")(model, images, labels) for eot in (1, 5)
        )
    torch.testing.assert_close(one, five, rtol=0, atol=1e-5)


def test_shared_draws_have_the_gradient_of_separate_ones(monkeypatch):
    """The mean over many draws agrees, far closer than single draws do."""
    images, labels = random_problem((3, 3, 16, 16), classes=10)
    model = create_model("en2_resnet8", noise=0.3, generator=seeded()).eval()
    found = {}
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr("enresnet.attacks.base.keeps_apart", lambda _: False)
        for repeat in (0, 1):
            seed_noise(model, seeded(10 + repeat + 2 * shared))
            attacked = FGSM(epsilon=1.0, norm="l2", eot=400, precision="32")(model, images, labels)
            found[shared, repeat] = (attacked - images).flatten(1)
    same = (found[True, 0] - found[True, 1]).norm(dim=1)
    across = (found[True, 0] - found[False, 0]).norm(dim=1)
    assert (across < 2 * same + 0.02).all()


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


def test_many_draws_do_not_stall_in_bfloat16(monkeypatch):
    """The mean over many draws has the length of the mean over few."""
    images, labels = random_problem((2, 3, 16, 16), classes=10)
    model = create_model("en1_resnet8", noise=0.01, generator=seeded()).eval()
    monkeypatch.setattr("enresnet.attacks.base.TOGETHER", 1)
    sizes = []
    for eot in (2, 600):
        seen = []
        original = Batch._finite
        monkeypatch.setattr(
            Batch, "_finite", lambda self, g, o=original, s=seen: s.append(g.norm()) or o(self, g)
        )
        FGSM(eot=eot, precision="bf16")(model, images, labels)
        monkeypatch.setattr(Batch, "_finite", original)
        sizes.append(float(seen[0]))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)
