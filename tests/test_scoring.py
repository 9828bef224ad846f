"""Scores over draws, and what they amount to."""

import itertools
import json
import math

import pytest
import torch
from torch import nn

from enresnet.data import Images
from enresnet.evaluation import evaluate
from enresnet.evaluation.aggregation import broken_in
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
    value = evaluate(Biased(), (images, labels), draws=50, warn=False).natural
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
    value = evaluate(Biased(), (images, labels), draws=10, warn=False).natural
    assert list(value.broken_in) == [1, 2, 5, 10]
    for k, found in value.broken_in.items():
        assert found == pytest.approx(1 - 0.9**k, abs=0.02)
    assert value.always == pytest.approx(1 - value.broken_in[10])


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


class Failing(nn.Module):
    """Right, but with a NaN or an infinity among the logits of bright images."""

    def __init__(self, value, wrong=False):
        super().__init__()
        self.value, self.wrong = value, wrong

    def forward(self, images):
        bright = images[:, 0, 0, 0] > 0.5
        logits = torch.tensor([1.0, 0.0, -1.0]).repeat(len(images), 1) + 0 * images.sum()
        logits[bright, 1 if self.wrong else 0] = self.value
        return logits


class TestNumbersThatAreNone:
    IMAGES = problem(*[0.2] * 6, *[0.9] * 4)

    def test_nan_is_a_wrong_answer(self):
        with pytest.warns(UserWarning, match="gave NaN in 4 of 10 predictions"):
            value = evaluate(Failing(math.nan), self.IMAGES, draws=5).natural
        assert value.accuracy == value.averaged == pytest.approx(0.6)
        assert (value.bad, value.draws, value.deterministic) == (4, 1, True)
        json.dumps(value.to_json(), allow_nan=False)

    def test_nan_in_some_draws_does_not_spoil_their_mean(self):
        good, bad = torch.tensor([[2.0, 0.0]]), torch.full((1, 2), math.nan)
        outputs = iter([bad, good, bad])
        scored = score_draws(lambda _: next(outputs), *problem(0.5), draws=3)
        assert scored.right.tolist() == [[False, True, False]]
        assert scored.averaged.tolist() == [[False, True, True]]
        assert scored.without.tolist() == [[True, False, True]]
        assert scored.bad == 2

    @pytest.mark.parametrize("wrong", [False, True])
    def test_infinity_is_certainty(self, wrong):
        value = evaluate(Failing(math.inf, wrong), self.IMAGES).natural
        assert value.accuracy == value.averaged == pytest.approx(0.6 if wrong else 1)
        sure = 0.4 * (1.0 if wrong else 0.0)  # sure of a wrong class, or rightly sure
        rest = 0.6 * (1 - torch.tensor([1.0, 0, -1]).softmax(0)[0].item())
        assert value.calibration_error == pytest.approx(sure + rest, abs=1e-5)
        json.dumps(value.to_json(), allow_nan=False)

    def test_minus_infinity_everywhere_is_no_answer(self):
        images, labels = problem(0.5, 0.5)
        scored = score_draws(lambda x: torch.full((len(x), 2), -math.inf), images, labels)
        assert scored.bad == 2
        assert not scored.right.any()
        assert not scored.averaged.any()
        assert scored.confidence.tolist() == [0, 0]
