"""The benchmarks run, tiny; no time is asserted."""

import copy
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from problems import seeded

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import speed.attacks
from speed.__main__ import _get, _holds, main
from speed.shares import kind_of, shares_of


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch.compile's own
def test_every_benchmark_runs(tmp_path, capsys, monkeypatch):
    target, picture = tmp_path / "figures.json", tmp_path / "growth.png"
    images = torch.rand(4, 3, 32, 32, generator=seeded())
    monkeypatch.setattr(speed.attacks, "test_images", lambda n: (images[:n], torch.arange(4)[:n]))
    assert main(["--tiny", "--json", str(target), "--picture", str(picture)]) == 0
    shown = capsys.readouterr().out
    figures = json.loads(target.read_text())
    for key in speed.BENCHMARKS:
        if f"{key}: skipped" in shown:
            assert re.search(
                rf"{re.escape(key)}: skipped, .*(is not installed|is not in assets)", shown
            )
            continue
        figure = _get(figures, key)
        assert figure["median"] > 0
        assert figure["spread"][0] <= figure["median"] <= figure["spread"][1]
        assert figure["repeats"] >= 1
        assert figure["what"]
    assert figures["machine"]["threads"] == 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [row["size"] for row in figures["growth"]["tables"]["members"]] == [1, 2]


def test_bad_input(capsys):
    assert main(["--only", "nosuch"]) == 2
    assert "only must be one of" in capsys.readouterr().err
    assert main(["--only", "cw_vs_art", "--picture", "growth.png"]) == 2
    assert "add growth to --only" in capsys.readouterr().err
    assert main(["--json", "nowhere/at/all.json"]) == 2
    assert main(["--tiny", "--repeats", "3"]) == 2
    assert "leave out --repeats" in capsys.readouterr().err


@pytest.fixture
def one_benchmark(monkeypatch):
    """A benchmark of networks that are not ours that measures nothing."""
    figure = {"what": "nothing", "repeats": 1, "their_robust_accuracy": 40.0}
    figure |= {"our_robust_accuracy": 39.0, "at_least": 2.0, "median": 3.0, "spread": [2.5, 3.5]}
    key = "foreign.plain_cnn.square_vs_autoattack"
    monkeypatch.setitem(speed.BENCHMARKS, key, lambda _: dict(figure))
    return key


def test_other_figures_of_a_file_stay(one_benchmark, tmp_path, capsys):
    target = tmp_path / "figures.json"
    command = ["--only", one_benchmark, "--json", str(target)]
    assert main(command) == 0
    figures = json.loads(target.read_text())
    figures["foreign"]["plain_cnn"]["square_vs_autoattack"]["median"] = 1.0
    figures["growth"] = {"median": 1.0}
    figures["foreign"]["timm_resnet18"] = copy.deepcopy(figures["foreign"]["plain_cnn"])
    target.write_text(json.dumps(figures))
    capsys.readouterr()
    assert main(command) == 0
    row = "| square / autoattack | 3.00 (2.50-3.50) | 2 |  |  |  | 40.0 | 39.0 |  |"
    assert f"| plain_cnn {row}" in capsys.readouterr().out
    figures["foreign"]["plain_cnn"]["square_vs_autoattack"]["median"] = 3.0
    assert json.loads(target.read_text()) == figures


def test_figures_of_another_machine_are_not_mixed(one_benchmark, tmp_path, capsys):
    target = tmp_path / "figures.json"
    target.write_text('{"machine": {"processor": "another"}}')
    assert main(["--only", one_benchmark, "--json", str(target)]) == 2
    assert "figures of another machine" in capsys.readouterr().err
    assert "another" in target.read_text()


def test_a_missed_bound_is_seen():
    good = {"median": 3.0, "at_least": 2.5}
    assert _holds(good)
    assert not _holds({**good, "at_least": 3.1})
    assert not _holds({"median": 1.2, "at_most": 1.1})
    assert not _holds({**good, "accuracy_holds": False})
    assert not _holds({**good, "steepest_holds": False})


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("mkldnn::_convolution_pointwise", "convolutions"),
        ("aten::convolution_backward", "convolutions"),
        ("aten::addmm", "matrix products"),
        ("enresnet::inject_noise_backward", "noise"),
        ("aten::threshold_backward", "activations"),
        ("aten::copy_", "copies"),
        ("aten::native_batch_norm", "BatchNorm"),
        ("_ConvolvedBackward", "all else"),
    ],
)
def test_kinds_of_operation(operation, kind):
    assert kind_of(operation) == kind


def test_the_time_is_shared_among_kinds():
    large = torch.rand(512, 512)
    shares = shares_of(lambda: [torch.mm(large, large) for _ in range(20)])
    assert next(iter(shares)) == "matrix products"
    assert 0.9 < sum(shares.values()) <= 1 + 1e-9
