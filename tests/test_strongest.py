"""Surrogates, and the suite that keeps the worst of all attacks for each image."""

import pytest
import torch
from torch import nn

from enresnet.attacks import APGD, FGSM, IFGSM, Square, Strongest, attack_at
from enresnet.attacks.losses import cross_entropy
from enresnet.attacks.strongest import DETERMINISTIC, NOISE_OFF, RANDOM, plan
from enresnet.attacks.surrogates import averaged_output, summed_losses, surrogates
from enresnet.data import load_data
from enresnet.evaluation import evaluate
from enresnet.evaluation.scoring import score
from enresnet.models import create_model, without_noise
from enresnet.models.noise import noise_modules
from enresnet.training import Trainer, load_recipe
from problems import Linear, SmallNet, assert_same_state, random_problem, seeded, snapshot

pytestmark = pytest.mark.usefixtures("one_thread")
EPSILON = 0.15


@pytest.fixture(scope="module")
def trained():
    """Return a small robust ensemble with noise, and test images."""
    data = load_data("digits")
    model = create_model("en2_resnet8", in_channels=1, generator=seeded())
    recipe = load_recipe("fast", epochs=4, epsilon=EPSILON, batch_size=64)
    torch.set_num_threads(1)
    list(Trainer(model, data, recipe).epochs())
    return model.eval(), *data.test.batch(slice(96))


class TestSurrogates:
    def test_which_there_are(self):
        ensemble = create_model("en2_resnet8", generator=seeded())
        names = [
            "itself",
            "noise off",
            "averaged output",
            "members' losses",
            "member 1",
            "member 2",
        ]
        assert list(surrogates(ensemble, 5, deterministic=False)) == names
        plain = create_model("resnet8", generator=seeded())
        assert list(surrogates(plain, 1, deterministic=True)) == ["itself"]
        assert list(surrogates(lambda x: x, 5, deterministic=False)) == [
            "itself",
            "averaged output",
        ]
        with without_noise(ensemble):
            names = ["itself", "members' losses", "member 1", "member 2"]
            assert list(surrogates(ensemble, 1, deterministic=True)) == names

    def test_noise_off(self):
        model = create_model("en1_resnet8", generator=seeded()).eval()
        images, _ = random_problem((2, 3, 16, 16))
        off = surrogates(model, 5, deterministic=False)["noise off"]
        with torch.no_grad(), off.within():
            assert torch.equal(off.model(images), off.model(images))
        assert all(place.noise > 0 for place in noise_modules(model))

    def test_the_averaged_output(self):
        outputs = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]])]
        draws = iter(outputs)
        found = averaged_output(lambda _: next(draws), 2)(torch.zeros(1, 1)).softmax(dim=1)
        expected = torch.stack([output.softmax(dim=1) for output in outputs]).mean(dim=0)
        torch.testing.assert_close(found, expected)

    def test_the_members_losses(self):
        """Value and gradient of the cross-entropy are the means of the members'."""
        images, labels = random_problem((6, 3, 8, 8))
        members = [SmallNet(seed=seed).eval() for seed in (1, 2, 3)]
        leaf = images.clone().requires_grad_()
        found = cross_entropy(summed_losses(members)(leaf), labels)
        apart = torch.stack([cross_entropy(member(leaf), labels) for member in members])
        torch.testing.assert_close(found, apart.mean(dim=0).double(), check_dtype=False)
        gradients = [torch.autograd.grad(v.sum(), leaf)[0] for v in (found, apart.mean(dim=0))]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


class TestPlan:
    def test_shares_add_up(self):
        ensemble = create_model("en2_resnet8", generator=seeded())
        for model, deterministic, stages in (
            (ensemble, False, NOISE_OFF),
            (create_model("resnet8"), True, DETERMINISTIC),
            (lambda x: x, False, RANDOM),
        ):
            known = surrogates(model, 5, deterministic=deterministic)
            chosen = plan(known, deterministic=deterministic)
            assert sum(stage.share for stage, _ in chosen) == pytest.approx(1)
            assert {stage.loss for stage, _ in chosen} == {stage.loss for stage in stages}
        names = [
            value.name
            for _, value in plan(surrogates(ensemble, 5, deterministic=False), deterministic=False)
        ]
        assert "member 1" in names
        assert "member 2" in names
        assert "members' losses" in names


def test_a_linear_classifiers_worst_case_is_found():
    images, _ = random_problem((40, 1, 4, 4))
    model = Linear(16)
    labels = model(images).argmax(dim=1)
    slope = (model.weight[1] - model.weight[0]).abs()
    flat = images.flatten(1)
    direction = (model.weight[1] - model.weight[0]).sign() * (1 - 2 * labels.float())[:, None]
    moved = (flat + 0.05 * direction).clamp(0, 1)
    expected = (model(moved).argmax(dim=1) == labels).float()
    assert 0 < expected.mean() < 1
    assert slope.min() > 0
    attack = Strongest(epsilon=0.05, budget=200, eot=1, generator=seeded())
    assert torch.equal(score(model, attack(model, images, labels), labels), expected)


def test_it_is_at_least_as_strong_as_its_parts(trained):
    model, images, labels = trained
    strongest = Strongest(epsilon=EPSILON, budget=300, generator=seeded())
    parts = [
        FGSM(epsilon=EPSILON, eot=5),
        IFGSM(epsilon=EPSILON, steps=20, eot=5),
        APGD(epsilon=EPSILON, steps=30, loss="dlr", eot=5, generator=seeded()),
    ]
    result = evaluate(model, (images, labels), [strongest, *parts], draws=20, seed=0)
    worst = result.robust.pop("strongest")
    for value in result.robust.values():
        assert worst.accuracy <= value.accuracy + 0.01
    assert worst.accuracy < result.natural.accuracy
    assert 0 < worst.gradients <= 330  # the budget, and nothing after an image is lost
    delta = strongest(model, images, labels) - images
    assert delta.abs().max() <= EPSILON + 1e-6


class Coin(nn.Module):
    """Right in nine draws of ten, whatever the image: no attack can do anything."""

    def __init__(self):
        super().__init__()
        self.generator = seeded(1)

    def forward(self, images):
        wrong = torch.rand(len(images), generator=self.generator) < 0.1
        return torch.stack([1.0 - 2 * wrong, 0 * wrong], dim=1) + 0 * images.sum()


def test_luck_does_not_break_a_model():
    images = torch.rand(60, 1, 4, 4, generator=seeded())
    labels = torch.zeros(60, dtype=torch.int64)
    attack = Strongest(epsilon=0.1, budget=100, eot=2, generator=seeded())
    value = evaluate(Coin(), (images, labels), [attack], draws=50).robust["strongest"]
    assert value.accuracy == pytest.approx(0.9, abs=0.02)


def test_what_is_lost_takes_no_more(trained):
    model, images, labels = trained
    wrong = (labels + 1) % 10  # already misclassified in every draw
    attack = Strongest(epsilon=EPSILON, budget=300, generator=seeded())
    attack(model, images, wrong)
    gradients, evaluations = attack.spent
    assert gradients < 0.1 * 300 * len(images)
    assert evaluations < 65 * len(images)


def test_the_model_is_left_as_it_was(trained):
    model, images, labels = trained
    before = snapshot(model)
    noise = [place.noise for place in noise_modules(model)]
    Strongest(epsilon=EPSILON, budget=100, generator=seeded())(model, images[:4], labels[:4])
    assert_same_state(before, snapshot(model))
    assert [place.noise for place in noise_modules(model)] == noise


def test_by_name():
    attack = attack_at("strongest", 0.1, eot=3, seed=1, budget=500)
    assert (attack.epsilon, attack.eot, attack.budget) == (0.1, 3, 500)
    assert "budget=500" in repr(attack)
    with pytest.raises(ValueError, match="budget must be at least 100"):
        Strongest(budget=10)
    with pytest.raises(ValueError, match="unknown attack"):
        attack_at("strongest_l2", 0.1)


class NoisyLogits:
    """A linear classifier whose logits carry noise of a known size."""

    def __init__(self, noise: float) -> None:
        self.noise, self._generator = noise, seeded(7)
        self.weight = torch.randn(36, 10, generator=seeded(1))

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        logits = (images.flatten(1) - 0.5) @ self.weight
        return logits + self.noise * torch.randn(logits.shape, generator=self._generator)


@pytest.mark.parametrize(
    ("noise", "epsilon"), [(0.1, 0.02), (0.3, 0.02), (1.0, 0.02), (3.0, 0.05), (5.0, 0.1)]
)
def test_it_is_not_weaker_than_its_parts_however_large_the_noise(noise, epsilon):
    images = 0.2 + 0.6 * torch.rand(100, 1, 6, 6, generator=seeded(2))
    labels = NoisyLogits(0.0)(images).argmax(dim=1)
    model = NoisyLogits(noise)
    part = APGD(epsilon=epsilon, steps=100, eot=5, generator=seeded())
    whole = Strongest(epsilon=epsilon, generator=seeded())
    left = [
        float(score(model, attack(model, images, labels), labels, draws=200).mean())
        for attack in (part, whole)
    ]
    assert left[1] <= left[0] + 0.01


def test_a_model_that_is_not_ours_is_asked_whether_it_is_deterministic():
    images, labels = random_problem((8, 3, 8, 8))
    network = SmallNet().eval()
    known = Strongest(epsilon=0.05, budget=100, generator=seeded())
    wrapped = Strongest(epsilon=0.05, budget=100, generator=seeded())
    known(network, images, labels)
    wrapped(lambda x: network(x), images, labels)
    judged = wrapped.spent[1] - wrapped.spent[0]
    assert judged < 100 * len(images)  # a randomised one's points are judged on many draws
    assert wrapped.spent == known.spent


@pytest.mark.parametrize("eot", [1, 2])
def test_square_does_not_give_up_an_image_for_a_lucky_draw(eot):
    images = 0.2 + 0.6 * torch.rand(60, 1, 6, 6, generator=seeded(2))
    labels = NoisyLogits(0.0)(images).argmax(dim=1)
    model = NoisyLogits(2.0)
    attack = Square(epsilon=0.03, steps=50, eot=eot, generator=seeded())
    attack(model, images, labels)
    assert attack.spent[1] / len(images) > 0.8 * 2 * 50 * eot
