"""What wraps an objective: moved weights, averaged weights, the guard against collapse."""

import copy
from dataclasses import replace

import pytest
import torch

from enresnet.attacks import FGSM
from enresnet.data import Images, load_data
from enresnet.models import create_model
from enresnet.models.batchnorm_statistics import statistics_held
from enresnet.training import Trainer, load_recipe
from enresnet.training.averaging import WeightAverage
from enresnet.training.awp import default_gamma, perturbed_weights
from enresnet.training.collapse_guard import CollapseGuard
from enresnet.training.objectives import OBJECTIVES
from enresnet.training.state import NetworkState
from problems import Linear, assert_same_state, seeded, snapshot
from trainings import IMAGES, LABELS, RECIPE, TAUGHT, objective, quiet_net


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


def _enlarged(images):
    """Return images of twice the side, so that half the side is large enough."""
    pixels = images.pixels.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    return replace(images, pixels=pixels)


class TestGuard:
    def test_a_cliff_is_seen_and_a_wobble_is_not(self):
        data = load_data("digits")
        guard = CollapseGuard(data.validation, replace(RECIPE, epsilon=0.3), seed=0)
        accuracies = iter([0.4, 0.35, 0.25, 0.45, 0.2])
        guard._accuracy = lambda *_: next(accuracies)
        assert [
            guard.collapsed(None, None, epsilon=guard._recipe.epsilon, halve=False) is None
            for _ in range(5)
        ] == [
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
            assert guard.collapsed(None, None, epsilon=guard._recipe.epsilon, halve=False) is None
            assert (
                guard.collapsed(None, None, epsilon=guard._recipe.epsilon, halve=False) is None
            ) == fine

    def test_half_fallen_is_nothing_to_go_back_to(self):
        guard = CollapseGuard(load_data("digits").validation, RECIPE, seed=0)
        accuracies = iter([0.8, 0.5, 0.7])
        guard._accuracy = lambda *_: next(accuracies)
        for number in range(3):
            assert guard.collapsed(None, None, epsilon=guard._recipe.epsilon, halve=False) is None
            guard.keep(NetworkState(model={"a": torch.tensor(number)}))
            assert guard.good.model["a"] == (0, 0, 2)[number]

    def test_a_network_that_never_learned_has_nothing_to_lose(self):
        guard = CollapseGuard(load_data("digits").validation, RECIPE, seed=0)
        accuracies = iter([0.12, 0.0])
        guard._accuracy = lambda *_: next(accuracies)
        assert guard.collapsed(None, None, epsilon=guard._recipe.epsilon, halve=False) is None
        assert guard.collapsed(None, None, epsilon=guard._recipe.epsilon, halve=False) is None

    def test_while_epsilon_grows_an_epoch_is_compared_with_the_one_before(self):
        """A harder attack leaves less: 0.9 at a tenth of epsilon, 0.3 at epsilon is no collapse."""
        guard = CollapseGuard(load_data("digits").validation, RECIPE, seed=0)
        growing = [(0.1, 0.9), (0.4, 0.7), (0.7, 0.5), (1.0, 0.3), (1.0, 0.4)]
        accuracies = iter([found for _, found in growing])
        guard._accuracy = lambda *_: next(accuracies)
        for share, _ in growing:
            epsilon = share * RECIPE.epsilon
            assert guard.collapsed(None, None, epsilon=epsilon, halve=False) is None
        assert guard.best == pytest.approx(0.5)
        for share, last in ((0.5, 0.05), (1.0, 0.1)):  # but a cliff is one at any time
            guard._accuracy = lambda *_, last=last: last
            words = guard.collapsed(None, None, epsilon=share * RECIPE.epsilon, halve=True)
            assert words == f"collapsed: PGD-5 accuracy fell from 50.0 % to {100 * last:.1f} %"

    def test_a_network_is_judged_by_what_it_is_trained_for(self):
        """At the epsilon and the image size of the epoch, at its very end."""
        data = load_data("digits", limit=60)
        data = replace(data, train=_enlarged(data.train), validation=_enlarged(data.validation))
        recipe = load_recipe("fast", epochs=4, epsilon=0.2, batch_size=16)
        trainer, seen = Trainer(create_model("resnet8", in_channels=1), data, recipe), []
        guard = trainer._guard

        def judged(*_, epsilon, halve):
            seen.append((round(epsilon / 0.2, 2), halve))

        guard.collapsed = judged
        list(trainer.epochs())
        steps = trainer.steps
        assert seen == [
            (round((1 - 1 / steps) / 2, 2), True),
            (round((2 - 1 / steps) / 2, 2), False),
            (1.0, False),
            (1.0, False),
        ]
        assert not trainer.collapsed
        shapes = []
        guard = CollapseGuard(data.validation, recipe, seed=0)
        model = create_model("resnet8", in_channels=1)
        model.register_forward_pre_hook(lambda _, given: shapes.append(given[0].shape[2:]))
        for halve in (True, False):
            guard._accuracy(model, trainer.engine, 0.1, halve)
        assert set(shapes) == {(8, 8), (16, 16)}

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
        kept_momenta = copy.deepcopy(trainer.state.tensors())
        towards = FGSM(epsilon=0.4, goal="targeted")  # the right answer, under a false label
        trainer.objective.craft = lambda m, x, y: towards(m, x, (y + 1) % 10, targets=y)
        bad = next(epochs)
        assert bad.note.startswith("collapsed: PGD-5 accuracy fell from")
        assert "on with PGD-2" in bad.note
        for name, value in model.state_dict().items():
            assert torch.equal(value, kept[name])
        momenta = {k: v for k, v in trainer.state.tensors().items() if k.startswith("momentum")}
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
        for name in set(OBJECTIVES) - set(TAUGHT):
            trainer = Trainer(
                create_model("resnet8", in_channels=1), data, replace(RECIPE, objective=name)
            )
            assert (trainer._guard is not None) == (name in ("n_fgsm", "fgsm_rs"))
