"""Every way to train: what each objective computes, and what wraps it."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from enresnet.attacks import FGSM
from enresnet.attacks.base import Batch, Classifier
from enresnet.attacks.geometry import Linf
from enresnet.data import Images, load_data
from enresnet.models import create_model
from enresnet.models.statistics import statistics_held
from enresnet.training import Recipe, Trainer, load_recipe
from enresnet.training.averaging import WeightAverage
from enresnet.training.awp import default_gamma, perturbed_weights
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


@pytest.mark.parametrize("name", ["trades", "mart"])
def test_gradients_flow_through_both_predictions(name):
    """The weights' gradient is that of the whole formula, p(x) and doubt included."""
    model = Linear(192, classes=4)
    chosen = objective(name, label_smoothing=0.1)
    crafted = chosen.craft(model, IMAGES, LABELS)
    (found,) = torch.autograd.grad(chosen.loss(model, IMAGES, crafted, LABELS)[0], [model.weight])
    clean, attacked = model(IMAGES), model(crafted)
    p, q, rows = clean.softmax(1), attacked.softmax(1), torch.arange(6)
    kl = (p * (p.log() - q.log())).sum(dim=1)
    if name == "trades":
        loss = functional.cross_entropy(clean, LABELS, label_smoothing=0.1) + 6 * kl.mean()
    else:
        others = q * (1 - functional.one_hot(LABELS, 4))
        boosted = -(1.0001 - others.max(dim=1).values).log()
        loss = functional.cross_entropy(attacked, LABELS, label_smoothing=0.1)
        loss = loss + (boosted + 5 * kl * (1 - p[rows, LABELS])).mean()
    (expected,) = torch.autograd.grad(loss, [model.weight])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_attack_of_trades_is_the_gradient_of_the_divergence_from_a_gaussian_start():
    model = Linear(192, classes=4)
    attack = objective("trades", steps=1).attack
    images = 0.5 + 0.0 * IMAGES
    crafted = attack(model, images, LABELS)
    seeds = objective("trades").attack._draw_seeds(6)
    point = Linf(images, 0.1).gaussian_point(seeds, 0.001).requires_grad_()
    assert (point - images).std().item() == pytest.approx(0.001, rel=0.1)
    assert (point - images).abs().max() > 0.003  # a uniform start has no tails
    clean = model(images).softmax(1).detach()
    apart = (clean * (clean.log() - model(point).log_softmax(1))).sum()
    (gradient,) = torch.autograd.grad(apart, [point])
    torch.testing.assert_close(crafted, point.detach() + 0.03 * gradient.sign())


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"trades", "mart"}))
def test_label_smoothing_is_for_every_objective(name):
    model = Linear(192, classes=4)
    loss, logits = objective(name, label_smoothing=0.2)(model, IMAGES, LABELS)
    assert loss == functional.cross_entropy(logits, LABELS, label_smoothing=0.2)


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

    def test_its_size_is_the_authors_unless_told(self):
        assert default_gamma(replace(RECIPE, awp=True)) == 0.01
        assert default_gamma(replace(RECIPE, awp=True, objective="trades")) == 0.005
        assert default_gamma(replace(RECIPE, awp=True, awp_gamma=0.1)) == 0.1

    def test_a_training_step_uses_it(self):
        data = load_data("digits", limit=100)
        weights = []
        for gamma in (0.0, 0.02):
            recipe = replace(RECIPE, epochs=1, batch_size=90, awp=gamma > 0, awp_gamma=gamma)
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

    def test_it_follows_after_the_step(self):
        """After one step of many, at a decay of 0: the very network that was updated."""
        data = load_data("digits", limit=100)
        model = create_model("resnet8", in_channels=1, generator=seeded())
        recipe = replace(RECIPE, objective="natural", epochs=1, ema=1e-9)
        trainer = Trainer(model, data, recipe)
        list(trainer.epochs())
        torch.testing.assert_close(trainer.result.stem.weight, model.stem.weight)


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
    taken = []
    ends = [e.learning_rate for e in trainer.epochs(lambda step: taken.append(step.learning_rate))]
    assert trainer.steps == 6
    moments = [(k + 0.5) / 24 for k in range(24)]  # a rate of its own for every step
    assert taken == pytest.approx([one_cycle_rate(m, peak=0.2, warm_up=0.2) for m in moments])
    assert ends == taken[5::6]


def test_momentum_can_be_forgotten_every_epoch():
    data = load_data("digits", limit=60)
    recipe = replace(RECIPE, objective="natural", epochs=4, batch_size=60, milestones=())
    for reset in (False, True):
        model = create_model("resnet8", in_channels=1, generator=seeded())
        trainer = Trainer(model, data, replace(recipe, reset_momentum=reset, weight_decay=0.0))

        def check(step, trainer=trainer, model=model, reset=reset):
            momentum = trainer.tensors()["momentum/stem.weight"]
            forgotten = torch.equal(momentum, model.stem.weight.grad)
            assert forgotten == (reset or step.epoch == 1)

        list(trainer.epochs(check))


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

    def test_few_right_answers_are_no_cliff(self):
        """Of 256 images 8 and then 3 may be chance; of two classes 70 % and then none is not."""
        validation = load_data("digits").validation
        many = Images(
            validation.pixels, validation.labels, tuple(map(str, range(100))), validation.levels
        )
        for classes, values, fine in ((100, (8 / 256, 3 / 256), True), (2, (0.7, 0.0), False)):
            named = replace(many, classes=tuple(map(str, range(classes))), labels=many.labels % 2)
            guard = CollapseGuard(named, RECIPE, seed=0)
            accuracies = iter(values)
            guard._accuracy = lambda *_, accuracies=accuracies: next(accuracies)
            assert guard.collapsed(None, None) is None
            assert (guard.collapsed(None, None) is None) == fine

    def test_half_fallen_is_nothing_to_go_back_to(self):
        guard = CollapseGuard(load_data("digits").validation, RECIPE, seed=0)
        accuracies = iter([0.8, 0.5, 0.7])
        guard._accuracy = lambda *_: next(accuracies)
        for number in range(3):
            assert guard.collapsed(None, None) is None
            guard.keep({"a": torch.tensor(number)})
            assert guard.tensors()["a"] == (0, 0, 2)[number]

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
            epsilon=0.3,
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
        kept_momenta = copy.deepcopy(trainer.tensors())
        trainer.objective.craft = FGSM(epsilon=0.4, goal="targeted")  # towards the right answer
        bad = next(epochs)
        assert bad.note.startswith("collapsed: PGD-5 accuracy fell from")
        assert "on with PGD-2" in bad.note
        for name, value in model.state_dict().items():
            assert torch.equal(value, kept[name])
        momenta = {k: v for k, v in trainer.tensors().items() if k.startswith("momentum")}
        assert momenta
        for name, value in momenta.items():
            assert torch.equal(value, kept_momenta[name])
        assert bad.validation_robust == pytest.approx(good.validation_robust, abs=0.01)
        attack = trainer.objective.attack
        assert (attack.steps, attack.step_size) == (2, pytest.approx(0.225))
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
