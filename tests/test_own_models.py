"""Models of the user's own, as module.path:name: what goes wrong there is told by their line."""

from pathlib import Path

import pytest

from enresnet.cli import main

BUILDING = """import torch
from enresnet.models import create_model


def ours():
    return create_model("resnet21")


def torchs():
    return torch.nn.Linear("a", 3)


def own():
    return helper({})


def helper(values):
    return values["width"]
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ours", ["ValueError: unknown model 'resnet21'", "line 6", 'create_model("resnet21")']),
        ("torchs", ["TypeError", "line 10", 'torch.nn.Linear("a", 3)']),
        ("own", ["KeyError: 'width'", "line 18", 'return values["width"]']),
    ],
)
def test_an_error_while_it_is_built(name, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("building.py").write_text(BUILDING)
    monkeypatch.delitem(__import__("sys").modules, "building", raising=False)
    assert main(["evaluate", f"building:{name}", "--data", "digits"]) == 2
    error = capsys.readouterr().err
    assert f"building:{name}() failed" in error
    assert "building.py, line" in error
    for word in words:
        assert word in error
    assert "Traceback" not in error
    assert "subjects.py" not in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ny = (1 +\n", "SyntaxError"),
        ("import no_such_module_at_all\n", "No module named 'no_such_module_at_all'"),
        ("x = 1\ny = x / 0\n", "line 2\n    y = x / 0"),
    ],
)
def test_an_error_while_it_is_imported(text, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = f"broken_{abs(hash(text))}"
    Path(f"{name}.py").write_text(text)
    assert main(["evaluate", f"{name}:model", "--data", "digits"]) == 2
    error = capsys.readouterr().err
    assert f"{name} cannot be imported" in error
    assert f"{name}.py, line" in error
    assert words in error


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18", "en2_resnet20"])
def test_a_network_without_weights_is_no_model_to_evaluate(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", name, "--data", "digits"]) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert f"{name} has no trained weights; train it first" in words
    assert not list(tmp_path.iterdir())
