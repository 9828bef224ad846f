"""Scores over draws, what they amount to, and tests of differences."""

import itertools

import pytest
import torch
from scipy.stats import binomtest, ttest_rel
from torch import nn

from enresnet.data import Images
from enresnet.evaluation import accuracy_interval, compare, evaluate
from enresnet.evaluation.accuracy import broken_in
from enresnet.evaluation.scoring import Scored, score_draws
from enresnet.evaluation.statistics import calibration_error
from problems import seeded


class Biased(nn.Module):
    """Says class 0 with the probability that the first pixel tells, and sometimes louder."""

    def __init__(self, seed=0):
        super().__init__()
        self.generator = seeded(seed)

    def forward(self, images):
        heads = torch.rand(len(images), generator=self.generator) < images[:, 0, 0, 0]
        return torch.stack([heads * 4.0, (~heads) * 0.5], dim=1)


def problem(*chances):
    images = torch.tensor(chances).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return images, torch.zeros(len(chances), dtype=torch.int64)


def test_the_averaged_prediction_is_another_than_the_single_one():
    """Right in a third of draws, but surer of itself when it is: the mean is right."""
    images, labels = problem(*[0.4] * 200)
    value = evaluate(Biased(), (images, labels), draws=50).natural
    assert value.accuracy == pytest.approx(0.4, abs=0.03)
    assert value.averaged > 0.9
    assert value.always == 0
    first = value.convergence()[0]
    assert first["accuracy"] == first["averaged"] == pytest.approx(0.4, abs=0.1)
    last = value.convergence()[-1]
    assert last["accuracy"] == pytest.approx(value.accuracy)
    assert last["averaged"] == pytest.approx(value.averaged)
    assert len(value.convergence()) == 50


def test_the_mean_of_the_draws_is_that_of_probabilities():
    outputs = iter([torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2)])
    scored = score_draws(lambda _: next(outputs), *problem(0.5), draws=3)
    assert scored.right.tolist() == [[True, False, True]]
    assert scored.averaged.tolist() == [[True, True, True]]
    expected = (torch.tensor([3.0, -1.0, 0.0]).sigmoid()).mean()
    assert scored.confidence.item() == pytest.approx(expected.item(), abs=1e-6)


def test_tries_of_the_same_image():
    """Without bias: the mean over all choices of k among the draws."""
    right = torch.rand(7, 6, generator=seeded()) < 0.7
    for k in (1, 2, 3, 6):
        chosen = [right[:, list(rows)].all(dim=1) for rows in itertools.combinations(range(6), k)]
        expected = 1 - torch.stack(chosen).float().mean().item()
        assert broken_in(right, k) == pytest.approx(expected)
    images, labels = problem(*[0.9] * 3000)
    value = evaluate(Biased(), (images, labels), draws=10).natural
    assert list(value.broken_in) == [1, 2, 5, 10]
    for k, found in value.broken_in.items():
        assert found == pytest.approx(1 - 0.9**k, abs=0.02)
    assert value.always == pytest.approx(1 - value.broken_in[10])


def test_draws_that_images_share_widen_the_interval():
    """One mask a batch, as dropout has it: the interval still covers."""
    generator = seeded(3)
    truth, alone, together = 0.7, 0, 0
    for _ in range(300):
        luck = 0.3 * torch.randn(10, generator=generator)  # of whole draws
        chances = (truth + luck).clamp(0, 1).expand(400, -1)
        right = torch.bernoulli(chances, generator=generator)
        scores = right.mean(dim=1)
        low, high = accuracy_interval(scores)
        alone += low <= truth - 0.012 <= high  # the clamp takes a little off
        low, high = accuracy_interval(scores, right=right)
        together += low <= truth - 0.012 <= high
    assert alone / 300 < 0.6
    assert together / 300 > 0.9


def test_independent_noise_leaves_the_interval_as_it_is():
    generator, widened = seeded(4), 0
    for _ in range(200):
        chances = torch.rand(300, 1, generator=generator).expand(-1, 10)
        right = torch.bernoulli(chances, generator=generator)
        scores = right.mean(dim=1)
        widened += accuracy_interval(scores) != accuracy_interval(scores, right=right)
    assert widened / 200 < 0.05


class TestComparisons:
    def test_right_or_wrong_is_mcnemars(self):
        one = torch.tensor([1.0] * 60 + [0.0] * 40)
        two = one.clone()
        two[:12], two[95:] = 0, 1  # 12 lost, 5 won
        found = compare(one, two)
        assert "McNemar" in found.test
        assert found.p_value == pytest.approx(binomtest(5, 17, 0.5).pvalue)
        assert found.difference == pytest.approx(0.07)
        assert found.verdict == "undecided"
        assert compare(one, one).p_value == 1

    def test_shares_are_bootstrapped(self):
        generator = seeded(1)
        one = torch.rand(300, generator=generator)
        two = (one - 0.02 + 0.1 * torch.randn(300, generator=generator)).clamp(0, 1)
        found = compare(one, two)
        assert "bootstrap" in found.test
        expected = ttest_rel(one.numpy(), two.numpy()).pvalue
        assert found.p_value == pytest.approx(expected, rel=0.5, abs=0.01)
        assert found.verdict == ("better" if expected < 0.05 else "undecided")
        assert compare(two, one).difference == pytest.approx(-found.difference)

    def test_equal_models_are_rarely_called_different(self):
        generator, called = seeded(2), 0
        for _ in range(200):
            chances = torch.rand(150, 1, generator=generator).expand(-1, 5)
            one, two = (torch.bernoulli(chances, generator=generator).mean(dim=1) for _ in "ab")
            called += compare(one, two).verdict != "undecided"
        assert called / 200 < 0.09


def test_calibration():
    assert calibration_error(torch.tensor([0.8] * 10), torch.tensor([1] * 8 + [0] * 2)) < 1e-6
    assert calibration_error(torch.ones(4), torch.zeros(4)) == pytest.approx(1)
    mixed = calibration_error(torch.tensor([0.9, 0.9, 0.1]), torch.tensor([1, 0, 0]))
    assert mixed == pytest.approx((0.8 + 0.1) / 3, abs=1e-6)


def test_scores_join():
    parts = [score_draws(Biased(seed), *problem(0.2, 0.9), draws=3) for seed in (0, 1)]
    whole = Scored.join(parts)
    assert len(whole) == 4
    assert torch.equal(whole.right[2:], parts[1].right)
    assert whole.seconds == pytest.approx(sum(part.seconds for part in parts))


def test_labels_and_classes_must_fit():
    images, labels = problem(0.5, 0.5)
    with pytest.raises(ValueError, match="labels must be below the model's 2 classes"):
        score_draws(Biased(), images, labels + 2)
    with pytest.raises(ValueError, match="tells 2 classes apart, the data has 3"):
        evaluate(Biased(), Images(images, labels, ("cat", "dog", "frog")))
    with pytest.raises(ValueError, match="must return logits N x classes"):
        evaluate(lambda x: x, (images, labels))


def test_chance_level_is_pointed_out():
    generator = seeded(5)
    images = torch.rand(400, 1, 2, 2, generator=generator)
    labels = torch.randint(4, (400,), generator=generator)
    with pytest.warns(UserWarning, match="chance level .* normalise them twice"):
        evaluate(
            lambda x: torch.randn(len(x), 4, generator=generator) + 0 * x.sum(), (images, labels)
        )
