"""Ensembles trained together: learned weights, lean memory; and joined afterwards."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from enresnet.attacks import IFGSM
from enresnet.cli import main
from enresnet.data import load_data
from enresnet.models import Ensemble, create_model, seed_noise, set_recompute, without_noise
from enresnet.training import Engine, Recipe, Run, RunConfig, Trainer, integrate, train
from enresnet.training.joint import LearnedWeights, weight_gradient
from enresnet.training.memory import activation_bytes, choose_memory
from problems import Linear, random_problem, seeded

IMAGES, LABELS = random_problem((6, 3, 8, 8), classes=10)
QUICK = Recipe(epochs=1, steps=1, epsilon=0.1, step_size=0.05, batch_size=64)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_analytic_gradient_is_autograds(count):
    parts = torch.randn(count, 7, 10, dtype=torch.float64, generator=seeded())
    weights = torch.rand(count, dtype=torch.float64, generator=seeded(1)).requires_grad_()
    labels = torch.randint(10, (7,), generator=seeded(2))
    loss = functional.cross_entropy(torch.einsum("k,knc->nc", weights, parts), labels)
    (expected,) = torch.autograd.grad(loss, weights)
    torch.testing.assert_close(weight_gradient(parts, weights.detach(), labels), expected)


def test_weights_move_towards_the_better_part():
    """One part is always right, one always wrong, one silent: all weight belongs to the first."""
    images = torch.rand(64, 1, 4, 4, generator=seeded())
    parts = [Linear(16, classes=3) for _ in range(3)]
    labels = parts[1](images).argmax(dim=1)
    with torch.no_grad():
        parts[0].weight.mul_(-1)
        parts[2].weight.mul_(0)
    model = Ensemble(parts)
    learned, engine = LearnedWeights(model, step=0.5), Engine(accelerator="cpu")
    history = []
    for _ in range(30):
        for rows in torch.arange(64).split(16):
            batch = images[rows]
            with learned.recording(batch):
                model(batch)
            learned.gather(labels[rows])
        learned.step(engine)
        history.append(learned.values())
    better = [weights[1] for weights in history]
    assert better == sorted(better)
    assert better[-1] > 0.99
    for weights in history:
        assert sum(weights) == pytest.approx(1)
        assert min(weights) >= 0


def test_only_the_images_trained_on_are_gathered():
    model = create_model("en1_resnet8+en1_resnet14", noise=0).eval()
    learned = LearnedWeights(model, step=0.1)
    crafted = IMAGES.clone()
    with learned.recording(crafted):
        model(IMAGES)
        model(crafted)
    assert len(learned._outputs) == 2


def test_weights_are_learned_logged_and_stored(tmp_path):
    recipe = replace(QUICK, weight_step=0.5, epochs=2)
    config = RunConfig(
        model="en1_resnet8+en1_resnet14+en2_resnet8", data="digits", recipe=recipe, limit=150
    )
    run = train(config, tmp_path / "run")
    logged = [row["weights"] for row in run.metrics()]
    assert all(len(text.split()) == 3 for text in logged)
    stored = run.load("last").weights
    assert stored.tolist() == pytest.approx([float(w) for w in logged[-1].split()], abs=1e-4)
    assert stored.tolist() != pytest.approx([1 / 3] * 3, abs=1e-6)


def test_the_step_is_that_of_the_mean_gradient_and_starts_anew_every_epoch():
    model = create_model("resnet8+resnet14", generator=seeded()).eval()
    learned, engine = LearnedWeights(model, step=0.05), Engine(accelerator="cpu")
    for _ in range(2):
        with torch.no_grad():
            parts = torch.stack([member(IMAGES) for member in model.members])
        expected = model.weights - 0.05 * weight_gradient(parts, model.weights, LABELS)
        for rows in (slice(4), slice(4, 6)):  # unequal batches
            with learned.recording(crafted := IMAGES[rows].clone()):
                model(crafted)
            learned.gather(LABELS[rows])
        learned.step(engine)
        torch.testing.assert_close(model.weights, expected / expected.sum(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{"ema": 0.995}, {"memory": "lean"}, {"awp": True}])
@pytest.mark.parametrize("name", ["en1_resnet8+en1_resnet14", "en2_resnet8"])
def test_weights_are_learned_with_everything_else(name, changes, tmp_path):
    recipe = replace(QUICK, weight_step=0.5, **changes)
    run = train(RunConfig(model=name, data="digits", recipe=recipe, limit=100), tmp_path / "run")
    logged = [float(word) for word in run.metrics()[-1]["weights"].split()]
    assert run.load("last").weights.tolist() == pytest.approx(logged, abs=1e-4)
    assert logged != pytest.approx([0.5, 0.5], abs=1e-6)


def test_weights_need_parts():
    with pytest.raises(ValueError, match="weight_step=0.1 needs parts to weigh"):
        LearnedWeights(create_model("en1_resnet8"), 0.1)
    with pytest.raises(ValueError, match="averages logits"):
        LearnedWeights(create_model("en2_resnet8", average="probabilities"), 0.1)


def gradients(model, images, labels):
    point = images.clone().requires_grad_()
    loss = functional.cross_entropy(model(point), labels)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return loss.detach(), point.grad, found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("average", ["logits", "probabilities"])
@pytest.mark.parametrize("name", ["en3_resnet8", "en2_resnet8+en1_resnet14"])
def test_lean_gradients_are_the_plain_ones(name, average, training):
    plain = create_model(name, average=average, generator=seeded()).double().train(training)
    lean = copy.deepcopy(plain)
    set_recompute(lean, True)
    images = IMAGES.double()
    results = []
    for model in (plain, lean):
        seed_noise(model, seeded(5))
        results.append(gradients(model, images, LABELS))
        results.append(gradients(model, images, LABELS))  # the stream went on in the same way
    torch.testing.assert_close(results[2], results[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(results[3], results[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(lean.state_dict(), plain.state_dict())  # BatchNorm counted once


def test_lean_attacks_are_the_plain_ones():
    plain = create_model("en3_resnet8", generator=seeded()).double()
    lean = copy.deepcopy(plain)
    set_recompute(lean, True)
    attacked = []
    for model in (plain, lean):
        seed_noise(model, seeded(5))
        attacked.append(IFGSM(steps=3, norm="l2")(model, IMAGES.double(), LABELS))
    torch.testing.assert_close(attacked[1], attacked[0], rtol=0, atol=1e-9)


def test_lean_keeps_the_activations_of_no_member():
    images = torch.rand(4, 3, 16, 16)
    one, five = create_model("en1_resnet8"), create_model("en5_resnet8")
    assert activation_bytes(five, images) > 4 * activation_bytes(one, images)
    set_recompute(five, True)
    assert activation_bytes(five, images) < 0.2 * activation_bytes(one, images)


def test_lean_holds_for_parts_of_every_kind():
    images = torch.rand(4, 3, 16, 16)
    model = Ensemble([create_model("en1_resnet8"), *(create_model("resnet8") for _ in range(3))])
    plain = activation_bytes(model, images)
    set_recompute(model, True)
    assert activation_bytes(model, images) < 0.1 * plain


def test_lean_runs_a_network_once_more_and_not_twice():
    model, calls = create_model("en1_resnet8+en1_resnet14"), []
    set_recompute(model, True)
    model.members[0].members[0].register_forward_hook(lambda *_: calls.append(1))
    model(IMAGES).sum().backward()
    assert len(calls) == 2


def test_memory_is_that_of_training():
    """Noise and BatchNorm keep tensors of their own, and TRADES runs the network twice."""
    model, few = create_model("en1_resnet8"), torch.rand(4, 3, 16, 16)
    noisy = activation_bytes(model, few)
    with without_noise(model):
        assert activation_bytes(model, few) < 0.9 * noisy


def test_lean_training_is_plain_training():
    data = load_data("digits", limit=100)
    weights = []
    for memory in ("plain", "lean", "auto"):
        model = create_model("en2_resnet8", in_channels=1, generator=seeded())
        trainer = Trainer(model, data, replace(QUICK, memory=memory))
        assert trainer.recompute == (memory == "lean")
        list(trainer.epochs())
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-3, atol=1e-4)
    assert torch.equal(weights[2], weights[0])  # the measuring takes no noise from the stream


def test_auto_is_lean_when_memory_is_short(monkeypatch):
    model, few = create_model("en2_resnet8"), torch.rand(2, 3, 16, 16)
    needed = activation_bytes(model, few) * 64
    for free, expected in ((3 * needed, False), (1.5 * needed, True)):
        monkeypatch.setattr("enresnet.training.memory.free_memory", lambda free=free: free)
        assert choose_memory(model, few, 128, "auto") == expected
        assert model.recompute == expected


class TestIntegrate:
    @pytest.fixture
    def runs(self, tmp_path):
        for name in ("en1_resnet8", "resnet14"):
            config = RunConfig(model=name, data="digits", recipe=QUICK, limit=100)
            train(config, tmp_path / name)
        return [tmp_path / "en1_resnet8", tmp_path / "resnet14"]

    def test_the_parts_are_averaged_and_evaluated(self, runs, tmp_path, capsys):
        assert main(["integrate", *map(str, runs), "--out", str(tmp_path / "both")]) == 0
        assert "en1_resnet8+resnet14" in capsys.readouterr().out
        run = Run.open(tmp_path / "both")
        assert run.config.parts == tuple(map(str, runs))
        model, parts = run.load("best"), [Run.open(folder).load("best") for folder in runs]
        images = load_data("digits").test.batch(slice(5))[0]
        seed_noise(model, seeded(1))
        seed_noise(parts[0], seeded(1))
        expected = torch.stack([part(images) for part in parts]).mean(dim=0)
        torch.testing.assert_close(model(images), expected)
        assert model.members[0].recompute  # one network in memory at a time
        arguments = ["evaluate", str(run.folder), "--attacks", "ifgsm3", "--limit", "6"]
        assert main([*arguments, "--batch-size", "1"]) == 0
        assert (run.folder / "evaluation.json").is_file()

    def test_weights(self, runs, tmp_path):
        run = integrate(runs, tmp_path / "both", weights=[3, 1])
        assert Run.open(run.folder).config.weights == (0.75, 0.25)
        assert run.load("best").weights.tolist() == [0.75, 0.25]

    def test_the_largest_epsilon_counts(self, runs, tmp_path):
        config = runs[1] / "config.yaml"
        config.write_text(config.read_text().replace("epsilon: 0.1", "epsilon: 0.2"))
        assert integrate(runs, tmp_path / "both").config.recipe.epsilon == 0.2

    def test_bad_input(self, runs, tmp_path):
        with pytest.raises(ValueError, match="runs must be two or more"):
            integrate(runs[:1], tmp_path / "x")
        with pytest.raises(FileNotFoundError, match="is not a run"):
            integrate([runs[0], tmp_path], tmp_path / "x")
        with pytest.raises(ValueError, match="weights must hold 2 numbers"):
            integrate(runs, tmp_path / "x", weights=[1])
        with pytest.raises(FileExistsError, match="is a run of another configuration"):
            integrate(runs, runs[0])
        config = runs[1] / "config.yaml"
        config.write_text(config.read_text().replace("data: digits", "data: cifar10"))
        with pytest.raises(ValueError, match="runs must be of the same data"):
            integrate(runs, tmp_path / "x")
        assert not (tmp_path / "x").exists()
