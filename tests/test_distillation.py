"""A student learns what a teacher answers on clean images, and how it answers under attack."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from enresnet.attacks.geometry import Linf
from enresnet.data import load_data
from enresnet.models import create_model, save_model
from enresnet.training import Engine, RunConfig, Trainer, load_recipe, train
from enresnet.training.teacher import teacher_answers
from problems import Linear, seeded, seeds_of
from trainings import ANSWERS, IMAGES, LABELS, StopAt, StopError, assert_same_weights, objective


def test_the_loss_is_five_sixths_on_attacked_images():
    model = Linear(192, classes=4)
    rslad = objective("rslad")
    crafted = rslad.craft(model, IMAGES, LABELS)
    loss, logits = rslad.loss(model, IMAGES, crafted, LABELS)

    def apart(images):
        answers = model(images).log_softmax(1)
        return functional.kl_div(answers, ANSWERS, log_target=True, reduction="batchmean")

    torch.testing.assert_close(loss, apart(IMAGES) / 6 + 5 * apart(crafted) / 6)
    torch.testing.assert_close(logits, model(crafted))
    assert apart(crafted) > apart(IMAGES)
    assert (crafted - IMAGES).abs().max() <= 0.1 + 1e-6


def test_the_one_step_is_that_of_n_fgsm_away_from_the_teacher():
    model, images = Linear(192, classes=4), 0.5 + 0.0 * IMAGES
    crafted = objective("rslad_one_step", seed=5).craft(model, images, LABELS)
    seeds = seeds_of(objective("n_fgsm", seed=5).attack, len(images))
    noisy = Linf(images, 0.2).random_point(seeds).requires_grad_()
    answers = model(noisy).log_softmax(1)
    functional.kl_div(answers, ANSWERS, log_target=True, reduction="sum").backward()
    torch.testing.assert_close(crafted, noisy.detach() + 0.1 * noisy.grad.sign())


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=200)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A teacher that knows the digits."""
    recipe = load_recipe("quickstart", epochs=8)
    config = RunConfig("en1_resnet8", "digits", recipe)
    return train(config, tmp_path_factory.mktemp("teacher") / "run")


class TestAnswers:
    def test_they_are_those_of_the_image_and_its_mirror_image(self, digits, tmp_path):
        model = create_model("resnet8", in_channels=1, generator=seeded()).eval()
        save_model(model, tmp_path / "t.safetensors")
        source, options = str(tmp_path / "t.safetensors"), {"engine": Engine(), "seed": 0}
        found = teacher_answers(source, digits.train, mirror=True, **options)
        alone = teacher_answers(source, digits.train, mirror=False, **options)
        images, _ = digits.train.batch(slice(None))
        with torch.no_grad():
            both = model(images).softmax(1), model(images.flip(3)).softmax(1)
        torch.testing.assert_close(found.exp(), (both[0] + both[1]) / 2)
        torch.testing.assert_close(alone.exp(), both[0])

    def test_noise_is_on_and_fixed_by_the_seed(self, digits, teacher):
        one, again, other = (
            teacher_answers(
                str(teacher.folder), digits.train, mirror=False, engine=Engine(), seed=seed
            )
            for seed in (0, 0, 1)
        )
        assert torch.equal(one, again)
        assert not torch.equal(one, other)

    def test_a_teacher_of_other_classes_is_refused(self, digits, tmp_path):
        model = create_model("resnet8", in_channels=1, num_classes=7)
        save_model(model, tmp_path / "t.safetensors")
        with pytest.raises(ValueError, match="10 classes apart: .* tells 7"):
            teacher_answers(
                str(tmp_path / "t.safetensors"),
                digits.train,
                mirror=False,
                engine=Engine(),
                seed=0,
            )


def recipe(teacher, **changes):
    base = load_recipe("quickstart", objective="rslad_one_step", teacher=str(teacher.folder))
    return replace(base, epochs=2, batch_size=32, **changes)


def test_a_student_learns_from_the_answers_alone(teacher, digits):
    """Its labels are wrong on purpose: what it knows after training, the teacher told it."""
    wrong = replace(digits, train=replace(digits.train, labels=(digits.train.labels + 1) % 10))
    student = create_model("resnet8", in_channels=1, generator=seeded())
    trainer = Trainer(student, wrong, recipe(teacher, epsilon=0.05, learning_rate=0.2))
    trainer.recipe = replace(trainer.recipe, epochs=12)
    *_, last = trainer.epochs()
    assert last.validation_natural > 0.6


def test_a_killed_distillation_ends_as_an_uninterrupted_one(teacher, tmp_path):
    config = RunConfig("resnet8", "digits", recipe(teacher), limit=200)
    train(config, tmp_path / "whole")
    with pytest.raises(StopError):
        train(config, tmp_path / "cut", checkpoint_every=0, callbacks=[StopAt(7)])
    train(config, tmp_path / "cut")
    assert_same_weights(tmp_path / "whole", tmp_path / "cut")


def test_another_teacher_is_noticed(teacher, tmp_path):
    save_model(teacher.load("best"), tmp_path / "t.safetensors")
    changed = replace(recipe(teacher), teacher=str(tmp_path / "t.safetensors"))
    config = RunConfig("resnet8", "digits", changed, limit=200)
    with pytest.raises(StopError):
        train(config, tmp_path / "run", checkpoint_every=0, callbacks=[StopAt(3)])
    other = create_model("resnet8", in_channels=1, generator=seeded(5))
    save_model(other, tmp_path / "t.safetensors")
    with pytest.raises(ValueError, match="answers otherwise than when the run began"):
        train(config, tmp_path / "run")


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="teacher must be given with objective=rslad"):
        load_recipe("fast", objective="rslad")
    with pytest.raises(ValueError, match="teacher is for objective=rslad"):
        load_recipe("fast", teacher="runs/one")
    with pytest.raises(ValueError, match="label_smoothing is for labels"):
        load_recipe("fast", objective="rslad", teacher="runs/one", label_smoothing=0.1)
    missing = load_recipe("fast", objective="rslad", teacher=str(tmp_path / "no"))
    assert missing.label_smoothing == 0  # the recipe's own is for labels
    with pytest.raises(FileNotFoundError, match="no model at"):
        train(RunConfig("resnet8", "digits", missing, limit=100), tmp_path / "run")


def test_a_collapse_goes_on_with_the_teacher():
    from enresnet.training.collapse_guard import CollapseGuard
    from enresnet.training.curriculum import recipe_at

    fast = load_recipe("fast", objective="rslad_one_step", teacher="t", final_steps=2)
    assert recipe_at(fast, 0.9).objective == "rslad"
    assert recipe_at(load_recipe("fast", final_steps=2), 0.9).objective == "pgd"
    guard = CollapseGuard(load_data("digits", limit=100).validation, fast, 0)
    assert guard.safer_recipe().objective == "rslad"
