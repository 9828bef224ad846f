"""Which epoch is kept: the last where the rate ends at zero, else the latest that is not worse."""

import csv
from dataclasses import replace

import pytest
import torch

from enresnet.cli import main
from enresnet.data import load_data
from enresnet.models import create_model
from enresnet.models.noise import NoiseStream, noise_modules
from enresnet.training import Engine, Run, RunConfig, load_recipe, train, trainer
from enresnet.training.selection import Selection
from enresnet.training.validation import Validation, validate
from problems import seeded

# Accuracies of a schedule's last epochs as they were: the last is the best by a hair.
RISING = [0.375, 0.385, 0.393, 0.398, 0.400]
TOOK_OVER = 0.10  # of the images, from right to wrong and back, between two epochs


def epochs_of(accuracies, images, generator):
    """Return the right and wrong answers of a network that changes its mind on some images."""
    rank = torch.rand(images, generator=generator)
    for accuracy in accuracies:
        noise = TOOK_OVER * torch.randn(images, generator=generator)
        found = rank + noise
        yield (found <= found.quantile(accuracy)).double()


def luckiest(scores):
    """The old rule: the highest accuracy on the first 1,000 images."""
    means = [float(score[:1000].mean()) for score in scores]
    return 1 + max(range(len(means)), key=means.__getitem__)


def selected(scores):
    selection = Selection(epochs=len(scores), averaged=True)
    for number, score in enumerate(scores, 1):
        selection.consider(number, score, selecting=True)
    return selection.kept.epoch


def sampled(accuracies, generator, population=50_000, images=5000):
    """Return the scores of validation images, drawn from a population with these accuracies."""
    everyone = list(epochs_of(accuracies, population, generator))
    chosen = torch.randperm(population, generator=generator)[:images]
    return [scores[chosen] for scores in everyone]


def test_the_luckiest_of_noisy_validations_is_often_an_early_epoch():
    generator, old, new = seeded(), [], []
    for _ in range(100):
        scores = sampled(RISING, generator)
        old.append(luckiest(scores))
        new.append(selected(scores))
    early = sum(epoch < 5 for epoch in old)
    assert early >= 40  # the old rule fails as often as not
    assert sum(epoch < 5 for epoch in new) <= 2


def test_a_network_that_grows_worse_is_not_kept():
    generator = seeded(1)
    falling = [0.40, 0.43, 0.44, 0.42, 0.40]  # as step schedules do that overfit
    kept = [selected(sampled(falling, generator)) for _ in range(100)]
    assert kept.count(3) >= 90
    assert set(kept) <= {2, 3, 4}


def test_small_losses_do_not_add_up():
    """Each epoch is a little worse than the one before: all are compared with the best."""
    generator = seeded(2)
    sinking = [0.44 - 0.004 * number for number in range(20)]
    kept = [selected(sampled(sinking, generator)) for _ in range(20)]
    assert max(kept) <= 8


def test_many_epochs_do_not_make_the_luckiest_stand_out():
    generator = seeded(3)
    kept = [selected(sampled([0.44] * 40, generator, population=10_000)) for _ in range(50)]
    assert sum(epoch == 40 for epoch in kept) >= 47


def after(epochs, best, last):
    """Return whether the last epoch is kept, of so many of which the others score as the best."""
    selection = Selection(epochs=epochs, averaged=True)
    for number in range(1, epochs):
        selection.consider(number, best, selecting=True)
    return selection.consider(epochs, last, selecting=True)


def test_the_more_epochs_the_more_the_best_must_lead():
    """28 images lost and 12 gained have p = 0.017: below 5 % / 2, not below 5 % / 10."""
    best, last = torch.ones(1000), torch.ones(1000)
    best[:12], last[12:40] = 0.0, 0.0
    assert not after(2, best, last)
    assert after(10, best, last)


def test_a_ruined_network_is_refused_after_any_number_of_epochs():
    """Scores of a noisy network are shares of draws: their p-value is never below 1 in 10,000."""
    generator = seeded(6)
    best, last = (
        (torch.rand(500, 5, generator=generator) < share).double().mean(dim=1)
        for share in (0.455, 0.015)
    )
    assert not after(2, best, last)
    assert not after(600, best, last)


def test_what_is_kept_is_remembered():
    scores = sampled([0.40, 0.44, 0.44, 0.36], seeded(4))
    whole, before = (Selection(epochs=4, averaged=False) for _ in range(2))
    for number, score in enumerate(scores, 1):
        whole.consider(number, score, selecting=True)
        before.consider(number, score, selecting=True)
        after = Selection(epochs=4, averaged=False)
        after.restore(before.state)
        before = after
    assert after.kept == whole.kept
    assert whole.kept.epoch == 3
    assert whole.kept.why


QUICK = replace(
    load_recipe("paper", epochs=4, batch_size=50, epsilon=0.1, step_size=0.05, steps=1),
    milestones=(0.5,),
)


@pytest.fixture
def lucky_first(monkeypatch):
    """Let validation find the first epoch slightly better than those after it."""

    def found(_model, images, _recipe, *, epoch, robust, **_):
        scores = torch.arange(len(images)) < (len(images) // 2 + (2 if epoch == 0 else 0))
        return Validation(scores.double(), scores.double() if robust else None)

    monkeypatch.setattr(trainer, "validate", found)


def kept_rows(folder):
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    return {int(row["epoch"]): row["kept"] for row in rows if row["kept"]}


@pytest.mark.usefixtures("lucky_first")
class TestRuns:
    def run(self, tmp_path, **changes):
        config = RunConfig("resnet8", "digits", replace(QUICK, **changes), limit=300)
        return train(config, tmp_path / "run")

    def test_steps_of_the_rate_select(self, tmp_path):
        run = self.run(tmp_path)
        ((epoch, why),) = kept_rows(run.folder).items()
        assert epoch == 4
        assert why == "50.0 %, which cannot be told apart from the 56.7 % of epoch 1, and later"
        assert run.kept_epoch()["epoch"] == 4

    def test_a_rate_that_ends_at_zero_keeps_the_last(self, tmp_path, capsys):
        run = self.run(tmp_path, schedule="one_cycle", ema=0.5)
        assert kept_rows(run.folder) == {4: "last averaged weights: the rate ends at zero"}
        best, last = (run.load(name).state_dict() for name in ("best", "last"))
        assert all(torch.equal(best[name], last[name]) for name in best)
        assert main(["runs", str(tmp_path)]) == 0
        assert "epoch 4" in capsys.readouterr().out

    def test_a_run_in_the_midst_of_its_cycle_has_no_best_network(self, tmp_path):
        run = self.run(tmp_path, schedule="one_cycle")
        (run.folder / "best.safetensors").unlink()
        with pytest.raises(FileNotFoundError, match="not trained to the end"):
            run.load("best")


def test_validation_that_selects_takes_all_images():
    from enresnet.data import load_data
    from enresnet.models import create_model
    from enresnet.training import Trainer

    data = load_data("digits", limit=300)
    for schedule, images in (("step", len(data.validation)), ("one_cycle", 7)):
        recipe = replace(QUICK, epochs=1, schedule=schedule, validation_images=7)
        training = Trainer(create_model("resnet8", in_channels=1), data, recipe)
        list(training.epochs())
        assert len(training.validation.scores) == images
        assert training.selecting == (schedule == "step")
    with pytest.raises(ValueError, match="validation_images is for schedule=one_cycle"):
        load_recipe("paper", validation_images=10)


def test_a_noisy_network_is_validated_over_several_draws():
    from enresnet.data import load_data
    from enresnet.models import create_model
    from enresnet.training import Trainer

    data = load_data("digits", limit=300)
    model = create_model("en1_resnet8", in_channels=1, noise=1.0, generator=seeded())
    training = Trainer(model, data, replace(QUICK, epochs=1))
    list(training.epochs())
    shares = 5 * training.validation.scores
    assert torch.allclose(shares, shares.round(), atol=1e-5)
    assert ((shares > 0.5) & (shares < 4.5)).any()


def test_runs_of_before_tell_the_highest(tmp_path):
    run = Run.create(tmp_path / "old", RunConfig("resnet8", "digits", QUICK))
    lines = ["epoch,validation_natural,validation_robust,weights,note"]
    lines += ["1,0.5,0.30,,", "2,0.6,0.42,,", "3,0.6,0.41,,"]
    (run.folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert run.kept_epoch()["epoch"] == 2
    assert run.kept_epoch()["kept"] == "highest validation accuracy, 42.0 %"


def test_validation_leaves_the_model_as_it_was():
    """Its mode, module by module, where its noise stands, and torch's own generator."""
    data = load_data("digits", limit=100)
    model = create_model("en2_resnet8", in_channels=1, generator=seeded())
    for number, module in enumerate(noise_modules(model)):  # several streams, to be told apart
        module.stream = NoiseStream(seeded(number))
    model.train()
    model.members[0].eval()

    def found():
        modes = [module.training for module in model.modules()]
        streams = [module.stream for module in noise_modules(model)]
        states = [stream.source.get_state().tolist() for stream in streams]
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        return modes, streams, states, torch.get_rng_state().tolist(), weights

    before = found()
    options = {"engine": Engine.for_model(model), "seed": 0, "epoch": 0, "robust": True}
    first = validate(model, data.validation, QUICK, **options)
    after = found()
    assert before[:-1] == after[:-1]
    torch.testing.assert_close(before[-1], after[-1], rtol=0, atol=0)
    again = validate(model, data.validation, QUICK, **options)
    assert torch.equal(first.scores, again.scores)
    labels = torch.full_like(data.validation.labels, 11)
    wrong = replace(data.validation, classes=tuple("abcdefghijkl"), labels=labels)
    with pytest.raises(ValueError, match="the model tells 10 classes apart"):
        validate(model, wrong, QUICK, **options)
    assert found()[:-1] == before[:-1]
