"""A network evaluated with another noise, another average or more paths than it was stored with."""

import json
from pathlib import Path

import pytest
import torch

from enresnet.cli import main
from enresnet.models import create_model, load_model, save_model, set_noise
from problems import seeded

SMALL = ["--data", "digits", "--limit", "40", "--attacks", "fgsm", "--draws", "3"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, file in (("en2_resnet8", "en.safetensors"), ("resnet8", "plain.safetensors")):
        save_model(create_model(name, in_channels=1, generator=seeded()).eval(), file)


def evaluated(*words, file="en.safetensors"):
    assert main(["evaluate", file, *SMALL, "--out", "out", *words]) == 0
    return json.loads(Path("out/evaluation.json").read_text())


def test_each_variant_has_a_section_of_its_own(capsys):
    assert set(evaluated()) == {"best"}
    found = evaluated("--noise", "0")
    assert set(found) == {"best", "best, with noise 0"}
    assert found["best, with noise 0"]["natural"]["deterministic"]
    assert not found["best"]["natural"]["deterministic"]
    capsys.readouterr()
    found = evaluated("--average", "probabilities", "--paths", "2")
    assert "best, with average of probabilities, 2 paths" in found
    assert "with average of probabilities, 2 paths on digits" in capsys.readouterr().out


def test_the_noise_is_that_asked_for():
    model = load_model("en.safetensors")
    set_noise(model, 0.0)
    from enresnet import load_data

    images, labels = load_data("digits").test.first(40).batch(slice(None))
    with torch.no_grad():
        right = float((model(images).argmax(dim=1) == labels).float().mean())
    assert evaluated("--noise", "0")["best, with noise 0"]["natural"]["accuracy"] == right
    plain = evaluated("--noise", "0.3", file="plain.safetensors")
    assert not plain["best, with noise 0.3"]["natural"]["deterministic"]


def test_two_sections_of_one_model_are_compared(capsys):
    evaluated()
    evaluated("--noise", "0")
    capsys.readouterr()
    words = ["compare", "out", "--against-section", "best, with noise 0", "--json", "c.json"]
    assert main(words) == 0
    assert "out (best) less out (best, with noise 0)" in capsys.readouterr().out
    compared = json.loads(Path("c.json").read_text())
    assert compared["against_section"] == "best, with noise 0"
    assert set(compared["compared"]) == {"natural", "fgsm"}
    assert main(["compare", "out", "--against-section", "best, with noise 7"]) == 2
    assert "has no evaluation of 'best, with noise 7'" in capsys.readouterr().err


def test_what_cannot_be_varied(capsys):
    Path("mine_varied.py").write_text("def model(x):\n    return x.flatten(1)[:, :10]\n")
    assert main(["evaluate", "mine_varied:model", *SMALL, "--noise", "0"]) == 2
    assert "are for our networks" in capsys.readouterr().err
    assert main(["evaluate", "en.safetensors", *SMALL, "--paths", "0"]) == 2
    assert "paths must be at least 1" in capsys.readouterr().err
    assert main(["evaluate", "en.safetensors", *SMALL, "--noise", "-1"]) == 2
    assert "noise must be finite and at least 0" in capsys.readouterr().err
