"""A linear classifier of two classes, whose worst case in a ball is known."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enresnet.attacks import FGSM, IFGSM, PGD, CarliniWagner
from enresnet.attacks.gradient import expected_gradient
from enresnet.attacks.losses import cross_entropy, margin
from problems import Linear, Noisy, random_problem, seeded


def linear_problem(seed, inset):
    images, labels = random_problem((6, 1, 5, 5), classes=2, seed=seed)
    images = inset + (1 - 2 * inset) * images.double()
    return Linear(25, seed=seed).double(), images, labels


def start(kind, seed):
    return {"generator": seeded(seed)} if kind is PGD else {}


def slope(model, labels):
    """The direction that lowers each example's margin fastest, N x features."""
    difference = model.weight[1] - model.weight[0]
    return torch.where(labels[:, None] == 0, difference, -difference).detach()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 50), st.sampled_from([0.01, 8 / 255, 0.2]), st.sampled_from([FGSM, IFGSM, PGD])
)
def test_linf_worst_case(seed, epsilon, kind):
    model, images, labels = linear_problem(seed, inset=0.0)
    worst = (images + epsilon * slope(model, labels).sign().view_as(images)).clamp(0, 1)
    adversarial = kind(epsilon=epsilon, **start(kind, seed))(model, images, labels)
    torch.testing.assert_close(adversarial, worst, rtol=0, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 50), st.sampled_from([0.01, 0.1, 0.2]), st.sampled_from([FGSM, IFGSM, PGD]))
def test_l2_worst_case(seed, epsilon, kind):
    # The images keep away from 0 and 1, so that the box does not cut the ball.
    model, images, labels = linear_problem(seed, inset=0.25)
    direction = slope(model, labels)
    direction = direction / direction.norm(dim=1, keepdim=True)
    worst = images + epsilon * direction.view_as(images)
    options = {} if kind is FGSM else {"steps": 60}
    attack = kind(epsilon=epsilon, norm="l2", **start(kind, seed), **options)
    reached = margin(model(attack(model, images, labels)), labels)
    torch.testing.assert_close(reached, margin(model(worst), labels), rtol=1e-3, atol=1e-3)
    assert (reached >= margin(model(worst), labels) - 1e-9).all()


def test_the_gradient_of_saturated_cross_entropy_survives():
    """At a margin of 60 nats float32 loses the label's share of the gradient; float64 keeps it."""
    logits = torch.tensor([[60.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(cross_entropy(logits, torch.tensor([0])).sum(), logits)
    assert gradient[0, 1] > 0
    logits = torch.tensor([[25.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(cross_entropy(logits, torch.tensor([0])).sum(), logits)
    assert gradient[0, 0] == pytest.approx(-gradient[0, 1].item(), rel=1e-4)


def test_the_expected_gradient_is_the_mean_over_draws():
    scales = iter([1.0, 2.0, 6.0])
    gradient = expected_gradient(lambda x: x.sum(dim=1) * next(scales), torch.zeros(2, 3), eot=3)
    assert torch.equal(gradient, torch.full((2, 3), 3.0))


def test_a_clipped_pixel_turns_round_at_once():
    """Pixel space projects after every step: no momentum is stored beyond the border."""
    push = iter([1.0] * 20 + [-1.0] * 100)

    def model(images):  # the margin's slope in the pixel changes its sign after 20 steps
        return torch.cat([50 - next(push) * (images - 1), 0 * images], dim=1)

    attack = CarliniWagner(space="pixel", steps=60, step_size=0.01, eot=1)
    image = torch.ones(1, 1)
    assert attack(model, image, torch.tensor([0])).item() < 0.9


@pytest.mark.parametrize("space", ["tanh", "pixel"])
class TestCarliniWagner:
    def test_finds_nearly_the_smallest_change(self, space):
        """In linf the smallest change that crosses the boundary is margin / |w|_1."""
        model, images, labels = linear_problem(3, inset=0.3)
        labels = model(images).argmax(dim=1)
        smallest = margin(model(images), labels) / slope(model, labels).abs().sum(dim=1)
        attack = CarliniWagner(space=space, steps=2000, step_size=1e-3, c=10.0)
        adversarial = attack(model, images, labels)
        assert (margin(model(adversarial), labels) < 0).all()
        size = (adversarial - images).abs().flatten(1).amax(dim=1)
        assert (size >= smallest - 1e-9).all()
        assert (size <= 1.5 * smallest + 2e-3).all()

    def test_leaves_what_is_wrong_already(self, space):
        model, images, _ = linear_problem(0, inset=0.0)
        wrong = 1 - model(images).argmax(dim=1)
        assert torch.equal(CarliniWagner(space=space)(model, images, wrong), images)

    def test_confidence_is_reached(self, space):
        model, images, labels = linear_problem(1, inset=0.2)
        labels = model(images).argmax(dim=1)
        attack = CarliniWagner(space=space, kappa=1.0, steps=500, step_size=5e-3)
        assert (margin(model(attack(model, images, labels)), labels) <= -0.99).all()

    def test_without_confidence_noise_makes_it_right_again(self, space):
        """At the boundary later draws differ from those of the search; beyond it they do not."""
        images, labels = random_problem((20, 1, 5, 5), classes=2, seed=1)
        images = 0.2 + 0.6 * images
        model = Noisy(25, seed=1)
        labels = Linear(25, seed=1)(images).argmax(dim=1)
        right = {}
        for kappa in (0.0, 2.0):
            torch.manual_seed(0)
            attack = CarliniWagner(space=space, kappa=kappa, steps=300, step_size=5e-3, eot=5)
            attacked = attack(model, images, labels)
            draws = torch.stack([model(attacked).argmax(dim=1) == labels for _ in range(200)])
            right[kappa] = draws.float().mean().item()
        assert right[0.0] > 0.05
        assert right[2.0] < 0.01

    def test_minimises_the_size_of_the_change(self, space):
        """Once the boundary is crossed the largest change shrinks again, and c says how much."""
        model, images, labels = linear_problem(3, inset=0.3)
        labels = model(images).argmax(dim=1)

        def size(c, kappa):
            attack = CarliniWagner(space=space, steps=600, step_size=2e-3, c=c, kappa=kappa)
            return (attack(model, images, labels) - images).abs().flatten(1).amax(dim=1).mean()

        assert size(10.0, 0.0) < size(10.0, 1.0)
        # So small a c buys no success; the change is all that is left to minimise.
        assert size(1e-9, 0.0) < 0.2 * size(10.0, 0.0)

    def test_keeps_the_best_point_not_the_last(self, space):
        """With steps far too large the path crosses the boundary and overshoots."""
        model, images, labels = linear_problem(3, inset=0.3)
        labels = model(images).argmax(dim=1)
        sizes = [
            (CarliniWagner(space=space, steps=k, step_size=0.02)(model, images, labels) - images)
            .abs()
            .flatten(1)
            .amax(dim=1)
            for k in (60, 61, 62, 63, 64, 120)
        ]
        attack = CarliniWagner(space=space, steps=60, step_size=0.02)
        assert (model(attack(model, images, labels)).argmax(dim=1) != labels).all()
        for fewer, more in itertools.pairwise(sizes):
            assert (more <= fewer + 1e-12).all()

    def test_the_point_after_the_last_step_counts(self, space):
        model, images, labels = linear_problem(3, inset=0.3)
        labels = model(images).argmax(dim=1)
        far = 0.9 if space == "pixel" else 9.0
        attack = CarliniWagner(space=space, steps=1, step_size=far)
        assert (model(attack(model, images, labels)).argmax(dim=1) != labels).all()

    def test_moves_no_farther_than_its_steps_allow(self, space):
        model, images, labels = linear_problem(2, inset=0.3)
        attack = CarliniWagner(space=space)  # 50 steps of 6e-4
        bound = 50 * 6e-4 * (0.5 if space == "tanh" else 1.0)
        change = (attack(model, images, labels) - images).abs().max()
        assert 0.1 * bound < change <= 1.01 * bound
