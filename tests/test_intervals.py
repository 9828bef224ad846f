"""Intervals cover, tests err as rarely as they say, and both are of one mind."""

import pytest
import torch
from scipy.stats import binomtest, ttest_rel
from torch.distributions import Normal

from enresnet.data import Images
from enresnet.evaluation import accuracy_interval, compare_scores, evaluate, paired_difference
from enresnet.evaluation.aggregation import summarise
from enresnet.evaluation.scoring import Scored
from enresnet.evaluation.statistics import SharedNoise
from problems import SmallNet, random_problem, seeded

PHI = Normal(0.0, 1.0).cdf


def without(right):
    """Return the mean over images of the other draws, for each draw."""
    right = right.double()
    return ((right.sum(dim=1, keepdim=True) - right) / (right.shape[1] - 1)).mean(dim=0)


def shared_noise(images, draws, strength, generator):
    """Return how easy images are, and their chances in draws whose luck they share."""
    ease = 2 * torch.randn(images, 1, generator=generator) + 1
    luck = strength * torch.randn(1, draws, generator=generator)
    return ease, PHI(ease + luck)


@pytest.mark.parametrize("draws", [2, 5, 10])
@pytest.mark.parametrize("strength", [0.1, 0.3, 1.0])
def test_noise_that_images_share_is_covered(draws, strength):
    """As under dropout with one mask a batch."""
    generator, covered = seeded(draws), 0
    truth = float(PHI(torch.tensor(1 / (5 + strength**2) ** 0.5)))
    for _ in range(500):
        _, chances = shared_noise(300, draws, strength, generator)
        right = torch.bernoulli(chances, generator=generator)
        low, high = accuracy_interval(right.mean(dim=1), without=without(right))
        covered += low <= truth <= high
    assert covered / 500 >= 0.93


def test_independent_noise_hardly_widens_the_interval():
    generator, wider = seeded(4), []
    for _ in range(100):
        chances = torch.rand(300, 1, generator=generator).expand(-1, 10)
        right = torch.bernoulli(chances, generator=generator)
        scores = right.mean(dim=1)
        one, two = accuracy_interval(scores), accuracy_interval(scores, without=without(right))
        wider.append((two[1] - two[0]) / (one[1] - one[0]))
    assert 1 < sum(wider) / 100 < 1.1


def scored(margins):
    """Return what margins, images x draws, of the label's logit over the other's amount to."""
    total = margins.sigmoid().cumsum(dim=1)
    draws = margins.shape[1]
    others = total[:, -1:] - margins.sigmoid()
    return Scored(
        margins > 0,
        total > 0.5 * torch.arange(1, draws + 1),
        others > 0.5 * (draws - 1),
        torch.ones(len(margins)),
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("draws", [2, 5, 10])
def test_every_figure_of_the_draws_is_covered(shared, draws):
    """Averaged, always right and lost in k, with noise of each image's own or shared by all."""
    generator = seeded(draws)
    keys = ["averaged", "always", *(k for k in (1, 2, 5, 10) if k <= draws)]

    def found(images, rows):
        ease = 2 * torch.randn(images, 1, generator=generator) + 1
        luck = 0.8 * torch.randn(rows, draws, generator=generator)
        data = Images(torch.zeros(images, 1, 1, 1), torch.zeros(images).long(), ("a", "b"))
        return summarise(scored(ease + luck), data, seconds=1.0, independent=not shared)

    def figures(value, intervals=False):
        if intervals:
            named = [value.averaged_interval, value.always_interval]
            return dict(zip(keys, [*named, *value.broken_in_intervals.values()], strict=True))
        return dict(
            zip(keys, [value.averaged, value.always, *value.broken_in.values()], strict=True)
        )

    truth = figures(found(200_000, 200_000))
    covered = dict.fromkeys(keys, 0)
    for _ in range(1000):
        for key, (low, high) in figures(found(300, 1 if shared else 300), intervals=True).items():
            covered[key] += low <= truth[key] <= high
    assert min(covered.values()) / 1000 >= 0.93, covered


def test_the_figures_of_an_evaluation_have_intervals():
    images, labels = random_problem((60, 3, 8, 8))
    value = evaluate(SmallNet(noise=0.4), (images, labels), draws=5).natural
    assert value.always_interval[0] < value.always < value.always_interval[1]
    assert set(value.broken_in_intervals) == {1, 2, 5}
    for k, (low, high) in value.broken_in_intervals.items():
        assert low <= value.broken_in[k] <= high
    assert value.broken_in_intervals[5] == pytest.approx(
        tuple(1 - bound for bound in reversed(value.always_interval))
    )


def test_many_images_are_no_matter():
    import time

    right = torch.rand(10_000, 10, generator=seeded()) < 0.8
    all_of_it = Scored(right, right, right, torch.rand(10_000, generator=seeded()))
    data = Images(torch.zeros(10_000, 1, 1, 1), torch.zeros(10_000).long(), ("a", "b"))
    start = time.process_time()
    summarise(all_of_it, data, seconds=1.0)
    assert time.process_time() - start < 1


class TestComparisons:
    def test_right_or_wrong_is_mcnemars(self):
        one = torch.tensor([1.0] * 60 + [0.0] * 40)
        two = one.clone()
        two[:12], two[95:] = 0, 1  # 12 lost, 5 won
        found = compare_scores(one, two)
        assert "McNemar" in found.test
        assert found.p_value == pytest.approx(binomtest(5, 17, 0.5).pvalue)
        assert found.difference == pytest.approx(0.07)
        assert found.verdict == "undecided"
        assert compare_scores(one, one).p_value == 1

    def test_shares_are_flipped(self):
        generator = seeded(1)
        one = torch.rand(2000, generator=generator)
        two = (one - 0.005 + 0.1 * torch.randn(2000, generator=generator)).clamp(0, 1)
        found = compare_scores(one, two)
        assert "sign flips" in found.test
        expected = ttest_rel(one.numpy(), two.numpy()).pvalue
        assert found.p_value == pytest.approx(expected, rel=0.3, abs=0.002)
        assert found.verdict == ("better" if expected < 0.05 else "undecided")
        assert compare_scores(two, one).difference == pytest.approx(-found.difference)

    @pytest.mark.parametrize(("images", "draws"), [(20, 1), (20, 10), (200, 1), (200, 10)])
    def test_equal_models_are_rarely_called_different(self, images, draws):
        """Alike on most images, chances of their own on the rest."""
        generator, called = seeded(images + draws), 0
        for _ in range(400):
            one, two = _alike(images, draws, 0.3, generator)
            called += compare_scores(one, two).verdict != "undecided"
        assert called / 400 <= 0.07

    @pytest.mark.parametrize("draws", [1, 4])
    def test_the_interval_and_the_p_value_agree(self, draws):
        generator, decided = seeded(draws), 0
        for number in range(600):
            one, two = _alike((10, 40, 200)[number % 3], draws, 0.2, generator)
            if number % 2:  # a real difference
                two = two * (torch.rand(len(two), generator=generator) < 0.95)
            found = compare_scores(one, two)
            low, high = found.interval
            assert (found.p_value < 0.05) == (not low <= 0 <= high)
            assert -1 <= low <= found.difference <= high <= 1
            decided += found.p_value < 0.05
        assert 10 < decided < 590

    def test_the_interval_covers_a_difference(self):
        for count in (20, 100):
            generator, covered = seeded(), 0
            for _ in range(400):
                easy = torch.rand(count, 1, generator=generator).expand(-1, 3)
                one = torch.bernoulli(easy, generator=generator).mean(dim=1)
                two = torch.bernoulli(0.8 * easy, generator=generator).mean(dim=1)
                _, low, high = paired_difference(one, two)
                covered += low <= 0.1 <= high
            assert covered / 400 >= 0.93

    @pytest.mark.parametrize("draws", [3, 10])
    def test_equal_models_whose_images_share_noise_are_rarely_called_different(self, draws):
        generator, blind, wide = seeded(draws), 0, 0
        for _ in range(200):
            ease = 2 * torch.randn(200, 1, generator=generator)
            found = []
            for _ in range(2):
                luck = 0.5 * torch.randn(1, draws, generator=generator)
                right = torch.bernoulli(PHI(ease + luck), generator=generator)
                found.append((right.mean(dim=1), SharedNoise.of(without(right))))
            (one, first), (two, second) = found
            shared = first.and_of(second)
            value = compare_scores(one, two, shared=shared)
            low, high = value.interval
            assert (value.p_value < 0.05) == (not low <= 0 <= high)
            wide += value.verdict != "undecided"
            blind += compare_scores(one, two).verdict != "undecided"
        assert wide / 200 <= 0.08
        assert blind / 200 > 0.2  # so that this test can fail

    def test_an_evaluation_knows_whether_images_share_noise(self):
        class Dropped(torch.nn.Module):
            def forward(self, images):
                return images.flatten(1)[:, :4] + torch.randn(1, 4)

        images, labels = random_problem((60, 3, 8, 8))
        value = evaluate(Dropped(), (images, labels), draws=8, seed=0, warn=False).natural
        assert value.shared.variance > 0
        assert value.shared.freedom == 7
        alone = evaluate(SmallNet().eval(), (images, labels), warn=False).natural
        assert alone.shared.and_of(alone.shared).variance == 0

    def test_all_and_nothing(self):
        found = compare_scores(torch.ones(10), torch.zeros(10))
        assert found.interval[1] == 1
        assert found.p_value == pytest.approx(2**-9)


def _alike(images, draws, share, generator):
    """Return the scores of two models that are equally good, but not on the same images."""
    one, two = torch.rand(2, images, generator=generator).round(decimals=1) ** 0.5
    two = torch.where(torch.rand(images, generator=generator) < share, two, one)
    return (
        torch.bernoulli(chances[:, None].expand(-1, draws), generator=generator).mean(dim=1)
        for chances in (one, two)
    )
