"""APGD and Square: their schedules, their losses, their strength, their honesty under noise."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from enresnet.attacks import APGD, IFGSM, PGD, RandomNoise, Square, create_attack
from enresnet.attacks.apgd import checkpoints
from enresnet.attacks.common_random_numbers import CommonRandomNumbers
from enresnet.attacks.losses import difference_of_logits_ratio, margin, targeted_ratio
from enresnet.data import load_data
from enresnet.models import NoiseInjection, create_model, inject_noise, without_noise
from enresnet.training import Trainer, load_recipe
from problems import Linear, random_problem, seeded

EPSILON = 0.15


@pytest.fixture(scope="module")
def trained():
    """Return a small robust network with noise, and test images."""
    data = load_data("digits")
    model = create_model("en1_resnet8", in_channels=1, generator=seeded())
    recipe = load_recipe("fast", epochs=5, epsilon=EPSILON, batch_size=64)
    list(Trainer(model, data, recipe).epochs())
    return model.eval(), *data.test.batch(slice(96))


def accuracy(model, images, labels):
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).double().mean().item()


def test_the_checkpoints_are_the_papers():
    assert sorted(checkpoints(100)) == [22, 41, 57, 70, 80, 87, 93, 99]


def test_the_ratio_of_logits():
    logits = torch.tensor([[5.0, 1.0, 3.0, 0.0], [0.0, 2.0, 1.0, -1.0]])
    labels = torch.tensor([0, 0])
    expected = torch.tensor([-(5 - 3) / (5 - 1), -(0 - 2) / (2 - 0)])
    torch.testing.assert_close(difference_of_logits_ratio(logits, labels), expected)
    scaled = difference_of_logits_ratio(100 * logits, labels)
    torch.testing.assert_close(scaled, expected)
    targets = torch.tensor([1, 2])
    found = targeted_ratio(logits, labels, targets)
    torch.testing.assert_close(found, torch.tensor([(1 - 5) / (5 - 0.5), 1 / (2 + 0.5)]))
    two = logits[:, :2]
    torch.testing.assert_close(difference_of_logits_ratio(two, labels), -margin(two, labels))
    torch.testing.assert_close(targeted_ratio(two, labels, 1 - labels), two[:, 1] - two[:, 0])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "dlr", "targeted_dlr"])
def test_a_linear_classifiers_worst_case_is_found(loss, norm):
    """Two classes: the smallest margin in the ball is known."""
    images, labels = random_problem((6, 1, 4, 4), classes=2)
    images = 0.3 + 0.4 * images  # the box does not matter
    model = Linear(16)
    attacked = APGD(epsilon=0.1, steps=20, loss=loss, norm=norm, generator=seeded())(
        model, images, labels
    )
    direction = (model.weight[1 - labels] - model.weight[labels]).detach()
    length = direction.abs().sum(1) if norm == "linf" else direction.norm(dim=1)
    best = margin(model(images), labels) - 0.1 * length
    torch.testing.assert_close(margin(model(attacked), labels), best, rtol=1e-3, atol=1e-3)


def test_it_is_stronger_than_pgd_of_the_same_length(trained):
    model, images, labels = trained
    with without_noise(model):
        found = {
            name: accuracy(model, attack(model, images, labels), labels)
            for name, attack in {
                "noise": RandomNoise(epsilon=EPSILON, generator=seeded()),
                "square": Square(epsilon=EPSILON, steps=150, generator=seeded()),
                "ifgsm": IFGSM(epsilon=EPSILON, steps=20),
                "apgd": APGD(epsilon=EPSILON, steps=20, generator=seeded()),
                "targeted": APGD(
                    epsilon=EPSILON, steps=20, loss="targeted_dlr", generator=seeded()
                ),
            }.items()
        }
    assert found["targeted"] <= found["apgd"] + 0.02
    assert found["apgd"] <= found["ifgsm"] + 0.03
    assert found["ifgsm"] < found["noise"]
    assert found["square"] < found["noise"]


@pytest.mark.parametrize(
    "attack",
    [
        lambda: APGD(epsilon=0.1, steps=5, eot=2, generator=seeded()),
        lambda: APGD(epsilon=0.1, steps=3, loss="targeted_dlr", targets=2, generator=seeded()),
        lambda: APGD(epsilon=0.5, steps=5, norm="l2", loss="dlr", generator=seeded()),
        lambda: Square(epsilon=0.1, steps=5, generator=seeded()),
    ],
)
class TestContracts:
    def test_it_stays_in_the_ball_and_repeats_itself(self, attack):
        images, labels = random_problem((5, 3, 8, 8))
        model = create_model("resnet8", num_classes=4, generator=seeded()).eval()
        first = attack()(model, images, labels)
        assert 0 <= first.min() <= first.max() <= 1
        change = (first - images).flatten(1)
        if getattr(attack(), "norm", "linf") == "l2":
            assert (change.norm(dim=1) <= 0.5 + 1e-6).all()
        else:
            assert (change.abs() <= 0.1 + 1e-6).all()
        assert torch.equal(first, attack()(model, images, labels))
        apart = attack()(model, images, labels, batch_size=2)
        torch.testing.assert_close(apart, first, rtol=0, atol=1e-4)

    def test_it_counts_its_passes(self, attack):
        model = create_model("en1_resnet8", num_classes=4, generator=seeded()).eval()
        images, labels = random_problem((2, 3, 8, 8))
        seen = []
        model.register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
        attack()(model, images, labels)
        assert sum(seen) <= 2 * attack().passes


class Coin(nn.Module):
    """Right or wrong by chance, the same for every image: nothing can be found here."""

    def __init__(self, right):
        super().__init__()
        self.right, self.generator = right, torch.Generator().manual_seed(0)

    def forward(self, images):
        heads = torch.rand(len(images), generator=self.generator) < self.right
        first = torch.where(heads, 1.0, -1.0)
        return torch.stack([first, -first, first - 3, first - 4], dim=1) + 0 * images.sum()


@pytest.mark.parametrize(
    "attack",
    [
        APGD(epsilon=0.1, steps=10, eot=5, generator=seeded()),
        Square(epsilon=0.1, steps=10, eot=5, generator=seeded()),
    ],
)
def test_luck_is_not_success(attack):
    """A model that errs in a tenth of its draws is not broken by asking it often."""
    images, labels = random_problem((64, 3, 8, 8))
    labels[:] = 0
    model = Coin(0.9)
    attacked = attack(model, images, labels)
    with torch.no_grad():
        right = torch.stack([model(attacked).argmax(dim=1) == 0 for _ in range(50)]).double()
    assert abs(right.mean() - 0.9) < 0.03


class Shaken(nn.Module):
    """Linear with noise on its logits, from one source or another; remembers what it drew."""

    def __init__(self, source):
        super().__init__()
        self.linear, self.source, self.drawn = Linear(16), source, []
        self.held = {"in a list": [seeded()]}
        self.noise = NoiseInjection(0.5, generator=seeded())

    def forward(self, images):
        logits = self.linear(images)
        if self.source == "own noise":
            noisy = self.noise(logits)
        elif self.source == "function":
            noisy = inject_noise(logits, 0.5)
        elif self.source == "dropout":
            noisy = nn.functional.dropout(logits, training=True)
        else:
            generator = self.held.get(self.source, [None])[0]
            noisy = logits + torch.randn(logits.shape, generator=generator)
        self.drawn.append(noisy - logits)
        return noisy


def searched(model, called=None, *, eot=2, steps=4, images=3):
    """Let Square search among points that hardly differ; return what was drawn in each step."""
    pixels, _ = random_problem((images, 1, 4, 4), classes=2)
    labels = model.linear(pixels).argmax(dim=1)
    attack = Square(epsilon=1e-4, steps=steps, eot=eot, generator=seeded())
    attack(called or model, pixels, labels)
    tried = [noise.sign() for noise in model.drawn if len(noise) == images]
    start = 1 + eot  # it was watched once, and the start was judged
    return [tried[start + 2 * eot * i :][: 2 * eot] for i in range(steps)]


def distinct(noises):
    return len({tuple(noise.flatten().tolist()) for noise in noises})


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("source", ["own noise", "function", "in a list", "torch", "dropout"])
def test_square_judges_old_and_new_points_under_the_same_noise(source, wrapped):
    model = Shaken(source).eval()
    steps = searched(model, (lambda x: model(x)) if wrapped else None, images=8)
    assert len(steps) == 4
    for new, new_too, old, old_too in steps:
        assert torch.equal(new, old)
        assert torch.equal(new_too, old_too)
    assert distinct(noise for step in steps for noise in step[:2]) == 8


class Keeps(Shaken):
    """Draws anew in some calls only, and answers the others with what it has."""

    def __init__(self, every):
        super().__init__("torch")
        self.every, self.calls, self.kept = every, 0, None

    def forward(self, images):
        logits = self.linear(images)
        if self.calls % self.every == 0 or self.kept.shape != logits.shape:
            self.kept = torch.randn(logits.shape)
        self.calls += 1
        self.drawn.append(self.kept)
        return logits + 0.1 * self.kept


@pytest.mark.parametrize("every", [2, 3, 7])
def test_no_noise_comes_back_in_a_later_step(every):
    """Of the two points of a step only one meets a new draw of such a model."""
    model = Keeps(every).eval()
    searched(model, eot=1, steps=20, images=8)
    runs = [model.drawn[0]]
    for noise in model.drawn[1:]:
        if noise is not runs[-1]:
            runs.append(noise)
    assert len(runs) >= len(model.drawn) / every
    assert distinct(runs) >= len(runs) - 1  # what it was watched with is put back once


@pytest.mark.parametrize("source", ["own noise", "in a list", "torch"])
def test_being_watched_leaves_the_noise_where_it_was(source):
    model, images = Shaken(source).eval(), random_problem((3, 1, 4, 4), classes=2)[0]
    generators = [torch.default_generator, model.noise.stream.source, model.held["in a list"][0]]
    before = [generator.get_state() for generator in generators]
    CommonRandomNumbers(0).watch(lambda: model(images))
    after = [generator.get_state() for generator in generators]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    model(images)
    after = [generator.get_state() for generator in generators]
    assert [torch.equal(one, two) for one, two in zip(before, after, strict=True)].count(False) == 1


def test_torchs_own_generator_is_left_to_those_who_draw_from_it():
    """What another thread draws meanwhile must not come again."""
    model, others = Shaken("own noise").eval(), []

    def called(x):
        with ThreadPoolExecutor(1) as pool:
            others.append(float(pool.submit(torch.rand, (), dtype=torch.float64).result()))
        return model(x)

    searched(model, called)
    assert len(set(others)) == len(others) > 10


def test_noise_hardly_weakens_square(trained):
    """A step changes a margin by less than noise does, unless both points meet the same noise."""
    model, images, labels = trained

    def left():
        square = Square(epsilon=EPSILON, steps=150, eot=2, generator=seeded())
        attacked = square(model, images, labels)
        return sum(accuracy(model, attacked, labels) for _ in range(5)) / 5

    noisy, clean = left(), sum(accuracy(model, images, labels) for _ in range(5)) / 5
    with without_noise(model):
        noiseless = left()
    assert clean - noisy > 0.7 * (clean - noiseless)


def test_names():
    assert repr(create_attack("apgd100_dlr", epsilon=0.1)).startswith("APGD(epsilon=0.1, steps=100")
    for name in ("apgd100", "apgd50_t", "apgd100_dlr_l2", "square", "square500"):
        assert create_attack(name).name == name
    for name in ("square_l2", "apgd100_targeted", "pgd20_dlr", "apgd_x"):
        with pytest.raises(ValueError, match="unknown attack"):
            create_attack(name)
    with pytest.raises(ValueError, match="loss must be one of"):
        APGD(loss="hinge")


def test_the_squares_shrink():
    attack = Square(steps=1000)
    sides = [attack._side(step, torch.Size((32, 32))) for step in range(1000)]
    assert sides == sorted(sides, reverse=True)
    assert sides[0] == round(math.sqrt(0.8 * 1024))
    assert sides[1] == round(math.sqrt(0.4 * 1024))
    assert sides[-1] == 1


def test_pgd_still_means_pgd():
    assert PGD(steps=3).name == "pgd3"
