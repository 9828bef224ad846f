"""One name is one attack: the model decides over how many draws a gradient is averaged."""

import json

import pytest
import torch
from torch import nn

from enresnet.attacks import (
    APGD,
    FGSM,
    FMN,
    IFGSM,
    PGD,
    CarliniWagner,
    RandomNoise,
    Square,
    Strongest,
    attack_at,
    create_attack,
    list_attacks,
)
from enresnet.attacks.batch import Batch
from enresnet.cli import main
from enresnet.evaluation import evaluate, transfer_matrix
from enresnet.evaluation.masking.diagnosis import diagnose
from enresnet.models import create_model, save_model
from enresnet.training.objectives import OBJECTIVES
from problems import SmallNet, random_problem, seeded
from trainings import objective

IMAGES, LABELS = random_problem((6, 3, 8, 8))


def network(name):
    return create_model(name, num_classes=4, generator=seeded()).eval()


class Noisy(nn.Module):
    """Another's model, whose noise we know nothing of."""

    def __init__(self):
        super().__init__()
        self.net, self.generator = SmallNet(), seeded()

    def forward(self, images):
        logits = self.net(images)
        return logits + 0.1 * torch.randn(logits.shape, generator=self.generator)


MODELS = [
    (network("resnet8"), 1),
    (network("en1_resnet8"), 5),
    (SmallNet().eval(), 1),
    (SmallNet(noise=0.3).eval(), 5),
    (Noisy().eval(), 5),
]


@pytest.mark.parametrize(("model", "expected"), MODELS)
def test_the_model_decides(model, expected):
    attack = create_attack("ifgsm3")
    assert attack.eot is None
    assert attack.decided(model, IMAGES).eot == expected
    value = evaluate(model, (IMAGES, LABELS), [attack], draws=2, seed=0).robust["ifgsm3"]
    assert value.settings["eot"] == expected
    assert f"eot={expected}" in value.attack
    assert value.gradients == 3 * expected
    assert attack.run(model, IMAGES, LABELS).gradients == 3 * expected * len(IMAGES)
    assert attack.eot is None  # and stays open for the next model


def test_the_images_are_those_of_the_number_that_was_used():
    for name, eot in (("resnet8", 1), ("en1_resnet8", 5)):
        open_one, told = (
            attack(network(name), IMAGES, LABELS)
            for attack in (create_attack("ifgsm3"), IFGSM(steps=3, eot=eot))
        )
        assert torch.equal(open_one, told)


CLASSES = [FGSM, IFGSM, PGD, APGD, CarliniWagner, Square, FMN, RandomNoise, Strongest]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_means_what_its_name_means(kind):
    made = kind()
    assert made.settings() == create_attack(made.name).settings()
    for model, expected in MODELS[:2]:
        assert made.decided(model, IMAGES).eot == expected
    assert made.eot is None


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_the_attacks_of_training_draw_once(name, monkeypatch):
    asked = []
    monkeypatch.setattr("enresnet.attacks.base.usual_eot", lambda *_: asked.append(1) or 5)
    batches = []
    monkeypatch.setattr(
        "enresnet.attacks.base.Batch", lambda **given: batches.append(given) or Batch(**given)
    )
    objective(name).craft(network("en1_resnet8"), *random_problem((6, 3, 8, 8)))
    assert not asked
    assert {given["eot"] for given in batches} <= {1}
    assert (name == "natural") == (not batches)


def test_networks_that_can_be_followed_are_not_asked(monkeypatch):
    calls = []
    monkeypatch.setattr("enresnet.attacks.determinism._answers_alike", lambda *_: calls.append(1))
    assert IFGSM(steps=3).decided(SmallNet().eval(), IMAGES).eot == 1
    assert not calls


def test_our_networks_are_not_asked(monkeypatch):
    model, calls = network("en1_resnet8"), []
    monkeypatch.setattr("enresnet.attacks.determinism._answers_alike", lambda *_: calls.append(1))
    assert create_attack("fgsm").decided(model, IMAGES).eot == 5
    assert not calls
    create_attack("fgsm").decided(lambda x: model(x), IMAGES)
    assert calls


def test_a_number_that_is_given_stays():
    noisy = network("en1_resnet8")
    attack = create_attack("ifgsm2", eot=3)
    assert attack.decided(noisy, IMAGES) is attack
    assert attack.run(noisy, IMAGES, LABELS).gradients == 2 * 3 * len(IMAGES)
    assert attack_at("ifgsm20", 0.1).eot is None
    for name in list_attacks():
        assert name.startswith("autoattack") or create_attack(name).eot is None


def test_each_source_decides_for_itself():
    models = {"plain": network("resnet8"), "noisy": network("en1_resnet8")}
    attack = create_attack("fgsm")
    matrix = transfer_matrix(models, models, (IMAGES, LABELS), [attack], draws=2, seed=0)
    for source, eot in (("plain", 1), ("noisy", 5)):
        for target in models:
            assert matrix.accuracy(source, target, "fgsm").settings["eot"] == eot


def test_diagnose_leaves_it_to_the_model():
    options = {"limit": 4, "draws": 1, "queries": 2, "progress": False}
    for model, expected in MODELS[:2]:
        assert diagnose(model, (IMAGES, LABELS), **options).eot == expected


def test_the_command_line_means_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = create_model("en1_resnet8", in_channels=1, generator=seeded()).eval()
    save_model(model, "noisy.safetensors")
    words = ["--data", "digits", "--limit", "20", "--draws", "2", "--json", "found.json"]
    words += ["--attacks", "ifgsm2"]
    assert main(["evaluate", "noisy.safetensors", *words]) == 0
    command = json.loads((tmp_path / "found.json").read_text())["robust"]["ifgsm2"]
    assert command["settings"]["eot"] == 5
    assert main(["transfer", "--matrix", "noisy.safetensors", *words]) == 0
    (cell,) = json.loads((tmp_path / "found.json").read_text())["robust"]["ifgsm2"]
    assert cell["settings"] == command["settings"]
