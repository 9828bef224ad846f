"""Accuracies and their intervals."""

import gc
import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import enresnet
from enresnet.attacks import FGSM, IFGSM, RandomNoise
from enresnet.data import Images, from_dataset
from enresnet.evaluation import accuracy_interval, evaluate, transfer
from problems import SmallNet, assert_same_state, random_problem, seeded, snapshot

IMAGES, LABELS = random_problem((60, 3, 8, 8))


class Coin(nn.Module):
    """Right with a probability that the first pixel of an image tells, wrong otherwise."""

    def __init__(self):
        super().__init__()
        self.generator = seeded(1)

    def forward(self, images):
        chance = images[:, 0, 0, 0]
        heads = torch.rand(len(images), generator=self.generator) < chance
        return nn.functional.one_hot(torch.where(heads, 0, 1), 2).float() + 0 * images.sum()


def coin_problem(chances):
    images = torch.tensor(chances).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return images, torch.zeros(len(chances), dtype=torch.int64)


def test_accuracy_of_a_deterministic_model():
    model = SmallNet().eval()
    result = evaluate(model, (IMAGES, LABELS), draws=10)
    expected = (model(IMAGES).argmax(dim=1) == LABELS).float()
    assert result.natural.accuracy == pytest.approx(expected.mean().item())
    assert torch.equal(result.natural.scores, expected)
    assert result.natural.draws == 1  # it answers twice the same
    assert result.natural.images == 60
    assert result.robust == {}


def test_accuracy_of_a_random_model_is_the_mean_over_draws():
    result = evaluate(Coin(), coin_problem([0.0, 0.5, 0.9, 1.0] * 10), draws=200)
    assert result.natural.draws == 200
    scores = result.natural.scores.view(10, 4).mean(dim=0)
    torch.testing.assert_close(scores, torch.tensor([0, 0.5, 0.9, 1.0]), rtol=0, atol=0.05)
    assert result.natural.accuracy == pytest.approx(0.6, abs=0.03)


def test_accuracies_by_class():
    model = SmallNet().eval()
    result = evaluate(model, Images(IMAGES, LABELS, ("a", "b", "c", "d")))
    for number, name in enumerate("abcd"):
        chosen = result.natural.scores[number == LABELS]
        assert result.natural.per_class[name] == pytest.approx(chosen.mean().item())


def test_attacks_are_keyed_by_name_and_lower_the_accuracy():
    model = SmallNet().eval()
    labels = model(IMAGES).argmax(dim=1)
    attacks = [
        RandomNoise(epsilon=0.2),
        FGSM(epsilon=0.2),
        IFGSM(epsilon=0.2, steps=20),
    ]
    result = evaluate(model, (IMAGES, labels), attacks)
    assert list(result.robust) == ["noise", "fgsm", "ifgsm20"]
    assert result.natural.accuracy == 1
    noise, fgsm, ifgsm = (value.accuracy for value in result.robust.values())
    assert 1 >= noise >= fgsm >= ifgsm
    assert ifgsm < 0.9
    assert "epsilon=0.2" in result.robust["fgsm"].attack
    assert enresnet.evaluate is evaluate


def test_batches_do_not_matter_to_a_deterministic_model():
    model = SmallNet().double().eval()
    images = Images(IMAGES, LABELS, tuple("abcd"))
    model.float()
    one, two = (
        evaluate(model, images, [FGSM(epsilon=0.1)], batch_size=size).to_json() for size in (7, 60)
    )
    assert one["natural"]["accuracy"] == two["natural"]["accuracy"]
    assert one["robust"]["fgsm"]["accuracy"] == two["robust"]["fgsm"]["accuracy"]


def test_the_blind_attack_is_crafted_on_the_source():
    source, target = SmallNet(seed=1).eval(), SmallNet(seed=2).eval()
    attack = IFGSM(epsilon=0.2)
    blind = transfer(source, target, (IMAGES, LABELS), [attack]).robust["ifgsm20"]
    crafted = attack(source, IMAGES, LABELS)
    expected = (target(crafted).argmax(dim=1) == LABELS).float()
    assert torch.equal(blind.scores, expected)
    own = evaluate(target, (IMAGES, LABELS), [attack]).robust["ifgsm20"]
    assert own.accuracy <= blind.accuracy


def test_the_model_is_left_as_it_was():
    model = SmallNet(noise=0.1).train()
    before = snapshot(model)
    evaluate(model, (IMAGES, LABELS), [FGSM()], draws=3)
    assert_same_state(before, snapshot(model))


def test_json_is_plain_and_whole():
    import json

    result = evaluate(SmallNet(noise=0.1), (IMAGES, LABELS), [FGSM()], draws=3)
    values = json.loads(json.dumps(result.to_json()))
    assert values["robust"]["fgsm"]["draws"] == 3
    assert len(values["natural"]["interval"]) == 2
    assert set(values["natural"]) >= {"accuracy", "interval", "per_class", "images", "seconds"}


@pytest.mark.parametrize(("right", "count"), [(0, 20), (20, 20), (7, 20), (500, 1000)])
def test_the_interval_of_a_deterministic_model_is_wilsons(right, count):
    scores = torch.tensor([1.0] * right + [0.0] * (count - right))
    low, high = accuracy_interval(scores)
    z, p = 1.959964, right / count
    root = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count**2))
    assert low == pytest.approx((p + z * z / (2 * count) - root) / (1 + z * z / count), abs=1e-6)
    assert high == pytest.approx((p + z * z / (2 * count) + root) / (1 + z * z / count), abs=1e-6)


@pytest.mark.parametrize("draws", [1, 5, 50])
@pytest.mark.parametrize("rare", [False, True])
def test_the_interval_covers_the_truth_of_a_random_model(draws, rare):
    """Images with chances of their own are drawn anew each time; so is the noise."""
    generator = seeded(draws)
    covered, truth = 0, 0.97 * 0.99 if rare else 1 / 1.3
    for _ in range(400):
        chances = torch.rand(64, generator=generator)
        # A few images decide, or all differ.
        chances = 0.99 * (chances < 0.97).float() if rare else chances**0.3
        scores = torch.bernoulli(chances.expand(draws, -1), generator=generator).mean(dim=0)
        low, high = accuracy_interval(scores)
        covered += low <= truth <= high
    assert covered / 400 >= 0.93


def test_a_model_that_gives_nan_is_refused():
    with pytest.raises(FloatingPointError, match="model gives NaN"):
        evaluate(lambda x: torch.full((len(x), 5), torch.nan), (IMAGES, LABELS))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (((IMAGES, LABELS),), {"draws": 0}, ValueError, "draws must be at least 1"),
        (((IMAGES, LABELS),), {"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        (((IMAGES, LABELS),), {"limit": 0}, ValueError, "limit must be at least 1"),
        (((IMAGES * 2, LABELS),), {}, ValueError, r"images must lie in \[0, 1\]"),
        (((IMAGES, LABELS), [3]), {}, TypeError, "attacks must be names such as"),
        (((IMAGES, LABELS), [FGSM(), FGSM()]), {}, ValueError, r"found FGSM\(.*twice"),
        (((IMAGES, LABELS), {"natural": FGSM()}), {}, ValueError, "words other than natural"),
        ((3,), {}, TypeError, "dataset must have a length"),
        (((IMAGES[:0], LABELS[:0]),), {}, ValueError, "at least one image"),
    ],
)
def test_bad_input(arguments, options, error, words):
    with pytest.raises(error, match=words):
        evaluate(SmallNet(), *arguments, **options)


@pytest.mark.parametrize(
    ("reading", "journal"), [("tensors", False), ("in memory", True), ("streamed", False)]
)
def test_nothing_is_kept_of_a_batch_that_is_done(tmp_path, reading, journal):
    """A few bytes kept of every batch scatter the memory, and the process grows with their number.

    60,000 images of 96 x 96 once took 800 MB more than the first thousand.
    """
    images, labels = random_problem((60, 3, 8, 8))
    pairs = TensorDataset((255 * images).to(torch.uint8), labels)
    data = (
        (images, labels)
        if reading == "tensors"
        else from_dataset(pairs, in_memory=reading == "in memory")
    )
    alive = []

    class Counting(SmallNet):
        def forward(self, x):
            if len(x) == 5:  # a batch, not a first look
                alive.append(
                    sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
                )
            return super().forward(x)

    options = {"journal": tmp_path / "j", "seed": 0} if journal else {}
    evaluate(Counting(classes=4).eval(), data, batch_size=5, draws=1, **options)
    assert len(alive) >= 12
    assert len(set(alive[-10:])) == 1, alive
