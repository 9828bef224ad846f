"""Training: the loop, the recipes, the run folder, the commands."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch
import yaml
from torch.nn import functional

from enresnet.cli import main
from enresnet.data import load_data
from enresnet.models import create_model, load_model, save_model
from enresnet.models.noise import noise_modules
from enresnet.training import Recipe, Run, RunConfig, Trainer, list_recipes, load_recipe, train
from enresnet.training.joint import shares
from enresnet.training.objectives import OBJECTIVES
from enresnet.training.recipe import ratio, step_rate
from problems import SmallNet, random_problem, seeded


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=300)


QUICK = Recipe(epochs=2, steps=2, epsilon=0.1, step_size=0.05, batch_size=64)


def test_the_papers_recipe():
    recipe = load_recipe("paper")
    assert recipe == Recipe()
    assert (recipe.epsilon, recipe.step_size, recipe.steps) == (8 / 255, 2 / 255, 10)
    assert (recipe.learning_rate, recipe.momentum, recipe.weight_decay) == (0.1, 0.9, 5e-4)
    rates = [step_rate(e / 200, base=0.1, milestones=recipe.milestones) for e in range(200)]
    changes = [epoch for epoch in range(1, 200) if rates[epoch] != rates[epoch - 1]]
    assert changes == [80, 120, 160]
    assert rates[0] == 0.1
    assert rates[-1] == pytest.approx(1e-4)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_trains(name, digits):
    recipe = load_recipe(name, epochs=1, steps=1, batch_size=128)
    config = RunConfig(model="en2_resnet8", data="digits", recipe=recipe)
    model = config.create_model(digits)
    (over,) = {module.std_over for module in noise_modules(model)}
    assert over == ("batch" if name == "released" else "example")
    (epoch,) = Trainer(model, digits, recipe).epochs()
    assert epoch.train_loss > 0
    assert (epoch.validation_robust is None) == (recipe.objective == "natural")


def test_another_epsilon_brings_its_step():
    assert load_recipe("paper", epsilon=0.2).step_size == pytest.approx(0.05)
    assert load_recipe("paper", epsilon=0.2, step_size=0.01).step_size == 0.01


def test_the_objective_of_algorithm_1():
    """Cross-entropy in training mode on PGD images crafted in evaluation mode."""
    model, (images, labels) = SmallNet().train(), random_problem()
    model.dropout.p = 0.0
    objective = OBJECTIVES["pgd"](QUICK, seeded(3))
    statistics = model.bn.running_mean.clone()
    loss, logits = objective(model, images, labels)
    assert model.training
    assert not torch.equal(model.bn.running_mean, statistics)  # moved by one pass: the update's
    torch.testing.assert_close(loss, functional.cross_entropy(logits, labels))
    moved = model.bn.running_mean.clone()
    twin = SmallNet().train()
    twin.dropout.p = 0.0
    attack = OBJECTIVES["pgd"](QUICK, seeded(3)).attack
    assert (attack.epsilon, attack.steps, attack.restarts) == (0.1, 2, 1)
    twin(attack(twin, images, labels))
    assert torch.equal(twin.bn.running_mean, moved)


def test_a_step_is_that_of_sgd(digits):
    """One epoch of one batch equals the textbook's update of the natural loss."""
    recipe = replace(
        QUICK,
        objective="natural",
        epochs=1,
        batch_size=10_000,
        augment=False,
        weight_decay=0.5,
        momentum=0.7,
    )
    model = create_model("resnet8", in_channels=1, generator=seeded(1))
    twin = create_model("resnet8", in_channels=1, generator=seeded(1))
    list(Trainer(model, digits, recipe).epochs())
    images, labels = digits.train.batch(slice(None))
    functional.cross_entropy(twin.train()(images), labels).backward()
    for name, parameter in twin.named_parameters():
        gradient = parameter.grad + 0.5 * parameter
        expected = parameter - 0.1 * (gradient + 0.7 * gradient)  # Nesterov's first step
        torch.testing.assert_close(model.get_parameter(name), expected, rtol=1e-2, atol=1e-4)


def test_training_learns_and_robust_training_makes_robust():
    data = load_data("digits")
    results = {}
    for objective in ("natural", "pgd"):
        recipe = replace(
            QUICK, objective=objective, epochs=4, learning_rate=0.3, steps=5, epsilon=0.15
        )
        model = create_model("resnet8", in_channels=1, generator=seeded())
        epochs = list(Trainer(model, data, recipe).epochs())
        assert epochs[-1].train_loss < 0.6 * epochs[0].train_loss
        attack = OBJECTIVES["pgd"](recipe, seeded()).attack
        images, labels = data.test.batch(slice(200))
        attacked = attack(model, images, labels)
        results[objective] = (model.eval()(attacked).argmax(dim=1) == labels).double().mean()
    assert results["pgd"] > results["natural"] + 0.2


def test_a_seed_fixes_the_training(digits):
    weights = []
    for seed in (0, 0, 1):
        config = RunConfig(model="en2_resnet8", data="digits", recipe=QUICK, seed=seed)
        model = config.create_model(digits)
        list(Trainer(model, digits, QUICK, seed=seed).epochs())
        weights.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_compensation_gives_each_member_its_own_gradient():
    data = load_data("digits", limit=60)
    recipe = replace(QUICK, objective="natural", epochs=1, batch_size=100, weight_decay=0.0)
    changes = {}
    for compensate in (False, True):
        model = create_model("en3_resnet8", in_channels=1, noise=0, generator=seeded())
        before = model.members[0].classifier.weight.clone()
        list(Trainer(model, data, replace(recipe, compensate=compensate)).epochs())
        changes[compensate] = model.members[0].classifier.weight - before
    torch.testing.assert_close(changes[True], 3 * changes[False], rtol=1e-3, atol=1e-5)
    found = [share for _, share in shares(create_model("en2_resnet8+en4_resnet8"))]
    assert found == pytest.approx([1 / 4, 1 / 4, *[1 / 8] * 4])


def test_a_loss_that_is_not_finite_stops_the_training(digits):
    recipe = replace(QUICK, objective="natural", learning_rate=1e30)
    model = create_model("resnet8", in_channels=1)
    with pytest.raises(FloatingPointError, match="epoch 1, step .*smaller learning_rate"):
        list(Trainer(model, digits, recipe).epochs())


def test_a_last_step_that_ruins_the_network_is_not_saved(tmp_path, capsys):
    words = "train --model resnet8 --data digits --epochs 1 --limit 100 --learning-rate 1e30"
    assert main([*words.split(), "--steps", "1", "--out", str(tmp_path / "run")]) == 2
    assert "model gives NaN" in capsys.readouterr().err
    assert not (tmp_path / "run" / "best.safetensors").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    config = RunConfig(model="En1ResNet8", data="digits", recipe=QUICK, limit=200)
    return train(config, folder)


class TestRun:
    def test_the_folder_holds_what_it_should(self, run):
        names = sorted(path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*"))
        names = [name for name in names if not name.startswith("tensorboard")]
        assert names == [
            ".lock",
            "best.safetensors",
            "config.yaml",
            "curves.png",
            "environment.json",
            "last",
            "last/model.safetensors",
            "metrics.csv",
        ]
        rows = list(csv.DictReader((run.folder / "metrics.csv").read_text().splitlines()))
        assert [row["epoch"] for row in rows] == ["1", "2"]
        assert all(float(row["validation_robust"]) >= 0 for row in rows)

    def test_the_configuration_is_stored_whole(self, run):
        assert Run.open(run.folder).config == run.config
        assert run.config.model == "en1_resnet8"
        stored = yaml.safe_load((run.folder / "config.yaml").read_text())
        assert stored["recipe"]["epsilon"] == 0.1

    def test_a_finished_run_is_left_as_it_is(self, run):
        before = {p: p.stat().st_mtime_ns for p in run.folder.rglob("*") if p.is_file()}
        assert train(run.config, run.folder).config == run.config
        assert before == {p: p.stat().st_mtime_ns for p in run.folder.rglob("*") if p.is_file()}

    def test_a_run_that_ended_before_its_first_epoch_does_not_block(self, run, tmp_path, capsys):
        Run.create(tmp_path / "started", run.config)
        assert main(["evaluate", str(tmp_path / "started")]) == 2
        assert "did not finish an epoch" in capsys.readouterr().err
        train(run.config, tmp_path / "started")

    def test_a_run_that_was_not_validated_says_so(self, run, tmp_path):
        recipe = replace(QUICK, epochs=10, validate_from=0.9)
        config = replace(run.config, recipe=recipe)
        started = Run.create(tmp_path / "young", config)
        started.save("last", run.load("last"))
        with pytest.raises(FileNotFoundError, match="not trained to the end.*--checkpoint last"):
            started.load("best")

    def test_what_is_not_a_run(self, run, tmp_path):
        with pytest.raises(FileNotFoundError, match="is not a run: it has no config.yaml"):
            Run.open(tmp_path)
        (tmp_path / "config.yaml").write_text("modle: resnet20\n")
        with pytest.raises(ValueError, match="must hold model, data.*found .*modle"):
            Run.open(tmp_path)
        (tmp_path / "config.yaml").write_text("model: resnet20\n")
        with pytest.raises(ValueError, match="lacks data"):
            Run.open(tmp_path)
        with pytest.raises(ValueError, match="checkpoint must be one of best, last"):
            run.load("first")

    def test_evaluate(self, run, capsys, tmp_path):
        arguments = ["evaluate", str(run.folder), "--attacks", "fgsm", "ifgsm3", "--limit", "40"]
        result = tmp_path / "result.json"
        assert main([*arguments, "--draws", "3", "--json", str(result)]) == 0
        shown = capsys.readouterr().out
        assert "ifgsm3" in shown
        assert "95 % interval" in shown
        values = json.loads(result.read_text())
        kept = json.loads((run.folder / "evaluation.json").read_text())["best"]
        for name, value in {"natural": values["natural"], **values["robust"]}.items():
            entry = kept["natural"] if name == "natural" else kept["robust"][name]
            assert value.items() <= entry.items()
            assert entry["circumstances"]["seed"] == 0
            assert "torch" in entry["circumstances"]["versions"]
        assert values["robust"]["ifgsm3"]["attack"].startswith("IFGSM(epsilon=0.1, ")
        assert "eot=5" in values["robust"]["fgsm"]["attack"]
        assert values["natural"]["draws"] == 3
        assert len(values["natural"]["per_class"]) == 10
        assert main([*arguments, "--draws", "3", "--json", str(result)]) == 0
        again = json.loads(result.read_text())
        assert again["robust"]["ifgsm3"]["accuracy"] == values["robust"]["ifgsm3"]["accuracy"]

    def test_weights_of_another_architecture_are_refused(self, run, capsys, tmp_path):
        copy = tmp_path / "run"
        shutil.copytree(run.folder, copy)
        for name in ("resnet8", "en2_resnet8", "en1_resnet14"):
            save_model(create_model(name, in_channels=1), copy / "best.safetensors")
            assert main(["evaluate", str(copy)]) == 2
            assert "holds another network than its config.yaml says" in capsys.readouterr().err

    def test_results_of_other_weights_do_not_mix(self, run, capsys, tmp_path):
        copy = tmp_path / "run"
        shutil.copytree(run.folder, copy)
        arguments = ["evaluate", str(copy), "--limit", "5", "--draws", "2", "--attacks"]
        assert main([*arguments, "fgsm"]) == 0
        model = create_model("en1_resnet8", in_channels=1, generator=seeded(9))
        save_model(model, copy / "best.safetensors")
        assert main([*arguments, "ifgsm3"]) == 0
        kept = json.loads((copy / "evaluation.json").read_text())["best"]
        assert set(kept["robust"]) == {"ifgsm3"}
        capsys.readouterr()

    def test_best_and_last_are_kept_side_by_side(self, run, capsys):
        for checkpoint in ("best", "last"):
            words = ["--attacks", "fgsm", "--limit", "5", "--checkpoint", checkpoint]
            assert main(["evaluate", str(run.folder), *words]) == 0
        kept = json.loads((run.folder / "evaluation.json").read_text())
        assert {name: kept[name]["checkpoint"] for name in kept} == {"best": "best", "last": "last"}
        capsys.readouterr()

    def test_evaluate_bad_input(self, run, capsys, tmp_path):
        nowhere = str(tmp_path / "no" / "x.json")
        assert main(["evaluate", str(run.folder), "--json", nowhere]) == 2
        assert main(["evaluate", str(run.folder), "--attacks", "fgsm_l2", "--epsilon", "1"]) == 2
        assert "leave --epsilon out" in capsys.readouterr().err
        assert main(["evaluate", str(tmp_path)]) == 2
        assert "is not a run" in capsys.readouterr().err
        assert main(["evaluate", str(run.folder), "--attacks", "fgms"]) == 2
        assert "unknown attack 'fgms'" in capsys.readouterr().err
        assert main(["evaluate", str(run.folder), "--checkpoint", "first"]) == 2


def test_train_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = "train --model en1_resnet8 --data digits --epochs 1 --limit 150 --epsilon 25.5/255"
    assert main([*arguments.split(), "--steps", "1", "--json", "epochs.json"]) == 0
    shown = capsys.readouterr().out
    assert "epoch 1/1: loss" in shown
    assert "enresnet evaluate runs/digits-en1_resnet8-paper-seed0" in shown.replace("\n", "")
    run = Run.open(tmp_path / "runs" / "digits-en1_resnet8-paper-seed0")
    assert run.config.recipe.epsilon == pytest.approx(0.1)
    assert run.config.recipe.step_size == pytest.approx(0.025)
    assert json.loads((tmp_path / "epochs.json").read_text())[0]["epoch"] == 1
    assert load_model(run.weights("best")).config
    assert main(arguments.split()) == 2
    assert "is a run of another configuration (recipe.steps 1 there, 10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model resnt20 --data digits", "unknown model 'resnt20'"),
        ("--model resnet8 --data digit", "unknown data set 'digit'"),
        ("--model resnet8 --data digits --recipe papr", "unknown recipe 'papr'.*paper"),
        ("--model resnet8 --data digits --epochs 0", "epochs must be at least 1"),
        ("--model resnet8 --data digits --beta 3", "beta is for objective=trades or mart; found"),
        ("--model resnet8 --data digits --warm-up 0.3", "warm_up is for schedule=one_cycle"),
        ("--model resnet8 --data digits --noise 0.3", "noise is for noisy networks such as en1_"),
        ("--model resnet8 --data digits --ema 1", "ema must be between 0 and 0.999999"),
        (
            "--model resnet8 --data digits --objective nat",
            "objective must be one of .*natural, pgd",
        ),
    ],
)
def test_train_command_bad_input(words, message, tmp_path, capsys):
    import re

    assert main(["train", *words.split(), "--out", str(tmp_path / "run")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_overrides_follow_the_rules_of_recipes():
    for changes, words in (
        ({"epcohs": 2}, "unknown field 'epcohs'. Did you mean epochs"),
        ({"std_over": "foo"}, "std_over must be one of batch, example"),
        ({"compensate": "no"}, "compensate must be true or false"),
        ({"awp_gamma": 0.1}, "awp_gamma is for awp=true"),
    ):
        with pytest.raises(ValueError, match=words):
            load_recipe("fast", **changes)
    assert load_recipe("fast", epsilon="4/255").epsilon == 4 / 255
    with pytest.raises(TypeError, match="augment must be true or false"):
        Recipe(augment=3)


def test_an_optional_field_can_be_taken_back(tmp_path):
    words = "train --model resnet8 --data digits --recipe fast --epochs 1 --limit 100"
    more = ["--validation-images", "none", "--out", str(tmp_path / "run")]
    assert main([*words.split(), *more]) == 0
    assert Run.open(tmp_path / "run").config.recipe.validation_images is None
    more = ["--milestones", "1/2", "3/4", "--schedule", "step", "--out", str(tmp_path / "other")]
    assert main([*words.split(), *more]) == 0
    assert Run.open(tmp_path / "other").config.recipe.milestones == (0.5, 0.75)


def test_recipe_files(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("epsilon: 4/255\nmilestones: [1/2]\n")
    assert load_recipe(str(path)).epsilon == 4 / 255
    assert load_recipe(str(path), epochs=3).milestones == (0.5,)
    for text, words in (
        ("epsilom: 0.1", "unknown field 'epsilom'. Did you mean epsilon"),
        ("epsilon: much", "epsilon 'much' is not a number"),
        ("epsilon: 8/0", "is not a number"),
        ("- a", "must be a list of field: value"),
        ("epsilon: [", "is not YAML"),
        ("epsilon: 3", "epsilon must be between 0 and 1"),
        ("milestones: [80]", "milestones must be between 0 and 1"),
        ("milestones: 0.5", "milestones must be a list"),
        ("augment: 7", "augment must be true or false"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            load_recipe(str(path))
    assert ratio("6e-4") == 6e-4


def test_data_command(capsys, tmp_path):
    assert main(["data", "digits", "--json", str(tmp_path / "d.json")]) == 0
    assert "1168" in capsys.readouterr().out
    assert json.loads((tmp_path / "d.json").read_text())[2]["images"] == 500
    for words in (["--size", "16"], ["--gray"], ["--source", "x"]):
        assert main(["data", "digits", *words]) == 2
    capsys.readouterr()
    assert main(["data", "cifar11"]) == 2
    assert "Did you mean cifar1" in capsys.readouterr().err
