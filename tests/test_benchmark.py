"""The benchmarks run, tiny; no time is asserted."""

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
