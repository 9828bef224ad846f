"""From the equation to a classifier, and the command line of the studies."""

import json
import math

import pytest
import torch

from enresnet.cli import main
from enresnet.common.randomness import named_generator
from enresnet.paper import verify as verification
from enresnet.paper.classifier import (
    OnImages,
    exhaustive_accuracy,
    spectral_surface,
    study_classifier,
    to_images,
)
from enresnet.pde.flow import HALF_WIDTH, Flow, train, two_dimensional
from enresnet.pde.grid import Grid
from enresnet.report.findings import Check


@pytest.mark.parametrize("name", ["moons", "spirals"])
def test_data_lies_in_the_square_and_repeats(name):
    points, labels = two_dimensional(name, 100, seed=1)
    again, _ = two_dimensional(name, 100, seed=1)
    assert torch.equal(points, again)
    assert points.abs().max() < HALF_WIDTH
    assert labels.double().mean() == 0.5


def test_noise_of_a_layer_is_sigma_over_root_l():
    flow = Flow(layers=16, sigma=0.8, generator=named_generator(0, "flow"))
    with torch.no_grad():
        flow.outer.zero_()
        ends = flow.walk(torch.zeros(20_000, 2, dtype=torch.float64))[0]
    assert float((ends[1] - ends[0]).std()) == pytest.approx(0.8 / 4, rel=0.03)
    assert float(ends[-1].std()) == pytest.approx(0.8, rel=0.03)


@pytest.fixture(scope="module", params=["moons", "spirals"])
def study(request):
    return study_classifier(data=request.param, iterations=100, draws=32, size=160)


def test_the_network_and_its_equation_agree(study):
    for row in study.rows:
        assert row.agreement.rms < 0.05
        assert row.agreement.overshoot < 0.02
    steepest = [row.agreement.steepest for row in study.rows]
    assert steepest == sorted(steepest, reverse=True)
    assert steepest[0] > 1.5 * steepest[-1]


def test_the_sigmas_of_the_study_and_their_accuracies(study):
    assert [row.sigma for row in study.rows] == [0, 0.05, 0.1, 0.3]
    for row in study.rows:
        assert row.natural > 0.95
        assert 0.5 < row.robust < row.natural
        assert row.gain == pytest.approx(row.robust - study.rows[0].robust)
        assert row.gain_error is None
        # PGD finds nearly all that a search of the whole box finds, on the equation's surface
        assert row.agreement.exhaustive == pytest.approx(row.robust, abs=0.04)


@pytest.mark.slow
def test_noise_helps_under_attack_on_average():
    rows = study_classifier(sigmas=(0.0, 0.3), repeats=6, draws=16, size=96).rows
    assert rows[1].gain > rows[1].gain_error > 0


def test_trainings_are_repeated_with_other_data_and_weights():
    rows = study_classifier(sigmas=(0.0, 0.3), iterations=20, repeats=3, draws=4, size=64).rows
    assert len(set(rows[0].robusts)) == 3
    assert rows[0].gains == [0, 0, 0]
    differences = [b - a for a, b in zip(rows[0].robusts, rows[1].robusts, strict=True)]
    assert rows[1].gains == differences
    assert rows[1].gain == pytest.approx(sum(differences) / 3)
    assert rows[1].gain_error > 0


def test_the_surface_without_velocity_is_the_heat_equation():
    flow = Flow(layers=2, sigma=0.5, generator=named_generator(0, "flow"))
    flow.requires_grad_(False)
    flow.outer.zero_()
    grid = Grid(size=128, length=12.0, origin=-6.0)
    place = (70, 60)
    nodes = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weights = torch.exp(-(nodes**2) / 2)
    slope = 0.5 * float(flow.head.norm())
    middle = float(grid.points[place] @ flow.head + flow.bias)
    exact = (torch.sigmoid(middle + slope * nodes) * weights).sum() / weights.sum()
    assert float(spectral_surface(flow, grid)[place]) == pytest.approx(float(exact), abs=1e-4)


def test_the_whole_box_is_searched():
    grid = Grid(size=64, length=12.0, origin=-6.0)
    surface = torch.sigmoid(8 * grid.points[..., 0].clamp(-3, 3))  # class 1 on the right
    points = torch.tensor([[0.3, 0.0], [0.1, 0.5], [-0.3, 0.2], [-0.1, 1.0]]).double()
    labels = torch.tensor([1, 1, 0, 0])
    assert exhaustive_accuracy(grid, surface, points, labels, 0.2) == 0.5
    assert exhaustive_accuracy(grid, surface, points, labels, 0.05) == 1
    assert exhaustive_accuracy(grid, surface, points, 1 - labels, 0.05) == 0


def test_images_are_points():
    flow = Flow(layers=2, generator=named_generator(0, "flow"))
    points, _ = two_dimensional("spirals", 10)
    logits = OnImages(flow, draws=1)(to_images(points))
    torch.testing.assert_close(logits[:, 1].exp(), flow.probability(points))


def test_training_leaves_torchs_generator_alone():
    before = torch.random.get_rng_state()
    points, labels = two_dimensional("moons", 20)
    train(Flow(layers=2, sigma=0.1), points, labels, iterations=2)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "mons"}, "Did you mean moons"),
        ({"sigmas": (-0.1,)}, "sigma"),
        ({"size": 33}, "even"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        study_classifier(**change)


def test_the_command_prints_writes_and_draws(capsys, tmp_path):
    words = ["pde", "figure4", "--size", "32", "--steps", "100", "--diffusions", "25"]
    words += ["--sigmas", "0", "0.1"]
    assert main([*words, "--json", str(tmp_path / "f.json"), "--out", str(tmp_path / "new")]) == 0
    assert "Figure 4: 32 x 32" in capsys.readouterr().out
    values = json.loads((tmp_path / "f.json").read_text(), parse_constant=pytest.fail)
    assert values["terminal"]["sigma"] is None
    assert set(values["spectra"]) == {"0.0", "0.1", "f"}
    rows = values["rows"]
    assert [row["sigma"] for row in rows] == [0, 0.1]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert (tmp_path / "new" / "pde-figure4.png").stat().st_size > 10_000
    assert "<svg" in (tmp_path / "new" / "pde-figure4.svg").read_text()[:1000]


def test_many_sigmas_are_drawn(tmp_path):
    words = ["pde", "figure4", "--size", "16", "--steps", "20", "--diffusions", "5"]
    sigmas = [f"{0.05 * k:.2f}" for k in range(9)]
    assert main([*words, "--sigmas", *sigmas, "--out", str(tmp_path), "--dpi", "40"]) == 0
    assert (tmp_path / "pde-figure4.png").is_file()


def test_numbers_that_json_does_not_know_become_null(monkeypatch, tmp_path):
    from enresnet.cli import pde

    monkeypatch.setattr(pde, "verify", lambda **_: [Check("check", math.nan, 1.0)])
    assert main(["pde", "verify", "--json", str(tmp_path / "v.json")]) == 1
    (check,) = json.loads((tmp_path / "v.json").read_text(), parse_constant=pytest.fail)
    assert check["found"] is None
    assert check["holds"] is False


def test_bad_input_leaves_nothing_behind(tmp_path, capsys):
    assert main(["pde", "figure4", "--size", "33", "--out", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("mine")
    assert main(["pde", "figure4", "--out", str(tmp_path / "file")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["figure4", "--size", "33"], "size must be even"),
        (["figure4", "--device", "nowhere"], "device must be"),
        (["figure4", "--trap", "--frozen"], "found frozen with it"),
        (["figure4", "--trap", "--diffusions", "10"], "found diffusions with it"),
        (["theorems", "--seed=-1"], "seed must be at least 0"),
        (["mlmc", "--trainings", "0"], "trainings must be at least 1"),
        (["classifier", "--data"], "data must be one at least"),
        (["verify", "--dpi", "0"], "dpi must be at least 1"),
        (["figure4", "--sigmas=-1"], "sigma must be"),
        (["figure4", "--json", "/nowhere/file"], "folder does not exist"),
        (["particles", "--sigma", "0"], "sigma must be above 0"),
        (["mlmc", "--epsilons", "0.1"], "at least two"),
        (["theorems", "--cases", "1"], "cases"),
        (["classifier", "--data", "circles"], "data must be one of"),
    ],
)
def test_bad_input_ends_with_code_2(words, message, capsys):
    assert main(["pde", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("found", "code"), [(0.5, 0), (2.0, 1), (math.nan, 1)])
def test_a_failed_check_ends_with_code_1(found, code, monkeypatch, capsys, tmp_path):
    from enresnet.cli import pde

    monkeypatch.setattr(pde, "verify", lambda seed: [Check(f"check {seed}", found, 1.0)])
    assert main(["pde", "verify", "--out", str(tmp_path)]) == code
    assert ("FAILS" in capsys.readouterr().out) == bool(code)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_every_check_holds(seed):
    assert [check.name for check in verification.verify(seed=seed) if not check.holds] == []
