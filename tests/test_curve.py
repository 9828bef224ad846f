"""Accuracy against epsilon: from one run or from many, in Python and as a command."""

import json

import pytest
import torch

from enresnet.attacks import FMN
from enresnet.cli import main
from enresnet.data import load_data
from enresnet.evaluation import accuracy_curve, evaluate
from enresnet.evaluation.runner import Runner
from enresnet.models import load_model
from enresnet.report import curve_figure
from problems import Noisy

RADII = (0.0, 0.1, 0.2, 0.3)
COMMAND = "evaluate resnet8@digits --limit 24 --batch-size 8 --out out".split()


@pytest.fixture(scope="module")
def digits():
    return load_model("resnet8@digits").eval(), load_data("digits").test.first(40)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("norm", ["", "_l2"])
def test_it_falls_from_the_clean_accuracy(norm, digits):
    curve = accuracy_curve(*digits, f"fmn30{norm}", seed=0)
    (line,) = curve.lines.values()
    heights = [point.accuracy for point in line]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == evaluate(*digits, seed=0).natural.accuracy
    assert len(line) == 11
    assert line[-1].epsilon == (1.0 if norm else 16 * 2 / 510)
    assert all(point.low <= point.accuracy <= point.high for point in line)


def test_one_run_says_what_single_radii_say(digits):
    curve = accuracy_curve(*digits, ["fmn100", "ifgsm20"], epsilons=RADII, seed=0)
    one, many = curve.lines.values()
    alone = evaluate(*digits, "ifgsm20", epsilon=0.2, seed=0).robust["ifgsm20"]
    assert many[2].accuracy == alone.accuracy
    assert (many[2].low, many[2].high) == alone.interval
    assert one[0] == many[0]
    for fmn, ifgsm in zip(one, many, strict=True):
        assert fmn.accuracy <= ifgsm.accuracy + 0.05
    sizes = FMN()(digits[0], *digits[1].batch(slice(0, 40))) - digits[1].batch(slice(0, 40))[0]
    lost = (sizes.abs().flatten(1).amax(dim=1) <= 0.2).double().mean()
    assert one[2].accuracy == pytest.approx(1 - lost.item())


def test_it_shows_itself(digits):
    curve = accuracy_curve(*digits, ["fmn10", "fgsm"], epsilons=RADII, seed=0)
    assert len(curve.rows()) == 8
    assert set(curve.rows()[0]) == {"attack", "norm", "epsilon", "accuracy", "low", "high"}
    assert "fmn10" in str(curve)
    assert "<table>" in curve._repr_html_()
    assert json.loads(json.dumps(curve.to_json()))["lines"]["fgsm"][1]["epsilon"] == 0.1
    figure = curve_figure(curve, "a $name$", trained=0.1)
    assert len(figure.axes) == 1
    assert len(figure.axes[0].lines) == 3


def test_a_randomised_model_is_scored_over_fresh_draws():
    torch.manual_seed(0)
    model, images = Noisy(16), torch.rand(30, 1, 4, 4)
    labels = model(images).argmax(dim=1)
    curve = accuracy_curve(
        model, (images, labels), "fmn20", epsilons=[0.0, 0.5, 1.0], draws=20, seed=0
    )
    (line,) = curve.lines.values()
    assert 0.3 < line[-1].accuracy < 0.6  # just over the boundary, not far behind it


def test_bad_input(digits):
    with pytest.raises(ValueError, match="cw has no radius.*name fmn100"):
        accuracy_curve(*digits, "cw")
    with pytest.raises(ValueError, match="all be in one norm, found linf and l2"):
        accuracy_curve(*digits, ["fgsm", "fmn10_l2"])
    with pytest.raises(ValueError, match="epsilons must be at most 1"):
        accuracy_curve(*digits, "fgsm", epsilons=[8])
    with pytest.raises(ValueError, match="each once"):
        accuracy_curve(*digits, ["fgsm", "fgsm"])


class TestCommand:
    def test_it_draws_and_writes(self, tmp_path, capsys):
        words = "--attacks fmn10 fgsm --curve c.png --json c.json --epsilon 0.1 0.3".split()
        assert main([*COMMAND, *words]) == 0
        shown = capsys.readouterr().out
        assert "median of the smallest perturbations" in shown
        assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
        curve = json.loads((tmp_path / "c.json").read_text())["curve"]
        assert [point["epsilon"] for point in curve["lines"]["fgsm"]] == [0.0, 0.1, 0.3]
        assert curve["lines"]["fgsm"][0] == curve["lines"]["fmn10"][0]

    def test_radii_around_the_one_of_training(self, tmp_path):
        assert main([*COMMAND, *"--attacks fgsm fgsm_l2 --curve c.svg --json c.json".split()]) == 0
        lines = json.loads((tmp_path / "c.json").read_text())["curve"]["lines"]
        assert len(lines["fgsm"]) == len(lines["fgsm_l2"]) == 11
        trained = json.loads((tmp_path / "out" / "evaluation.json").read_text())
        assert len(trained) >= 10

    def test_what_was_measured_is_not_measured_again(self, monkeypatch):
        words = [*COMMAND, *"--attacks fgsm fmn5 --curve c.png --epsilon 0.1 0.2".split()]
        assert main(words) == 0
        done = []
        original = Runner._compute
        monkeypatch.setattr(
            Runner,
            "_compute",
            lambda self, item, *rest: done.append(item.attack) or original(self, item, *rest),
        )
        assert main(words) == 0
        assert set(done) == {"natural", "fmn5"}  # of which files keep no single images

    def test_it_goes_on_where_it_was_killed(self, monkeypatch, tmp_path):
        words = [*COMMAND, *"--attacks fgsm fmn5 --curve c.png --epsilon 0.1 0.2".split()]
        original, done = Runner._compute, []

        def stopping(self, item, *rest):
            if len(done) == 10:
                raise KeyboardInterrupt
            done.append(item.key)
            return original(self, item, *rest)

        monkeypatch.setattr(Runner, "_compute", stopping)
        assert main([*words, "--json", "a.json"]) != 0
        first = list(done)
        done.clear()
        monkeypatch.setattr(
            Runner,
            "_compute",
            lambda self, item, *rest: done.append(item.key) or original(self, item, *rest),
        )
        assert main([*words, "--json", "a.json"]) == 0
        assert not set(first) & set(done)
        found = json.loads((tmp_path / "a.json").read_text())["curve"]
        assert main([*words, "--json", "b.json", "--again"]) == 0
        assert json.loads((tmp_path / "b.json").read_text())["curve"] == found

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("--attacks cw --curve c.png", "cw has no radius"),
            ("--attacks fgsm --curve c.txt", "--curve must end in .png"),
            ("--attacks fgsm fgsm --curve c.png", "every attack once"),
            ("--attacks --curve c.png", "--curve needs attacks"),
        ],
    )
    def test_bad_input(self, words, said, capsys):
        assert main([*COMMAND, *words.split()]) == 2
        assert said in capsys.readouterr().err
