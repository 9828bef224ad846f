"""Trainings that begin easy and end hard."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from enresnet.data import DataSet, load_data
from enresnet.models import create_model
from enresnet.training import Engine, Trainer, load_recipe
from enresnet.training.curriculum import halved, recipe_at
from problems import seeded

FAST = load_recipe(
    "fast", epochs=5, batch_size=30, epsilon=0.1, epsilon_growth=0, low_resolution=0, shift=None
)


def training(recipe, data=None):
    data = data or load_data("digits", limit=100)
    model = create_model("resnet8", in_channels=data.train.channels, generator=seeded())
    return Trainer(model, data, recipe)


def crafted_in(trainer):
    """Train, and return (fraction done, images, crafted) of every step."""
    seen = []
    update = trainer._update

    def watched(images, *rest):
        objective = trainer.objective
        craft = objective.craft
        done = trainer.steps_done / (trainer.steps * trainer.recipe.epochs)

        def told(model, images, labels):
            crafted = craft(model, images, labels)
            seen.append((done, objective, images, crafted))
            return crafted

        objective.craft = told
        try:
            return update(images, *rest)
        finally:
            del objective.craft

    trainer._update = watched
    list(trainer.epochs())
    return seen


def test_nothing_changes_unless_it_is_asked_for():
    for done in (0.0, 0.3, 0.99):
        assert recipe_at(FAST, done) is FAST


def test_epsilon_grows_in_a_line_and_stays():
    recipe = replace(FAST, epsilon_growth=0.5)
    assert [recipe_at(recipe, done).epsilon for done in (0, 0.25, 0.5, 1)] == [0, 0.05, 0.1, 0.1]
    for done, objective, images, crafted in crafted_in(training(recipe)):
        radius = 0.1 * min(1, done / 0.5)
        assert objective.attack.epsilon == pytest.approx(radius)
        # N-FGSM leaves the ball: noise of twice the radius, then a step of one.
        assert (crafted - images).abs().max() <= 3 * radius + 1e-6


def test_several_steps_at_the_end():
    recipe = replace(FAST, final_steps=3, final_from=0.6)
    names = [(done, type(o).__name__) for done, o, *_ in crafted_in(training(recipe))]
    assert {name for done, name in names if done < 0.6} == {"NFGSM"}
    assert {name for done, name in names if done >= 0.6} == {"AdversarialPGD"}
    last = recipe_at(recipe, 0.9)
    assert (last.steps, last.step_size) == (3, pytest.approx(0.05))
    with pytest.raises(ValueError, match="final_steps is for objective=n_fgsm or fgsm_rs"):
        load_recipe("paper", final_steps=2)
    with pytest.raises(ValueError, match="final_from is for final_steps above 0"):
        load_recipe("fast", final_from=0.5)


def test_half_the_resolution_at_first():
    torch.manual_seed(0)
    pixels, labels = torch.randint(256, (60, 1, 16, 16), dtype=torch.uint8), torch.arange(60) % 4
    pairs = torch.utils.data.TensorDataset(pixels.float() / 255, labels)
    data = DataSet.of(pairs, pairs)
    recipe = replace(FAST, low_resolution=0.4)
    sides = {(done < 0.4, i.shape[2]) for done, _, i, _ in crafted_in(training(recipe, data))}
    assert sides == {(True, 8), (False, 16)}
    images = torch.rand(2, 1, 16, 16)
    assert halved(images)[0, 0, 0, 0] == pytest.approx(images[0, 0, :2, :2].mean().item())


@pytest.mark.parametrize("side", [8, 16])
def test_what_cannot_be_halved_stays_whole_and_the_run_says_so(side):
    """Images that are too small; and a network that takes one size only."""
    pairs = torch.utils.data.TensorDataset(torch.rand(60, 1, side, side), torch.arange(60) % 4)
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(side**2), nn.Linear(side**2, 4)).eval()
    recipe = replace(FAST, epochs=2, low_resolution=0.5)
    trainer = Trainer(network, DataSet.of(pairs, pairs), recipe)
    assert not any(module.training for module in network.modules())  # tried, and left as it was
    assert network[1].num_batches_tracked == 0
    notes = [epoch.note for epoch in trainer.epochs()]
    why = "images of 8 x 8 are too small" if side == 8 else "the network takes images of one size"
    assert f"low_resolution is left out: {why}" in notes[0]
    assert notes[1] == ""


def strided(times):
    """Return a network that halves its images so many times."""
    layers = [nn.Conv2d(1, 4, 1), *(nn.Conv2d(4, 4, 3, 2, 1) for _ in range(times))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


def test_a_stride_larger_than_what_half_the_images_leave_keeps_them_whole():
    """In bfloat16 on a CPU, torch leaves gradients of weights that see no pixel unset."""
    pairs = torch.utils.data.TensorDataset(torch.rand(60, 1, 16, 16), torch.arange(60) % 4)
    data, recipe = DataSet.of(pairs, pairs), replace(FAST, epochs=2, low_resolution=0.5)
    (note, _) = [epoch.note for epoch in Trainer(strided(4), data, recipe).epochs()]
    assert "low_resolution is left out: 4 has a larger stride than half the images" in note
    (note, _) = [epoch.note for epoch in Trainer(strided(3), data, recipe).epochs()]
    assert "low_resolution" not in note


def test_bfloat16_is_refused_where_torch_would_compute_wrong_gradients():
    pairs = torch.utils.data.TensorDataset(torch.rand(60, 1, 16, 16), torch.arange(60) % 4)
    data = DataSet.of(pairs, pairs)
    bf16 = Engine(accelerator="cpu", precision="bf16")
    with pytest.raises(ValueError, match=r"precision is bf16, .* gradients of 5 .* precision 32"):
        Trainer(strided(5), data, FAST, engine=bf16)
    Trainer(strided(5), data, FAST)
    Trainer(strided(4), data, FAST, engine=bf16)


def test_a_shift_of_its_own():
    pixels = torch.full((60, 1, 16, 16), 200, dtype=torch.uint8).float() / 255
    pairs = torch.utils.data.TensorDataset(pixels, torch.arange(60) % 4)
    data = DataSet.of(pairs, pairs)
    for shift, moved in ((None, True), (0.0, False), (0.25, True)):
        trainer = training(replace(FAST, shift=shift), data)
        images, _ = trainer._batches.load(torch.arange(30), halve=False)
        assert bool((images == 0).any()) == moved
    assert trainer._batches.augmentation.pad == 4


def test_a_training_goes_on_where_it_was():
    """The curriculum is a function of the step alone, so resuming needs nothing more."""
    recipe = replace(FAST, epochs=4, epsilon_growth=0.3, final_steps=2, final_from=0.5)
    whole = training(recipe)
    list(whole.epochs())
    for stop in (1, 2, 3):
        first = training(recipe)
        for epoch in first.epochs():
            if epoch.epoch == stop:
                break
        second = training(recipe)
        second.restore(first.state)
        list(second.epochs())
        for name, value in whole.state.tensors().items():
            assert torch.equal(value, second.state.tensors()[name]), (stop, name)
