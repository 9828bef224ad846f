"""What every attack promises, checked over shapes, types and radii."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from enresnet.attacks import FGSM, IFGSM, PGD, CarliniWagner, RandomNoise
from problems import (
    BOUNDED,
    Linear,
    SmallNet,
    assert_same_state,
    every_attack,
    random_problem,
    seeded,
    snapshot,
)

quick = settings(max_examples=40, deadline=None)

shapes = st.tuples(
    st.integers(1, 4), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)
) | st.tuples(st.integers(1, 4), st.integers(1, 40))
dtypes = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
norms = st.sampled_from(["linf", "l2"])
epsilons = st.sampled_from([0.0, 1e-6, 1e-4, 0.031, 8 / 255, 0.3, 1.0]) | st.floats(0, 1)
goals = st.sampled_from(["untargeted", "targeted", "runner_up"])


def problem(shape, dtype, seed):
    images, labels = random_problem(shape, classes=3, seed=seed)
    model = Linear(images[0].numel(), classes=3, seed=seed).to(dtype)
    return model, images.to(dtype), labels


@quick
@given(shapes, dtypes, epsilons, norms, goals, st.integers(0, 9), st.data())
def test_bounded_attacks_stay_in_ball_and_box(shape, dtype, epsilon, norm, goal, seed, data):
    model, images, labels = problem(shape, dtype, seed)
    kind = data.draw(st.sampled_from(BOUNDED))
    options = {} if kind in (FGSM, RandomNoise) else {"steps": data.draw(st.integers(1, 4))}
    attack = kind(epsilon=epsilon, norm=norm, goal=goal, generator=seeded(seed), **options)
    adversarial = attack(model, images, labels)
    assert adversarial.dtype == dtype
    assert adversarial.shape == images.shape
    assert adversarial.min() >= 0
    assert adversarial.max() <= 1
    change = (adversarial.double() - images.double()).flatten(1)
    if norm == "linf":
        assert change.abs().max() <= epsilon + 1e-7
    else:
        assert change.norm(dim=1).max() <= epsilon * (1 + 1e-6)
    if epsilon == 0:
        assert torch.equal(adversarial, images)
    assert adversarial.data_ptr() != images.data_ptr()


@quick
@given(shapes, dtypes, goals, st.sampled_from(["tanh", "pixel"]), st.integers(0, 9))
def test_carlini_wagner_stays_in_the_box(shape, dtype, goal, space, seed):
    model, images, labels = problem(shape, dtype, seed)
    attack = CarliniWagner(steps=5, step_size=0.1, space=space, goal=goal)
    adversarial = attack(model, images, labels)
    assert adversarial.dtype == dtype
    assert 0 <= adversarial.min() <= adversarial.max() <= 1


@pytest.mark.parametrize("attack", every_attack(), ids=repr)
class TestEveryAttack:
    def test_leaves_the_model_as_it_was(self, attack):
        model = SmallNet(noise=0.1)
        model.train()
        model.bn.eval()  # a mixture of flags, as in fine-tuning
        model.conv.weight.requires_grad_(False)
        model.head.weight.grad = torch.ones_like(model.head.weight)
        before = snapshot(model)
        attack(model, *random_problem())
        assert_same_state(before, snapshot(model))

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_leaves_the_model_as_it_was_when_it_fails(self, attack, error):
        class Broken(SmallNet):
            calls = 0

            def forward(self, images):
                self.calls += 1
                if self.calls == 2 or type(attack) in (FGSM, RandomNoise):
                    raise error("stop")
                return super().forward(images)

        model = Broken().train()
        model.bn.eval()
        before = snapshot(model)
        with pytest.raises(error, match="stop"):
            attack(model, *random_problem())
        assert_same_state(before, snapshot(model))

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda model: lambda x: model(x),
            lambda model: model.forward,
            lambda model: lambda x, *, nets=(model,): nets[0](x),
        ],
        ids=["closure", "bound method", "default argument"],
    )
    def test_leaves_a_model_inside_a_callable_as_it_was(self, attack, wrap):
        model = SmallNet().train()
        before = snapshot(model)
        attack(wrap(model), *random_problem())
        assert_same_state(before, snapshot(model))

    def test_does_not_mix_examples(self, attack):
        model = SmallNet().double()
        images, labels = random_problem(seed=1)
        images = images.double()
        strangers = torch.cat([images[:2], random_problem(seed=2)[0][2:].double()])
        attack.generator.manual_seed(1)
        together = attack(model, images, labels)
        attack.generator.manual_seed(1)
        among_strangers = attack(model, strangers, labels)
        attack.generator.manual_seed(1)
        alone = attack(model, images[:1], labels[:1])
        attack.generator.manual_seed(1)
        in_batches = attack(model, images, labels, batch_size=2)
        torch.testing.assert_close(among_strangers[:2], together[:2], rtol=0, atol=1e-9)
        torch.testing.assert_close(alone, together[:1], rtol=0, atol=1e-9)
        torch.testing.assert_close(in_batches, together, rtol=0, atol=1e-9)

    def test_repeats_from_its_generator_and_differs_without(self, attack):
        model, problem = SmallNet(), random_problem()
        first, second = (
            (attack.generator.manual_seed(5), attack(model, *problem))[1] for _ in range(2)
        )
        assert torch.equal(first, second)

    def test_takes_no_images(self, attack):
        images, labels = random_problem()
        assert attack(SmallNet(), images[:0], labels[:0]).shape == (0, *images.shape[1:])

    def test_works_under_no_grad_and_inference_mode(self, attack):
        images, labels = random_problem()
        model = SmallNet()
        attack.generator.manual_seed(0)
        expected = attack(model, images, labels)
        for mode in (torch.no_grad, torch.inference_mode):
            attack.generator.manual_seed(0)
            with mode():
                assert torch.equal(attack(model, images.clone(), labels.clone()), expected)

    def test_does_not_touch_its_input(self, attack):
        images, labels = random_problem()
        images.requires_grad_()
        kept = images.detach().clone()
        adversarial = attack(SmallNet(), images, labels)
        assert torch.equal(images.detach(), kept)
        assert images.grad is None
        assert not adversarial.requires_grad

    def test_reports_every_hyper_parameter(self, attack):
        shown = repr(attack)
        assert shown.startswith(type(attack).__name__)
        assert f"eot={attack.eot}" in shown
        assert f"goal={attack.goal!r}" in shown


def test_random_starts_differ_between_generators():
    images, labels = random_problem()
    one, other = (
        RandomNoise(generator=seeded(seed))(SmallNet(), images, labels) for seed in (0, 1)
    )
    assert not torch.equal(one, other)
    unseeded = [RandomNoise()(SmallNet(), images, labels) for _ in range(2)]
    assert not torch.equal(*unseeded)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("seed", range(5))
def test_restarts_never_weaken(norm, seed):
    model, (images, labels) = SmallNet(seed=seed), random_problem((40, 3, 8, 8), seed=seed)

    def strength(restarts):
        attack = PGD(epsilon=0.1, steps=2, restarts=restarts, norm=norm, generator=seeded(seed))
        logits = model.eval()(attack(model, images, labels))
        wrong = logits.argmax(dim=1) != labels
        return wrong, nn.functional.cross_entropy(logits, labels, reduction="none")

    wrong_once, loss_once = strength(1)
    wrong_often, loss_often = strength(6)
    assert (wrong_often | ~wrong_once).all()
    same = wrong_often == wrong_once
    assert (loss_often[same] >= loss_once[same] - 1e-6).all()
    assert (loss_often > loss_once).any()


def test_attacks_are_ordered_by_strength():
    model, (images, labels) = SmallNet().eval(), random_problem((60, 3, 8, 8))
    labels = model(images).argmax(dim=1)
    losses = [
        nn.functional.cross_entropy(model(attack(model, images, labels)), labels).item()
        for attack in (
            RandomNoise(epsilon=0.1, generator=seeded()),
            FGSM(epsilon=0.1),
            IFGSM(epsilon=0.1, steps=20),
        )
    ]
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]


@pytest.mark.parametrize("eot", [2, 5])
@pytest.mark.parametrize("kind", [FGSM, IFGSM, PGD, CarliniWagner])
def test_eot_of_a_noiseless_model_is_the_plain_attack(kind, eot):
    model, problem = SmallNet().double(), random_problem()
    problem = (problem[0].double(), problem[1])
    plain = kind(generator=seeded())(model, *problem)
    averaged = kind(eot=eot, generator=seeded())(model, *problem)
    torch.testing.assert_close(averaged, plain, rtol=0, atol=1e-9)


def test_eot_draws_fresh_noise_and_lowers_the_variance_of_the_gradient():
    model, (images, labels) = SmallNet(noise=0.5), random_problem()

    def spread(eot):
        images_of = [
            FGSM(epsilon=0.1, norm="l2", eot=eot)(model, images, labels) for _ in range(40)
        ]
        return torch.stack(images_of).var(dim=0).sum()

    assert spread(10) < 0.5 * spread(1)


@pytest.mark.parametrize("kind", [FGSM, IFGSM, PGD, CarliniWagner])
def test_targeted_attacks_lower_the_targets_loss(kind):
    model, (images, targets) = SmallNet().eval(), random_problem((30, 3, 8, 8))
    adversarial = kind(goal="targeted")(model, images, targets)
    loss = nn.functional.cross_entropy
    before = loss(model(images), targets, reduction="none")
    after = loss(model(adversarial), targets, reduction="none")
    reached = model(images).argmax(dim=1) == targets  # C&W leaves these alone
    assert (after <= before + 1e-6).all()
    assert (after < before)[~reached].all()


def test_runner_up_aims_at_the_best_other_class():
    model, (images, labels) = SmallNet().eval(), random_problem((30, 3, 8, 8))
    others = model(images).scatter(1, labels[:, None], -torch.inf).argmax(dim=1)
    by_name = IFGSM(goal="runner_up")(model, images, labels)
    by_hand = IFGSM(goal="targeted")(model, images, others)
    assert torch.equal(by_name, by_hand)


def test_a_gradient_that_is_not_finite_is_reported():
    class Cliff(Linear):
        def forward(self, images):
            return super().forward(images) + torch.sqrt(images.flatten(1)[:, :1] * 0)

    images, labels = random_problem((3, 6), classes=2)
    with pytest.warns(UserWarning, match="not finite"):
        adversarial = IFGSM(steps=2)(Cliff(6), images, labels)
    assert adversarial.isfinite().all()


def test_progress_bar_is_shown_when_asked_for(capfd):
    images, labels = random_problem()
    FGSM()(SmallNet(), images, labels, progress=True)
    assert "FGSM" in capfd.readouterr().err
    FGSM()(SmallNet(), images, labels)
    assert capfd.readouterr().err == ""
