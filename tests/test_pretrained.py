"""Weights that come with the package: found by name, checked, and as good as their cards say."""

import json
import shutil

import pytest
import torch

import enresnet
from enresnet.cli import main
from enresnet.data import load_data
from enresnet.models import canonical_name, find_pretrained, list_pretrained, pretrained
from enresnet.models.registry import same_architecture
from enresnet.report.model_card import model_card

CARDS = list_pretrained()


def test_all_of_it_is_small():
    total = sum(path.stat().st_size for path in pretrained.FOLDER.rglob("*") if path.is_file())
    assert CARDS
    assert total < 30e6


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_tells_the_truth(card):
    network, _, trained = card.name.partition("@")
    assert canonical_name(network) == network
    assert card.path.parent.name == trained
    model = enresnet.load_model(card.name)
    assert same_architecture(model, network)
    assert not model.training
    assert sum(parameter.numel() for parameter in model.parameters()) == card.parameters
    logits = model(torch.rand(2, *card.image_shape))
    assert logits.shape == (2, len(card.classes))
    assert card.path.with_suffix(".md").read_text() == model_card(card)
    assert card.commit
    assert not card.commit.endswith("+")
    assert card.recipe["epsilon"] > 0
    clean = card.accuracy("clean")
    assert clean.interval[0] < clean.accuracy < clean.interval[1]
    assert {"fgsm", "ifgsm20"} <= {value.images for value in card.measured}


def test_the_digits_are_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", "en3_resnet8@digits", "--attacks", "fgsm", "--json", "found.json"]
    assert main(words) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    card = find_pretrained("En3ResNet8@digits")
    for name, value in (("clean", found["natural"]), ("fgsm", found["robust"]["fgsm"])):
        # The same images, seed and weights, on whatever machine.
        assert value["accuracy"] == pytest.approx(card.accuracy(name).accuracy, abs=0.005)
    assert (tmp_path / "evaluations" / "en3_resnet8@digits" / "evaluation.json").is_file()
    assert "en3_resnet8@digits on digits" in capsys.readouterr().out


def test_they_are_listed(capsys, tmp_path):
    assert main(["models", "--json", str(tmp_path / "models.json")]) == 0
    shown = capsys.readouterr().out
    listed = json.loads((tmp_path / "models.json").read_text())["pretrained"]
    assert [card["name"] for card in listed] == [card.name for card in CARDS]
    assert "en3_resnet8@digits" in shown
    assert "resnet8@digits" in [card.name for card in enresnet.list_pretrained()]


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    folder = tmp_path / "weights"
    shutil.copytree(pretrained.FOLDER / "digits", folder / "digits")
    monkeypatch.setattr(pretrained, "FOLDER", folder)
    return folder


def test_a_damaged_file_is_refused(own_folder):
    path = own_folder / "digits" / "resnet8.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: its SHA-256 is"):
        enresnet.load_model("resnet8@digits")
    path.unlink()
    with pytest.raises(ValueError, match="is missing: install the package again"):
        enresnet.load_model("resnet8@digits")


def test_a_damaged_card_is_named(own_folder, capsys):
    card = own_folder / "digits" / "resnet8.json"
    for content in ("{", "[]", '{"name": "resnet8@digits"}'):
        card.write_text(content)
        assert main(["models"]) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert "resnet8.json is damaged" in shown
        assert "install the package again" in shown


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet8@digit", "no weights named 'resnet8@digit'.*Did you mean resnet8@digits"),
        ("resnet14@digits", "no weights named"),
        ("resnet9@digits", "unknown model 'resnet9'"),
        ("@digits", "unknown model ''"),
        ("resnet8@../digits", "no weights named"),
    ],
)
def test_unknown_names(name, words, capsys):
    with pytest.raises(ValueError, match=words):
        enresnet.load_model(name)
    assert main(["evaluate", name]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_student_may_have_a_teacher_from_the_package():
    from enresnet.training import Engine
    from enresnet.training.teacher import teacher_answers

    data = load_data("digits", limit=100)
    answers = teacher_answers(
        "en3_resnet8@digits", data.train, mirror=False, engine=Engine(), seed=0
    )
    assert (answers.argmax(dim=1) == data.train.labels).float().mean() > 0.95
