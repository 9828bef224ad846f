"""Networks on which a traced copy could be another function than the network: it must not be."""

import types
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.attacks import APGD, IFGSM, PGD, Square
from enresnet.models.batch_mates import images_meet
from enresnet.models.frozen import FrozenCall, frozen
from enresnet.models.frozen.structure import structure_of
from enresnet.models.noise import NoiseInjection
from problems import random_problem, seeded

IMAGES, LABELS = random_problem((8, 3, 8, 8), classes=5)
AUTOCAST = torch.autocast("cpu", torch.bfloat16)


class Small(nn.Module):
    """A convolution and a linear map, for forwards that do something odd in between."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 16, 3, padding=1)
            self.inner = nn.Conv2d(16, 16, 3, padding=1)
            self.head = nn.Linear(16, 5)

    def pooled(self, x):
        return self.head(functional.relu(x).mean(dim=(2, 3)))


class ReadsItsWeight(Small):
    def forward(self, x):
        back = functional.conv_transpose2d(self.conv(x), self.conv.weight, padding=1)
        return self.pooled(self.conv(back.to(self.conv.weight.dtype)))


class CastsItsFeatures(Small):
    def forward(self, x):
        features = functional.relu(self.conv(x)).mean(dim=(2, 3))
        return self.head(features.float()).log_softmax(dim=1)


class CallsByKeyword(Small):
    def forward(self, x):
        return self.pooled(self.conv(x) + self.conv(input=x * x))


class ReadsABuffer(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, x):
        return self.pooled(self.conv(x)) * float(self.scale)


class ReadsAnObject(Small):
    def __init__(self):
        super().__init__()
        self.settings = types.SimpleNamespace(scale=1.0)

    def forward(self, x):
        return self.pooled(self.conv(x)) * self.settings.scale


class ReadsItsFile(Small):
    SCALE: ClassVar = [1.0]

    def forward(self, x):
        return self.pooled(self.conv(x)) * ReadsItsFile.SCALE[0]


def change(network):
    """Change weights and settings, as a training may."""
    with torch.no_grad():
        network.conv.weight.mul_(-1)
    if isinstance(network, ReadsABuffer):
        network.scale.mul_(-1.5)
    if isinstance(network, ReadsAnObject):
        network.settings.scale *= -1.5
    ReadsItsFile.SCALE[0] *= -1.5


@pytest.mark.parametrize(
    "kind", [CallsByKeyword, ReadsABuffer, ReadsAnObject, ReadsItsFile, ReadsItsWeight]
)
@pytest.mark.parametrize("autocast", [False, True])
def test_no_use_has_values_of_before(kind, autocast):
    network = kind().eval()
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.no_grad():
            own = network(IMAGES).float()
            with frozen(network, few=IMAGES) as call:
                found = call(IMAGES).float()
        assert (found - own).abs().max() < 0.03 * own.abs().max()
        change(network)


def test_a_weight_that_is_read_beside_its_module_is_followed():
    with frozen(ReadsItsWeight().eval(), few=IMAGES) as call:
        assert isinstance(call, FrozenCall)


@pytest.mark.parametrize("precision", ["auto", "bf16", "32"])
@pytest.mark.parametrize("kind", [ReadsItsWeight, CastsItsFeatures])
def test_attacks_work_in_any_precision(kind, precision):
    network = kind().eval()
    found = PGD(steps=10, precision=precision)(network, IMAGES, LABELS, seed=0)
    assert (found - IMAGES).abs().max() <= 8 / 255 + 1e-6


def test_a_network_that_casts_is_called_as_it_is_under_autocast():
    network = CastsItsFeatures().eval()
    with AUTOCAST, torch.no_grad(), frozen(network, few=IMAGES) as call:
        torch.testing.assert_close(call(IMAGES), network(IMAGES), rtol=0, atol=0)


class MeetsInBatchNorm(Small):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(16, track_running_stats=False)

    def forward(self, x):
        return self.pooled(self.bn(self.conv(x)))


@pytest.mark.parametrize("attack", [APGD(steps=12, early_stop=True), Square(steps=30)])
def test_whether_images_meet_does_not_depend_on_earlier_attacks(attack):
    fresh, used = MeetsInBatchNorm().eval(), MeetsInBatchNorm().eval()
    IFGSM(steps=12)(used, IMAGES[:1], LABELS[:1])
    for number in (1, 8):
        with frozen(used, few=IMAGES[:number]) as call:
            assert not call.separable
            assert not call.independent
    found = [attack(network, IMAGES, LABELS, seed=0) for network in (fresh, used)]
    torch.testing.assert_close(*found, rtol=0, atol=0)


class MeetsWithoutGradient(Small):
    """Subtracts a mean over the batch through which no gradient goes."""

    def forward(self, x):
        features = functional.relu(self.conv(x))
        return self.pooled(features - features.detach().mean(dim=(0, 2, 3), keepdim=True))


@pytest.mark.parametrize("attack", [APGD, Square])
def test_images_that_meet_where_no_gradient_goes_stay_together(attack):
    network = MeetsWithoutGradient().eval()
    images = IMAGES * torch.linspace(0.2, 1, len(IMAGES)).view(-1, 1, 1, 1)
    assert images_meet(network, images)
    with frozen(network, few=images) as call:
        assert not getattr(call, "separable", False)
    options = {"early_stop": True} if attack is APGD else {}
    attacked = attack(steps=12, epsilon=0.05, **options)
    monitored = [len(images)]
    network.conv.register_forward_hook(lambda _, given, __: monitored.append(len(given[0])))
    attacked(network, images, LABELS, seed=0)
    assert len(monitored) > 10
    assert monitored[-5:] == [len(images)] * 5


class MeetsLate(Small):
    """From the fifth image on, they have to do with each other."""

    def forward(self, x):
        y = self.conv(x)
        return self.pooled(torch.cat([y[:4], y[4:] + y[4:].mean(dim=0)]) if len(y) > 4 else y)


class MeetsInBright(Small):
    """Bright images take something from all others."""

    def forward(self, x):
        bright = functional.relu(x.mean(dim=(1, 2, 3), keepdim=True) - 0.8)
        y = self.conv(x)
        return self.pooled(y - bright * y.sum(dim=0))


@pytest.mark.parametrize("kind", [MeetsLate, MeetsInBright])
def test_some_images_that_meet_are_found_among_others(kind):
    assert images_meet(kind().eval(), IMAGES)
    with frozen(kind().eval(), few=IMAGES) as call:
        assert not getattr(call, "separable", False)


def test_probabilities_do_not_make_images_meet():
    network = Small()
    assert not images_meet(lambda x: network.pooled(network.conv(x)).softmax(dim=1), IMAGES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_alone_does_not_make_images_meet(dtype):
    network = CallsByKeyword().to(dtype).eval()
    assert not images_meet(network, IMAGES.to(dtype))


def test_a_view_of_features_stays_on_the_fast_path(capfd):
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(512, 5)

        def forward(self, x):
            x = self.conv(x).relu()
            return self.head(x.view(x.size(0), -1))

    network = Views().eval()
    with frozen(network, few=IMAGES) as call:
        assert isinstance(call, FrozenCall)
        torch.testing.assert_close(call(IMAGES), network(IMAGES))
    assert capfd.readouterr().err == ""


def test_a_network_of_bfloat16_keeps_the_fast_path():
    with frozen(CallsByKeyword().bfloat16().eval(), few=IMAGES.bfloat16()) as call:
        assert isinstance(call, FrozenCall)


def test_a_network_of_float64_is_called_as_it_is(caplog):
    network = CallsByKeyword().double().eval()
    with caplog.at_level("INFO", "enresnet"), frozen(network, few=IMAGES.double()) as call:
        assert torch.equal(call(IMAGES.double()), network(IMAGES.double()))
    assert "no faster way to compute in float64" in caplog.text


def test_logits_normalised_over_the_batch_have_a_gradient_to_compare():
    with frozen(MeetsInBatchNorm().eval(), few=IMAGES) as call:
        assert isinstance(call, FrozenCall)


def test_one_image_alone_may_share_its_draws():
    class Noisy(Small):
        def __init__(self):
            super().__init__()
            self.noise = NoiseInjection(0.1)

        def forward(self, x):
            return self.pooled(self.noise(self.conv(x)))

    with frozen(Noisy().eval(), few=IMAGES[:1]) as call:
        assert call.independent
        assert call.before_noise(IMAGES[:1]) is not None


def test_an_attack_inside_another_use_leaves_that_one_its_gradient():
    network = CallsByKeyword().eval()
    with frozen(network, few=IMAGES) as call:
        leaf = IMAGES.clone().requires_grad_()
        loss = call(leaf).square().sum()
        IFGSM(steps=12, precision="32")(network, IMAGES, LABELS)
        (found,) = torch.autograd.grad(loss, leaf)
    (wanted,) = torch.autograd.grad(network(leaf).square().sum(), leaf)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


def test_nan_stays_nan():
    class Logarithm(Small):
        def forward(self, x):
            return self.pooled(self.inner(functional.relu(self.conv(x.log()))))

    network, images = Logarithm().eval(), IMAGES.clone().clamp(min=0.1)
    with frozen(network, few=images) as call, torch.no_grad():
        assert isinstance(call, FrozenCall)
        images[0, 0, 0, 0] = 0
        assert call(images)[0].isnan().all()


class DrawsBeforeAChange(Small):
    """The noise is drawn before the tensor is changed in place."""

    def __init__(self):
        super().__init__()
        self.noise = NoiseInjection(0.05)

    def forward(self, x):
        h = self.conv(x)
        noisy = self.noise(h)
        return self.head((functional.relu_(h) - 2 * noisy).mean(dim=(2, 3)))


class ChangesByNoise(Small):
    """Noise is added in place to what came before it."""

    def __init__(self):
        super().__init__()
        self.noise = NoiseInjection(0.1)

    def forward(self, x):
        h = self.conv(x)
        return self.pooled(h.add_(self.noise(self.inner(functional.relu(h)))))


class ReadsAfterNoiseChanged(ChangesByNoise):
    """What noise was added to in place is read again, under its old name."""

    def forward(self, x):
        h = self.conv(x)
        changed = h.add_(self.noise(self.inner(functional.relu(h))))
        return self.pooled(changed) + self.head(h.square().mean(dim=(2, 3)))


@pytest.mark.parametrize("kind", [DrawsBeforeAChange, ChangesByNoise, ReadsAfterNoiseChanged])
def test_parts_are_the_network_whatever_it_changes_in_place(kind):
    network = kind().eval()
    own = torch.stack([network(IMAGES) for _ in range(200)]).mean(dim=0).detach()
    with frozen(network, few=IMAGES) as call, torch.no_grad():
        if (states := call.before_noise(IMAGES)) is None:
            assert kind is not ChangesByNoise  # nothing is in the way there
            return
        draws = [call.after_noise([state.clone() for state in states]) for _ in range(200)]
    torch.testing.assert_close(torch.stack(draws).mean(dim=0), own, rtol=0, atol=0.01)


def test_large_batches_may_be_changed_in_place():
    images, labels = random_problem((1100, 3, 8, 8), classes=5)
    found = IFGSM(steps=10, eot=2)(ChangesByNoise().eval(), images, labels)
    assert found.shape == images.shape


def test_bfloat16_is_judged_by_gradients_too():
    class LocalContrast(Small):
        """Small differences of large numbers, which rounded images do not have."""

        def forward(self, x):
            x = (x - functional.avg_pool2d(x, 3, 1, 1)) * 100
            return self.pooled(self.inner(functional.relu(self.conv(x))))

    flat = 0.7 + 0.02 * torch.rand((8, 3, 16, 16), generator=seeded(0))
    for kind, images, holds in ((LocalContrast, flat, False), (CallsByKeyword, IMAGES, True)):
        with frozen(kind().eval(), few=images) as call:
            assert call.holds_in_bfloat16() is holds


def test_an_empty_batch_has_no_logits():
    class Tiny(Small):
        def forward(self, x):
            return self.pooled(self.inner(functional.adaptive_avg_pool2d(self.conv(x), 1)))

    with frozen(Tiny().eval(), few=IMAGES) as call:
        assert call(IMAGES[:0]).shape == (0, 5)


class TestStructure:
    def test_what_holds_itself_ends(self):
        network = CallsByKeyword().eval()
        network.note = {"a": 1}
        network.note["self"] = network.note
        assert structure_of(network, IMAGES) == structure_of(network, IMAGES)

    def test_another_object_is_seen_where_the_old_one_is_gone(self):
        class Helper:
            pass

        network = CallsByKeyword().eval()
        network.helper = Helper()
        before = structure_of(network, IMAGES)
        assert before == structure_of(network, IMAGES)
        del network.helper
        network.helper = Helper()  # often at the same address
        assert before != structure_of(network, IMAGES)

    def test_statistics_of_batchnorm_are_no_structure(self):
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
        before = structure_of(network, IMAGES)
        network[1].running_mean.add_(1)
        network[1].num_batches_tracked.add_(1)
        assert before == structure_of(network, IMAGES)
