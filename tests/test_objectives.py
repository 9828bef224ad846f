"""Every way to train: what each objective computes, and what wraps it."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from enresnet.attacks import FGSM
from enresnet.attacks.base import Batch, Classifier
from enresnet.data import load_data
from enresnet.models import create_model
from enresnet.models.statistics import statistics_held
from enresnet.training import Recipe, Trainer, load_recipe
from enresnet.training.averaging import WeightAverage
from enresnet.training.awp import perturbed_weights
from enresnet.training.guard import CollapseGuard
from enresnet.training.objectives import OBJECTIVES
from enresnet.training.schedule import one_cycle_rate
from problems import Linear, SmallNet, assert_same_state, random_problem, seeded, snapshot

RECIPE = Recipe(epsilon=0.1, step_size=0.03, steps=3)
IMAGES, LABELS = random_problem((6, 3, 8, 8))


pytestmark = pytest.mark.usefixtures("one_thread")


def objective(name, seed=3, **changes):
    return OBJECTIVES[name](replace(RECIPE, objective=name, **changes), seeded(seed))


def quiet_net():
    model = SmallNet().train()
    model.dropout.p = 0.0
    return model


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_gives_a_loss_with_gradients(name):
    model = quiet_net()
    loss, logits = objective(name)(model, IMAGES, LABELS)
    assert logits.shape == (6, 4)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.training


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"natural"}))
def test_crafting_leaves_the_network_alone_in_eval_mode_only(name):
    model = quiet_net()
    before = snapshot(model)
    objective(name).craft(model, IMAGES, LABELS)
    assert_same_state(before, snapshot(model))
    objective(name, attack_mode="train").craft(model, IMAGES, LABELS)
    assert not torch.equal(model.bn.running_mean, before["tensors"]["bn.running_mean"])
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_n_fgsm_goes_beyond_the_ball_but_not_the_box():
    crafted = objective("n_fgsm").craft(quiet_net(), IMAGES, LABELS)
    change = (crafted - IMAGES).abs()
    assert 0 <= crafted.min() <= crafted.max() <= 1
    assert 0.15 < change.max() <= 3 * 0.1 + 1e-6  # noise of 2 epsilon and a step of epsilon


def test_n_fgsm_is_noise_and_one_step():
    model = Linear(192, classes=4)
    images = 0.5 + 0.0 * IMAGES
    crafted = objective("n_fgsm", seed=5).craft(model, images, LABELS)
    again = objective("n_fgsm", seed=5)
    seeds = again.attack._draw_seeds(len(images))
    from enresnet.attacks.geometry import Linf

    noisy = Linf(images, 0.2).random_point(seeds).requires_grad_()
    functional.cross_entropy(model(noisy), LABELS, reduction="sum").backward()
    torch.testing.assert_close(crafted, noisy.detach() + 0.1 * noisy.grad.sign())


def test_fgsm_rs_takes_one_long_step_and_projects():
    attack = objective("fgsm_rs").attack
    assert (attack.steps, attack.step_size) == (1, pytest.approx(0.125))
    crafted = objective("fgsm_rs").craft(quiet_net(), IMAGES, LABELS)
    assert (crafted - IMAGES).abs().max() <= 0.1 + 1e-6
    assert OBJECTIVES["fgsm_rs"].one_step
    assert OBJECTIVES["n_fgsm"].one_step


def test_the_loss_of_trades():
    model = Linear(192, classes=4)
    trades = objective("trades")
    crafted = trades.craft(model, IMAGES, LABELS)
    loss, logits = trades.loss(model, IMAGES, crafted, LABELS)
    clean = model(IMAGES)
    kl = functional.kl_div(model(crafted).log_softmax(1), clean.softmax(1), reduction="batchmean")
    torch.testing.assert_close(loss, functional.cross_entropy(clean, LABELS) + 6 * kl)
    torch.testing.assert_close(logits, model(crafted))
    half = objective("trades", beta=0.5).loss(model, IMAGES, crafted, LABELS)[0]
    torch.testing.assert_close(half, functional.cross_entropy(clean, LABELS) + 0.5 * kl)


def test_the_attack_of_trades_starts_near_and_raises_the_divergence():
    model, calls = quiet_net(), []
    trades = objective("trades")
    batch = Batch(IMAGES, LABELS, torch.arange(6), Classifier(model.eval(), 3, calls.append), 1)
    crafted = trades.attack._perturb(batch)
    assert len(calls) == RECIPE.steps + 1  # p(x) once
    clean = model(IMAGES).softmax(1)

    def apart(x):
        return functional.kl_div(model(x).log_softmax(1), clean, reduction="batchmean")

    noise = IMAGES + 0.1 * torch.randn(IMAGES.shape, generator=seeded()).sign()
    assert apart(crafted) > 3 * apart(noise.clamp(0, 1))
    assert (crafted - IMAGES).abs().max() <= 0.1 + 1e-6


def test_the_loss_of_mart():
    model = Linear(192, classes=4)
    mart = objective("mart")
    crafted = mart.craft(model, IMAGES, LABELS)
    loss, _ = mart.loss(model, IMAGES, crafted, LABELS)
    p, q = model(IMAGES).softmax(1), model(crafted).softmax(1)
    rows = torch.arange(6)
    others = q.clone()
    others[rows, LABELS] = 0
    boosted = -q[rows, LABELS].log() - (1.0001 - others.max(dim=1).values).log()
    kl = (p * (p.log() - q.log())).sum(dim=1)
    torch.testing.assert_close(loss, (boosted + 5 * kl * (1 - p[rows, LABELS])).mean())


def test_label_smoothing():
    model = Linear(192, classes=4)
    loss, logits = objective("natural", label_smoothing=0.2)(model, IMAGES, LABELS)
    expected = functional.cross_entropy(logits, LABELS, label_smoothing=0.2)
    assert loss == expected
    assert loss != functional.cross_entropy(logits, LABELS)


class TestAWP:
    @pytest.mark.parametrize("name", OBJECTIVES)
    def test_weights_and_statistics_come_back_bit_for_bit(self, name):
        model = quiet_net()
        wrapped = objective(name)
        crafted = wrapped.craft(model, IMAGES, LABELS)
        before = snapshot(model)
        with perturbed_weights(wrapped, model, (IMAGES, crafted, LABELS), gamma=0.01):
            assert not torch.equal(model.conv.weight, before["tensors"]["conv.weight"])
        assert_same_state(before, snapshot(model))
        with (
            pytest.raises(KeyboardInterrupt),
            perturbed_weights(wrapped, model, (IMAGES, crafted, LABELS), gamma=0.01),
        ):
            raise KeyboardInterrupt
        assert_same_state(before, snapshot(model))

    def test_the_move_has_the_length_and_direction_it_should(self):
        model, wrapped = Linear(192, classes=4), objective("natural")
        loss, _ = wrapped(model, IMAGES, LABELS)
        (gradient,) = torch.autograd.grad(loss, [model.weight])
        before, bias = model.weight.detach().clone(), model.bias.detach().clone()
        with perturbed_weights(wrapped, model, (IMAGES, IMAGES, LABELS), gamma=0.05):
            move = model.weight.detach() - before
            assert torch.equal(model.bias, bias)
            assert wrapped(model, IMAGES, LABELS)[0] > loss
        assert move.norm().item() == pytest.approx(0.05 * before.norm().item(), rel=1e-4)
        torch.testing.assert_close(move / move.norm(), gradient / gradient.norm())

    def test_a_training_step_uses_it(self):
        data = load_data("digits", limit=100)
        weights = []
        for gamma in (0.0, 0.02):
            recipe = replace(RECIPE, epochs=1, batch_size=90, awp=gamma)
            model = create_model("resnet8", in_channels=1, generator=seeded())
            list(Trainer(model, data, recipe).epochs())
            weights.append(model.stem.weight.detach())
        assert not torch.equal(*weights)
        torch.testing.assert_close(*weights, rtol=0, atol=0.1)


def test_statistics_held():
    model = quiet_net()
    before = snapshot(model)
    with statistics_held(model):
        first = model(IMAGES)
    assert_same_state(before, snapshot(model))
    assert model.bn.momentum == 0.1
    torch.testing.assert_close(first, model(IMAGES))
    assert model.bn.num_batches_tracked == 1


class TestAverage:
    def test_it_follows_the_formula_buffers_included(self):
        model = quiet_net()
        average = WeightAverage(model, 0.9, seeded())
        start = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            model(IMAGES)
            model.conv.weight.add_(1)
        average.update(model, 1000)
        for name, value in average.model.state_dict().items():
            if value.is_floating_point():
                expected = 0.9 * start[name] + 0.1 * model.state_dict()[name]
                torch.testing.assert_close(value, expected)
        assert average.model.bn.num_batches_tracked == 1

    def test_it_soon_forgets_the_weights_drawn_at_random(self):
        model = Linear(4)
        average = WeightAverage(model, 0.999, seeded())
        with torch.no_grad():
            model.weight.fill_(1.0)
        for step in range(60):
            average.update(model, step)
        torch.testing.assert_close(average.model.weight, model.weight, rtol=0, atol=1e-3)

    def test_its_noise_is_its_own(self):
        model = create_model("en1_resnet8", generator=seeded()).eval()
        average = WeightAverage(model, 0.9, seeded(1))
        images = torch.rand(2, 3, 8, 8)
        assert not torch.equal(model(images), average.model.eval()(images))

    def test_the_averaged_network_is_what_training_gives(self):
        data = load_data("digits", limit=100)
        model = create_model("resnet8", in_channels=1, generator=seeded())
        trainer = Trainer(model, data, replace(RECIPE, objective="natural", epochs=1, ema=0.5))
        list(trainer.epochs())
        assert trainer.result is not model
        assert not torch.equal(trainer.result.stem.weight, model.stem.weight)


def test_one_cycle_rises_and_falls_to_nearly_zero():
    rates = [one_cycle_rate(k / 100, peak=0.2, warm_up=0.2) for k in range(101)]
    assert max(rates) == rates[20] == pytest.approx(0.2)
    assert rates == [*sorted(rates[:21]), *sorted(rates[21:], reverse=True)]
    assert rates[100] == pytest.approx(0)
    data = load_data("digits", limit=200)
    recipe = replace(
        RECIPE,
        objective="natural",
        schedule="one_cycle",
        learning_rate=0.2,
        epochs=4,
        batch_size=30,
    )
    trainer = Trainer(create_model("resnet8", in_channels=1), data, recipe)
    ends = [epoch.learning_rate for epoch in trainer.epochs()]
    assert 0 < ends[-1] < 0.01
    assert ends[0] > ends[-1]


def test_momentum_can_be_forgotten_every_epoch():
    data = load_data("digits", limit=60)
    recipe = replace(RECIPE, objective="natural", epochs=2, batch_size=60, milestones=())
    weights = []
    for reset in (False, True):
        model = create_model("resnet8", in_channels=1, generator=seeded())
        list(Trainer(model, data, replace(recipe, reset_momentum=reset)).epochs())
        weights.append(model.stem.weight.detach())
    assert not torch.equal(*weights)


def test_validation_can_wait_and_be_small():
    data = load_data("digits", limit=300)
    recipe = replace(RECIPE, objective="natural", epochs=4, validate_from=0.75, validation_images=7)
    trainer = Trainer(create_model("resnet8", in_channels=1), data, recipe)
    scores = [epoch.score for epoch in trainer.epochs()]
    assert [score is None for score in scores] == [True, True, False, False]
    assert (7 * scores[-1]) % 1 == pytest.approx(0, abs=1e-5)


def test_the_released_recipe_is_that_of_the_released_code():
    recipe = load_recipe("released")
    paper = load_recipe("paper")
    changed = {k: v for k, v in recipe.to_dict().items() if v != paper.to_dict()[k]}
    assert changed == {
        "epsilon": 0.031,
        "step_size": 0.007,
        "reset_momentum": True,
        "attack_mode": "train",
        "std_over": "batch",
    }


def test_the_fast_recipe():
    recipe = load_recipe("fast")
    assert (recipe.objective, recipe.epochs, recipe.schedule) == ("n_fgsm", 15, "one_cycle")
    assert recipe.compensate
    assert not load_recipe("paper").compensate
    assert (recipe.validation_images, recipe.ema) == (1000, 0.995)
    first = min(e for e in range(1, 16) if e >= recipe.validate_from * 15)
    assert first == 11  # the last third


class TestGuard:
    def test_a_cliff_is_seen_and_a_wobble_is_not(self):
        data = load_data("digits")
        guard = CollapseGuard(data.validation, replace(RECIPE, epsilon=0.3), seed=0)
        accuracies = iter([0.4, 0.35, 0.25, 0.45, 0.2])
        guard._accuracy = lambda *_: next(accuracies)
        assert [guard.collapsed(None, None) is None for _ in range(5)] == [
            True,
            True,
            True,
            True,
            False,
        ]

    def test_a_network_that_never_learned_has_nothing_to_lose(self):
        guard = CollapseGuard(load_data("digits").validation, RECIPE, seed=0)
        accuracies = iter([0.12, 0.0])
        guard._accuracy = lambda *_: next(accuracies)
        assert guard.collapsed(None, None) is None
        assert guard.collapsed(None, None) is None

    def test_a_provoked_collapse_is_undone(self):
        """Attacks that help the network instead: it leans on them and loses its robustness."""
        data = load_data("digits")
        recipe = replace(
            RECIPE,
            objective="fgsm_rs",
            epochs=10,
            batch_size=32,
            learning_rate=0.3,
            milestones=(),
            epsilon=0.4,
            step_size=0.1,
            ema=0.5,
        )
        model = create_model("resnet8", in_channels=1, generator=seeded())
        trainer = Trainer(model, data, recipe)
        epochs = trainer.epochs()
        for _ in range(8):
            good = next(epochs)
            assert good.note == ""
        kept = copy.deepcopy(model.state_dict())
        trainer.objective.craft = FGSM(epsilon=0.4, goal="targeted")  # towards the right answer
        bad = next(epochs)
        assert bad.note.startswith("collapsed: PGD-5 accuracy fell from")
        assert "on with PGD-2" in bad.note
        for name, value in model.state_dict().items():
            assert torch.equal(value, kept[name])
        assert bad.validation_robust == pytest.approx(good.validation_robust, abs=0.01)
        attack = trainer.objective.attack
        assert (attack.steps, attack.step_size) == (2, pytest.approx(0.3))
        last = next(epochs)
        assert last.validation_robust > 0.5 * good.validation_robust
        assert last.note == ""

    def test_only_one_step_methods_are_guarded(self):
        data = load_data("digits", limit=50)
        for name in OBJECTIVES:
            trainer = Trainer(
                create_model("resnet8", in_channels=1), data, replace(RECIPE, objective=name)
            )
            assert (trainer._guard is not None) == (name in ("n_fgsm", "fgsm_rs"))
