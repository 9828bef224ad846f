"""What every attack promises, checked over shapes, types and radii."""

import inspect
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from enresnet.attacks import (
    APGD,
    FGSM,
    FMN,
    IFGSM,
    PGD,
    AutoAttack,
    CarliniWagner,
    RandomNoise,
    Square,
    Strongest,
)
from enresnet.attacks.registry import ATTACKS
from enresnet.models import batch_mates
from problems import (
    BOUNDED,
    Linear,
    SmallNet,
    every_attack,
    fits,
    random_problem,
    reseeded,
    seeded,
)

quick = settings(max_examples=25, deadline=None)

image_shapes = st.tuples(
    st.integers(1, 4), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)
)
shapes = image_shapes | st.tuples(st.integers(1, 4), st.integers(1, 40))
dtypes = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
norms = st.sampled_from(["linf", "l2"])
epsilons = st.sampled_from([0.0, 1e-6, 1e-4, 0.031, 8 / 255, 0.3, 1.0]) | st.floats(0, 1)
goals = st.sampled_from(["untargeted", "targeted", "runner_up"])
spaces = st.sampled_from(["tanh", "pixel"])
seeds = st.integers(0, 99)
kinds = st.sampled_from(BOUNDED)
any_attack = st.integers(0, len(every_attack()) - 1).map(lambda index: every_attack()[index])


def problem(shape, dtype, seed, classes=3):
    images, labels = random_problem(shape, classes=classes, seed=seed)
    model = Linear(images[0].numel(), classes=classes, seed=seed).to(dtype)
    return model, images.to(dtype), labels


def bounded(kind, *, steps=3, seed=0, **options):
    options["generator"] = seeded(seed)
    if options.get("goal") == "targeted":
        options.setdefault("targets", "random")
    if kind not in (FGSM, RandomNoise):
        options["steps"] = steps
    return kind(**options)


def farthest(adversarial, images):
    """Return the largest change of a pixel, exactly."""
    pairs = zip(adversarial.flatten().tolist(), images.flatten().tolist(), strict=True)
    return max(abs(Fraction(a) - Fraction(b)) for a, b in pairs)


def aims(goal, labels):
    """Return the targets that a goal needs, of three classes."""
    return {"targets": (labels + 1) % 3} if goal == "targeted" else {}


def losses(model, images, labels):
    return nn.functional.cross_entropy(model(images).double(), labels, reduction="none")


@settings(max_examples=60, deadline=None)
@given(shapes, dtypes, epsilons, norms, goals, seeds, kinds, st.integers(1, 4))
def test_bounded_attacks_stay_in_ball_and_box(shape, dtype, epsilon, norm, goal, seed, kind, steps):
    model, images, labels = problem(shape, dtype, seed)
    attack = bounded(kind, epsilon=epsilon, norm=norm, goal=goal, seed=seed, steps=steps)
    adversarial = attack(model, images, labels)
    assert adversarial.dtype == dtype
    assert adversarial.shape == images.shape
    assert adversarial.min() >= 0
    assert adversarial.max() <= 1
    change = (adversarial.double() - images.double()).flatten(1)
    if norm == "linf":
        assert farthest(adversarial, images) <= Fraction(epsilon)
    else:
        assert change.norm(dim=1).max() <= epsilon
    if epsilon == 0:
        assert torch.equal(adversarial, images)
    assert adversarial.data_ptr() != images.data_ptr()


def test_every_attack_is_held_to_the_contracts():
    kinds = {type(attack) for attack in every_attack()}
    assert {kind for kind in ATTACKS.values() if kind is not AutoAttack} <= kinds


@pytest.mark.parametrize("attack", every_attack(), ids=repr)
@pytest.mark.parametrize("shape", [(3, 3, 8, 8), (3, 20)])
def test_every_attack_stays_in_its_ball_and_box(attack, shape):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        model, images, labels = problem(shape, dtype, 0)
        if not fits(attack, images):
            pytest.skip("takes no such images")
        adversarial = attack(model, images, labels, seed=0)
        assert adversarial.dtype == dtype
        assert 0 <= adversarial.min() <= adversarial.max() <= 1
        radius = getattr(attack, "epsilon", getattr(attack, "max_epsilon", None))
        if radius is None:  # only [0, 1] bounds it
            continue
        if getattr(attack, "norm", "linf") == "l2":
            change = (adversarial.double() - images.double()).flatten(1)
            assert change.norm(dim=1).max() <= radius
        else:
            assert farthest(adversarial, images) <= Fraction(radius)


@quick
@given(shapes, dtypes, goals, spaces, seeds)
def test_carlini_wagner_stays_in_the_box(shape, dtype, goal, space, seed):
    model, images, labels = problem(shape, dtype, seed)
    attack = CarliniWagner(steps=5, step_size=0.1, space=space, goal=goal)
    adversarial = attack(model, images, labels, **aims(goal, labels))
    assert adversarial.dtype == dtype
    assert 0 <= adversarial.min() <= adversarial.max() <= 1


@quick
@given(shapes, any_attack, seeds, st.integers(0, 3))
def test_examples_do_not_meet(shape, attack, seed, mates):
    model, images, labels = problem(shape, torch.float64, seed)
    assume(fits(attack, images))
    strangers, other_labels = random_problem((mates, *shape[1:]), classes=3, seed=seed + 1)
    among_strangers = (torch.cat([images, strangers.double()]), torch.cat([labels, other_labels]))
    together = reseeded(attack, seed)(model, images, labels)
    longer = reseeded(attack, seed)(model, *among_strangers)[: len(images)]
    alone = reseeded(attack, seed)(model, images[:1], labels[:1])
    in_batches = reseeded(attack, seed)(model, images, labels, batch_size=2)
    for other, part in ((longer, together), (alone, together[:1]), (in_batches, together)):
        torch.testing.assert_close(other, part, rtol=0, atol=1e-9)


@quick
@given(shapes, dtypes, norms, seeds, st.sampled_from([1e-3, 0.05, 0.5]))
def test_restarts_never_weaken(shape, dtype, norm, seed, epsilon):
    model, images, labels = problem(shape, dtype, seed)

    def strength(restarts):
        attack = PGD(epsilon=epsilon, steps=1, restarts=restarts, norm=norm, generator=seeded(seed))
        attacked = attack(model, images, labels)
        return model(attacked).argmax(dim=1) != labels, losses(model, attacked, labels)

    (wrong_once, loss_once), (wrong_often, loss_often) = strength(1), strength(5)
    assert (wrong_often | ~wrong_once).all()
    same = wrong_often == wrong_once
    assert (loss_often[same] >= loss_once[same] - 1e-6).all()  # a folded network rounds otherwise


def test_restarts_do_strengthen():
    model, (images, labels) = SmallNet().eval(), random_problem((60, 3, 8, 8))

    def called(x):  # nobody knows that it is deterministic: all images are attacked to the end
        return model(x)

    once, often = (
        losses(
            model,
            PGD(epsilon=0.1, steps=1, restarts=r, generator=seeded())(called, images, labels),
            labels,
        )
        for r in (1, 8)
    )
    assert (often > once).double().mean() > 0.5


def test_restarts_are_judged_over_all_draws():
    """A start that fools the model once in five draws loses to one that does it always."""
    draws = iter([True, *[False] * 5, *[True] * 4])

    def model(images):
        fooled = next(draws)
        return torch.tensor([[0.0, 1.0] if fooled else [1.0, 0.0]]) + 0 * images[:, :2]

    attack = RandomNoise(restarts=2, eot=5, generator=seeded())
    image, label = torch.full((1, 2), 0.5), torch.tensor([0])
    second = attack(model, image, label)
    first = RandomNoise(generator=seeded())(lambda x: x, image, label)
    assert not torch.equal(first, second)


@quick
@given(image_shapes, dtypes, epsilons, seeds, st.integers(2, 5), st.data())
def test_eot_of_a_noiseless_model_is_the_plain_attack(shape, dtype, epsilon, seed, eot, data):
    model = SmallNet(channels=shape[1]).double()
    images, labels = random_problem(shape, seed=seed)
    images = images.to(dtype).double()
    kind = data.draw(st.sampled_from([FGSM, IFGSM, PGD, CarliniWagner]))
    if kind is CarliniWagner:
        plain, averaged = (CarliniWagner(steps=5, eot=k) for k in (1, eot))
    else:
        norm = data.draw(norms)
        plain, averaged = (
            bounded(kind, epsilon=epsilon, norm=norm, eot=k, seed=seed) for k in (1, eot)
        )
    torch.testing.assert_close(
        averaged(model, images, labels), plain(model, images, labels), rtol=0, atol=1e-9
    )


def test_eot_draws_fresh_noise_and_lowers_the_variance_of_the_gradient():
    model, (images, labels) = SmallNet(noise=0.5), random_problem()

    def spread(eot):
        attack = FGSM(epsilon=0.1, norm="l2", eot=eot)
        return torch.stack([attack(model, images, labels) for _ in range(40)]).var(dim=0).sum()

    assert spread(10) < 0.5 * spread(1)


@quick
@given(shapes, seeds, st.sampled_from([0.01, 0.1, 0.3]), norms, st.data())
def test_targeted_attacks_lower_the_targets_loss(shape, seed, epsilon, norm, data):
    # Two classes: the loss has no minimum inside the ball that a step could leave behind.
    model, images, targets = problem(shape, torch.float64, seed, classes=2)
    kind = data.draw(st.sampled_from([FGSM, IFGSM, CarliniWagner]))
    if kind is CarliniWagner:
        attack = CarliniWagner(goal="targeted", space=data.draw(spaces))
    else:
        attack = kind(epsilon=epsilon, norm=norm, goal="targeted")
    before = losses(model, images, targets)
    after = losses(model, attack(model, images, 1 - targets, targets=targets), targets)
    assert (after <= before + 1e-9).all()
    reached = model(images).argmax(dim=1) == targets  # C&W leaves these alone
    inside = (images > 0) & (images < 1)  # a step out of the box moves nothing
    movable = ~reached & inside.flatten(1).all(dim=1)
    assert (after < before)[movable].all()


def test_runner_up_aims_at_the_best_other_class_over_the_draws():
    model, (images, labels) = SmallNet().eval(), random_problem((30, 3, 8, 8))
    others = model(images).scatter(1, labels[:, None], -torch.inf).argmax(dim=1)
    by_name = IFGSM(goal="runner_up")(model, images, labels)
    aimed = IFGSM(goal="targeted")
    assert torch.equal(by_name, aimed(model, images, labels, targets=others))
    # Class 2 leads in the last draw of three, class 1 in the others and on average.
    shift = iter([[9.0, 1.0, 0.0], [9.0, 1.0, 0.0], [9.0, 0.0, 1.0], *[[9.0, 0.0, 0.0]] * 3])
    image = torch.full((1, 2), 0.5)
    moved = FGSM(goal="runner_up", eot=3, epsilon=0.1)(
        lambda x: torch.tensor([next(shift)]) + torch.cat([0 * x[:, :1], x], dim=1),
        image,
        torch.tensor([0]),
    )
    assert moved[0, 0] > image[0, 0]  # which raises class 1
    assert moved[0, 1] < image[0, 1]


@quick
@given(shapes, dtypes, spaces, goals, seeds)
def test_the_success_of_carlini_wagner_does_not_fall_with_steps(shape, dtype, space, goal, seed):
    model, images, labels = problem(shape, dtype, seed)
    if goal == "runner_up":
        wanted = model(images).scatter(1, labels[:, None], -torch.inf).argmax(dim=1)
    else:
        wanted = aims(goal, labels).get("targets", labels)
    before = torch.zeros(len(labels), dtype=torch.bool)
    for steps in (1, 3, 10, 30):
        attack = CarliniWagner(space=space, goal=goal, steps=steps, step_size=0.02)
        attacked = attack(model, images, labels, **aims(goal, labels))
        prediction = model(attacked).argmax(dim=1)
        now = prediction != wanted if goal == "untargeted" else prediction == wanted
        assert (now | ~before).all()
        before = now


@quick
@given(st.tuples(st.integers(1, 3), st.integers(4, 40)), dtypes, spaces, seeds, st.booleans())
def test_black_and_white_pixels_move_in_carlini_wagner(shape, dtype, space, seed, white):
    net = Linear(shape[1], seed=seed)
    images = torch.full(shape, float(white), dtype=dtype)
    slope = (net.weight[1] - net.weight[0]).detach()
    movable = (slope < 0) if white else (slope > 0)  # towards class 1, inside the box
    movable &= slope.abs() > 0.2  # c times less would not outweigh the size of the change
    net.bias.data[0] = 500.0  # out of reach, so that it keeps moving
    # float32 logits: in float16 so small a step would not show in them
    attack = CarliniWagner(space=space)
    change = attack(lambda x: net(x.float()), images, torch.zeros(len(images)).long()) - images
    assert (change[:, movable].abs() > 1e-4).all()


@quick
@given(shapes, spaces, seeds, st.sampled_from([-1e3, -10.0, 7.0]))
def test_negative_logits_are_no_special_case(shape, space, seed, bias):
    images, labels = random_problem(shape, classes=3, seed=seed)
    results = [
        CarliniWagner(space=space, steps=5)(
            Linear(images[0].numel(), classes=3, bias=shift, seed=seed).double(),
            images.double(),
            labels,
        )
        for shift in (0.0, bias)
    ]
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("attack", every_attack(), ids=repr)
class TestEveryAttack:
    def test_repeats_from_its_generator(self, attack):
        model, problem = SmallNet(), random_problem()
        one, two = (reseeded(attack, 5)(model, *problem) for _ in range(2))
        assert torch.equal(one, two)

    def test_takes_no_images(self, attack):
        images, labels = random_problem()
        assert attack(SmallNet(), images[:0], labels[:0]).shape == (0, *images.shape[1:])

    def test_works_under_no_grad_and_inference_mode(self, attack):
        images, labels = random_problem()
        model = SmallNet()
        expected = reseeded(attack, 0)(model, images, labels)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                again = reseeded(attack, 0)(model, images.clone(), labels.clone())
            assert torch.equal(again, expected)

    def test_does_not_touch_its_input(self, attack):
        images, labels = random_problem()
        images.requires_grad_()
        kept = images.detach().clone()
        adversarial = attack(SmallNet(), images, labels)
        assert torch.equal(images.detach(), kept)
        assert images.grad is None
        assert not adversarial.requires_grad

    def test_a_model_that_works_in_place_does_not_reach_the_images(self, attack):
        net = SmallNet()
        images, labels = random_problem()
        expected = reseeded(attack, 0)(lambda x: net(x * 2 - 1), images, labels)
        result = reseeded(attack, 0)(lambda x: net(x.mul_(2).sub_(1)), images, labels)
        assert torch.equal(result, expected)

    def test_batch_size_bounds_what_the_model_sees(self, attack):
        seen, net = [], SmallNet()

        def model(images):
            seen.append(len(images))
            return net(images)

        attack(model, *random_problem((5, 3, 8, 8)), batch_size=2)
        assert set(seen) == {2, 1}

    def test_counts_its_passes(self, attack):
        calls, net = [], SmallNet()
        net.register_forward_hook(lambda *_: calls.append(1))
        attack = attack.averaging(1)  # else the model is asked whether it is randomised
        attack(lambda x: net(x), *random_problem())
        if isinstance(attack, Square):  # it first tries a few images
            assert 0 < len(calls) <= attack.passes + batch_mates.CALLS
        elif isinstance(attack, APGD | FMN | Strongest):  # they leave lost examples alone
            assert 0 < len(calls) <= attack.passes
        else:
            assert len(calls) == attack.passes

    def test_never_saves_and_restores_the_global_generator(self, attack):
        """That would replay the noise of a model that draws from it."""
        net = SmallNet()
        before = torch.random.get_rng_state()
        attack(lambda x: net(x) + 0.01 * torch.randn(len(x), 4), *random_problem())
        assert not torch.equal(torch.random.get_rng_state(), before)

    def test_reports_every_hyper_parameter(self, attack):
        shown = repr(attack)
        assert shown.startswith(type(attack).__name__)
        for name in inspect.signature(type(attack)).parameters:
            if name not in ("generator", "targets", "early_stop"):
                assert f"{name}=" in shown


def test_random_starts_differ_between_generators():
    images, labels = random_problem()
    one, other = (
        RandomNoise(generator=seeded(seed))(SmallNet(), images, labels) for seed in (0, 1)
    )
    assert not torch.equal(one, other)
    unseeded = [RandomNoise()(SmallNet(), images, labels) for _ in range(2)]
    assert not torch.equal(*unseeded)


@pytest.mark.parametrize("dimension", [2, 50])
def test_random_starts_fill_the_ball(dimension):
    images, labels = torch.full((2000, dimension), 0.5), torch.zeros(2000).long()
    model = Linear(dimension)
    cube = RandomNoise(epsilon=0.3, generator=seeded())(model, images, labels) - images
    assert cube.abs().max() == pytest.approx(0.3, abs=0.005)
    assert cube.var().item() == pytest.approx(0.3**2 / 3, rel=0.05)  # uniform
    ball = RandomNoise(epsilon=0.3, norm="l2", generator=seeded())(model, images, labels) - images
    # In the uniform ball (radius / epsilon)^d is uniform on [0, 1].
    uniform = (ball.norm(dim=1) / 0.3) ** dimension
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.03)
    assert uniform.var().item() == pytest.approx(1 / 12, rel=0.1)


def test_attacks_are_ordered_by_strength():
    model, (images, labels) = SmallNet().eval(), random_problem((60, 3, 8, 8))
    labels = model(images).argmax(dim=1)
    found = [
        losses(model, attack(model, images, labels), labels).mean().item()
        for attack in (
            RandomNoise(epsilon=0.1, generator=seeded()),
            FGSM(epsilon=0.1),
            IFGSM(epsilon=0.1, steps=20),
        )
    ]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_small_steps_are_not_lost_in_bfloat16():
    model, images = Linear(25).bfloat16(), torch.full((4, 25), 0.9, dtype=torch.bfloat16)
    labels = torch.zeros(4).long()
    slow = IFGSM(epsilon=4 / 255, step_size=0.4 / 255, steps=40)(model, images, labels)
    fast = FGSM(epsilon=4 / 255)(model, images, labels)
    assert torch.equal(slow, fast)
    assert not torch.equal(slow, images)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_gradient_that_is_not_finite_is_reported(norm):
    class Cliff(Linear):
        def forward(self, images):
            return super().forward(images) + torch.sqrt(images.flatten(1)[:, :1] * 0)

    images, labels = random_problem((3, 6), classes=2)
    for attack in (IFGSM(steps=2, norm=norm), CarliniWagner(steps=2)):
        with pytest.warns(UserWarning, match="not finite"):
            adversarial = attack(Cliff(6), images, labels)
        assert adversarial.isfinite().all()


def test_progress_reaches_its_end(capfd):
    images, labels = random_problem()
    for attack in (FGSM(eot=3), PGD(steps=2, restarts=2, eot=2), RandomNoise(), CarliniWagner()):
        attack(SmallNet(), images, labels, progress=True)
        shown = capfd.readouterr().err
        assert attack.name in shown
        assert "100%" in shown
    FGSM()(SmallNet(), images, labels)
    assert capfd.readouterr().err == ""
