"""Every way to train: what each objective computes."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from enresnet.attacks.batch import Batch
from enresnet.attacks.counting import Classifier
from enresnet.attacks.geometry import Linf
from enresnet.data import load_data
from enresnet.models import create_model
from enresnet.training import Trainer, load_recipe, recipe
from enresnet.training.objectives import OBJECTIVES
from enresnet.training.recipe import one_cycle_rate
from problems import Linear, assert_same_state, seeded, seeds_of, snapshot
from trainings import IMAGES, LABELS, RECIPE, TAUGHT, objective, quiet_net


def test_recipes_know_the_objectives_and_which_of_them_have_a_teacher():
    assert tuple(OBJECTIVES) == recipe.OBJECTIVE_NAMES
    assert tuple(TAUGHT) == recipe.TAUGHT
    one_step = tuple(name for name, kind in OBJECTIVES.items() if kind.one_step)
    assert one_step == recipe.ONE_STEP


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
    model, calls = quiet_net(), []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))
    objective(name).craft(model, IMAGES, LABELS)
    hook.remove()
    if not calls:
        return  # it crafts without the network
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
    seeds = seeds_of(again.attack, len(images))
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
    seeds = seeds_of(objective("trades").attack, 6)
    point = Linf(images, 0.1).gaussian_point(seeds, 0.001).requires_grad_()
    assert (point - images).std().item() == pytest.approx(0.001, rel=0.1)
    assert (point - images).abs().max() > 0.003  # a uniform start has no tails
    clean = model(images).softmax(1).detach()
    apart = (clean * (clean.log() - model(point).log_softmax(1))).sum()
    (gradient,) = torch.autograd.grad(apart, [point])
    torch.testing.assert_close(crafted, point.detach() + 0.03 * gradient.sign())


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"trades", "mart", *TAUGHT}))
def test_label_smoothing_is_for_every_objective(name):
    model = Linear(192, classes=4)
    loss, logits = objective(name, label_smoothing=0.2)(model, IMAGES, LABELS)
    assert loss == functional.cross_entropy(logits, LABELS, label_smoothing=0.2)


def test_the_attack_of_trades_starts_near_and_raises_the_divergence():
    model, calls = quiet_net(), []
    trades = objective("trades")
    classifier = Classifier(model, model.eval(), 3, calls.append)
    batch = Batch(IMAGES, LABELS, torch.arange(6), seeded(), classifier, eot=1, whole=6)
    crafted = trades.attack.perturb(batch)
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
            momentum = trainer.state.tensors()["momentum/stem.weight"]
            forgotten = torch.equal(momentum, model.stem.weight.grad)
            assert forgotten == (reset or step.epoch == 1)

        list(trainer.epochs(check))


def test_validation_can_wait():
    data = load_data("digits", limit=300)
    recipe = replace(RECIPE, objective="natural", epochs=4, validate_from=0.75)
    trainer = Trainer(create_model("resnet8", in_channels=1), data, recipe)
    scores = [epoch.score for epoch in trainer.epochs()]
    assert [score is None for score in scores] == [True, True, False, False]


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
    assert (recipe.objective, recipe.epochs, recipe.schedule) == ("n_fgsm", 21, "one_cycle")
    assert (recipe.low_resolution, recipe.epsilon_growth, recipe.shift) == (0.4, 0.5, 0)
    assert recipe.label_smoothing == 0.1
    assert recipe.compensate
    assert not load_recipe("paper").compensate
    assert recipe.ema == 0.995
    assert recipe.ends_at_zero
    assert recipe.validate_from == 1  # the last network is kept, whatever validation finds


def test_long_is_fast_for_longer():
    fast, long = load_recipe("fast").to_dict(), load_recipe("long").to_dict()
    assert {name for name in fast if fast[name] != long[name]} == {"epochs"}
    assert long["epochs"] == 4 * fast["epochs"]
