"""Models that hide their gradient are caught; those that do not are left in peace."""

import json
import types

import pytest
import torch
from torch import nn

from enresnet.cli import main
from enresnet.data import load_data
from enresnet.evaluation import SharedNoise, paired_difference
from enresnet.evaluation.masking.diagnosis import diagnose
from enresnet.evaluation.masking.significance import worst_is_chance
from enresnet.evaluation.runner import Runner
from enresnet.models import create_model
from enresnet.training import Trainer, load_recipe
from problems import seeded

EPSILON = 0.15


@pytest.fixture(scope="module")
def data():
    return load_data("digits")


def network(data, name, **options):
    model = create_model(name, in_channels=1, generator=seeded())
    recipe = load_recipe(options.pop("recipe", "fast"), batch_size=64, **options)
    list(Trainer(model, data, recipe).epochs())
    return model.eval()


@pytest.fixture(scope="module")
def honest(data):
    return network(data, "en1_resnet8", epochs=5, epsilon=EPSILON)


@pytest.fixture(scope="module")
def natural(data):
    return network(data, "resnet8", recipe="natural", epochs=4)


def examined(model, data, **options):
    options = {"epsilon": EPSILON, "limit": 96, "draws": 5, "queries": 150, **options}
    return diagnose(model, data.test, **options)


def warned(result):
    return {check.name for check in result.warnings}


class Quantised(nn.Module):
    """Rounds its input to a few levels: no gradient comes back."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner((images * 8).round() / 8)


class Saturated(nn.Module):
    """Answers with probabilities instead of logits, sharpened until they are 0 and 1."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return (1000 * self.inner(images)).softmax(dim=1)


class Drowned(nn.Module):
    """A vote over noisy copies, whose gradient is that of noise far larger than the signal.

    The noise is that of the images alone, however often the model was asked before.
    """

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        with torch.no_grad():
            plain = self.inner(images)
        generator = seeded(int(images.detach().double().sum() * 1000))
        noise = 1e4 * torch.randn(images.shape, generator=generator)
        return plain + (noise * (images - images.detach())).flatten(1).sum(dim=1, keepdim=True) * (
            torch.randn(1, plain.shape[1], generator=generator)
        )


def test_what_was_measured_is_not_measured_again(natural, data, tmp_path, monkeypatch):
    """Killed halfway, the same call goes on; its result is that of one that was not."""
    options = {
        "limit": 16,
        "queries": 20,
        "sources": {"itself": natural},
        "naturally_trained": natural,
    }
    whole = examined(natural, data, **options)
    compute, done = Runner._compute, []

    def counted(self, unit, *rest):
        if len(done) == 20:
            raise KeyboardInterrupt
        done.append(unit)
        return compute(self, unit, *rest)

    monkeypatch.setattr(Runner, "_compute", counted)
    with pytest.raises(KeyboardInterrupt):
        examined(natural, data, journal=tmp_path / "j", **options)
    monkeypatch.setattr(Runner, "_compute", compute)
    assert examined(natural, data, journal=tmp_path / "j", **options) == whole
    monkeypatch.setattr(Runner, "_compute", counted)  # which would stop at once
    assert examined(natural, data, journal=tmp_path / "j", **options) == whole


def test_an_honest_model_passes(honest, natural, data):
    result = examined(honest, data, eot=5, sources={"natural": natural}, naturally_trained=natural)
    assert not result.warnings, result.warnings
    assert {check.verdict for check in result.checks} == {"pass"}
    assert len(result.checks) == 11
    accuracies = [point.accuracy for point in result.against_epsilon]
    assert accuracies == sorted(accuracies, reverse=True)
    assert result.against_epsilon[-1].at == 1
    assert result.against_epsilon[-1].accuracy == 0
    assert [point.at for point in result.against_steps] == [1, 2, 5, 10, 20, 50, 100]


def test_a_quantised_input_is_caught(natural, data):
    result = examined(Quantised(natural), data, sources={"inner": natural})
    found = warned(result)
    assert "there is a gradient" in found
    assert "seeing the model beats not seeing it" in found
    assert "seeing the model beats images made against inner" in found
    assert "accuracy goes to 0 as epsilon grows" in found
    assert "random search finds nothing more" in found


def test_a_saturated_softmax_is_caught(natural, data):
    found = warned(examined(Saturated(natural), data))
    assert "there is a gradient" in found or "accuracy goes to 0 as epsilon grows" in found
    assert "seeing the model beats not seeing it" in found


def test_noise_too_large_is_caught(natural, data):
    found = warned(examined(Drowned(natural), data, eot=5))
    assert "loss rises along the gradient" in found
    assert "seeing the model beats not seeing it" in found


def test_a_natural_network_that_stands_is_reported(honest, data):
    result = examined(honest, data, eot=5, naturally_trained=honest, limit=64)
    assert "without adversarial training it falls" in warned(result)
    skipped = [check.name for check in result.checks if check.verdict == "skipped"]
    assert skipped == ["seeing the model beats images made against another"]


PAIRED = {
    "many steps beat one",
    "seeing the model beats not seeing it",
    "seeing the model beats images made against inner",
    "more steps stop helping",
    "more restarts stop helping",
}


def undecided(result):
    return {check.name: check.reason for check in result.undecided}


def test_so_few_images_decide_nothing(natural, data):
    """Five images cannot tell an attack that breaks all from one that breaks none; six can."""
    right = (
        natural(data.test.batch(slice(50))[0]).argmax(dim=1) == data.test.labels[:50]
    ).nonzero()
    chosen = data.test.subset(right.flatten()[:6])
    options = {
        "epsilon": EPSILON,
        "draws": 1,
        "queries": 50,
        "eot": 1,
        "sources": {"inner": natural},
    }
    few = diagnose(Quantised(natural), chosen.first(5), **options)
    assert undecided(few).keys() == PAIRED
    assert all("5 images, 5 right when clean" in why for why in undecided(few).values())
    shown = {row["check"]: row["figure"] for row in few.table()}
    assert all(why in shown[name] for name, why in undecided(few).items())
    enough = diagnose(Quantised(natural), chosen, **options)
    assert not undecided(enough)


def test_few_images_left_decide_nothing():
    """What counts is how many images the attack has left, unless it has left none to speak of."""
    clean = torch.ones(60)
    left = {number: (torch.arange(60) < number).float() for number in (0, 5, 6)}

    def why(number):
        return worst_is_chance(scored(clean), scored(left[number]), "IFGSM-20", 0.01)

    assert why(0) == why(6) == ""
    assert why(5).startswith("IFGSM-20 leaves 5 of 60 images")
    for number in (5, 6):  # which is what the test itself says
        _, low, _ = paired_difference(left[number], torch.zeros(60))
        assert (low > 0) == (number == 6)


def test_a_model_that_knows_nothing_has_nothing_to_lose(data):
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images, labels = data.test.batch(slice(40))
    found = wrong(images).argmax(dim=1)
    result = diagnose(wrong, (images[found != labels], labels[found != labels]), queries=2)
    assert "accuracy goes to 0 as epsilon grows" in undecided(result)
    assert "random search finds nothing more" in undecided(result)


def scored(scores):
    return types.SimpleNamespace(scores=scores, shared=SharedNoise())


MODULE = """
import torch
from enresnet.models import load_model
inner = load_model("inner.safetensors")

def quantised(images):
    return inner((images * 8).round() / 8)
"""


def test_the_command(natural, tmp_path, monkeypatch, capsys):
    from enresnet.models import save_model

    monkeypatch.chdir(tmp_path)
    save_model(natural, "inner.safetensors")
    (tmp_path / "hidden_gradient.py").write_text(MODULE)
    words = [
        "--data",
        "digits",
        "--epsilon",
        "0.15",
        "--limit",
        "48",
        "--queries",
        "50",
        "--draws",
        "2",
    ]
    arguments = ["diagnose", "hidden_gradient:quantised", *words, "--eot", "1"]
    assert main([*arguments, "--oracle", "inner.safetensors", "--json", "d.json"]) == 1
    out = capsys.readouterr().out
    assert "warning: there is a gradient?" in out
    assert (tmp_path / "evaluations/hidden_gradient.quantised/diagnosis.png").read_bytes()[
        1:4
    ] == b"PNG"
    values = json.loads((tmp_path / "d.json").read_text())
    assert {"checks", "against_epsilon", "against_steps", "epsilon"} <= set(values)
    assert main(["diagnose", "nowhere:at_all", *words]) == 2
    assert "no module nowhere" in capsys.readouterr().err


def test_undecided_is_no_failure(natural, tmp_path, monkeypatch, capsys):
    from enresnet.models import save_model

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    save_model(natural, "natural.safetensors")
    words = "--data digits --epsilon 0.15 --limit 4 --queries 20 --json d.json"
    assert main(["diagnose", "natural.safetensors", *words.split()]) == 0
    out = capsys.readouterr().out
    assert "undecided" in out
    assert "4 images, 4 right when clean" in " ".join(out.split())
    checks = json.loads((tmp_path / "d.json").read_text())["checks"]
    assert {c["name"] for c in checks if c["verdict"] == "undecided"} <= PAIRED
    assert all(bool(c["reason"]) == (c["verdict"] == "undecided") for c in checks)


def test_a_model_without_a_gradient_is_told_so(tmp_path, capsys, monkeypatch):
    (tmp_path / "hard.py").write_text(
        "import torch\n\ndef model(images):\n    with torch.no_grad():\n"
        "        x = images.flatten(1)[:, :20].reshape(-1, 10, 2).sum(2)\n    return x.round()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    target = tmp_path / "diagnosis.json"
    arguments = ["--data", "digits", "--limit", "20", "--queries", "5", "--json", str(target)]
    assert main(["diagnose", "hard:model", *arguments]) == 1
    assert "there is a gradient? none; Square with 5 queries leaves" in capsys.readouterr().out
    assert [c["name"] for c in json.loads(target.read_text())["checks"]] == ["there is a gradient"]
