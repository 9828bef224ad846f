"""What the report draws: charts, heat maps, attacked images and Figure 4."""

import base64
import copy
import json
import re
import shutil

import pytest

from enresnet.cli import main
from enresnet.paper import study_figure4
from enresnet.report import Figure4View, find_runs, write_report
from enresnet.report.blind_matrix import _colours, _luminance, read_heat_maps
from enresnet.report.charts import HEIGHT, TOP, WIDTH, Chart, Line
from enresnet.report.contents import Contents, Drawing
from enresnet.report.paper_views import _letter
from enresnet.report.run_charts import draw_charts, network_slots, radius_charts, training_charts
from enresnet.report.run_facts import TWO_LOSSES, RunFacts
from enresnet.training import Recipe, Run, RunConfig
from enresnet.training.objectives import OBJECTIVES
from pages import RESULTS, Page, facts_of


def test_training_curves_are_those_of_metrics_csv(runs):
    facts = facts_of(runs)
    (panels,) = training_charts(facts, network_slots(facts))
    assert panels.heading == "resnet8 and its ensembles on digits, trained with pgd"
    clean, attacked = panels.charts
    solid = [line for line in attacked.lines if not line.dashed]
    assert [line.name for line in solid] == ["resnet8", "en3_resnet8"]
    rows = Run.open(runs / "resnet8").metrics()
    assert list(solid[0].points) == [(r["epoch"], 100 * r["validation_robust"]) for r in rows]
    assert [entry["name"] for entry in clean.legend()] == ["resnet8", "en3_resnet8"]
    heads, body = clean.numbers()
    assert heads[1:3] == ["resnet8, training", "resnet8"]
    assert len(body) == 20


def test_seeds_of_one_network_share_a_name_and_a_colour(runs):
    shutil.copytree(runs / "resnet8", runs / "again")
    config = runs / "again" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1"))
    facts = facts_of(runs, "resnet8", "again", "en3_resnet8")
    chart = training_charts(facts, network_slots(facts))[0].charts[0]
    plain = [line for line in chart.lines if line.name == "resnet8" and not line.dashed]
    assert [line.column for line in plain] == ["resnet8, seed 0", "resnet8, seed 1"]
    assert len({line.slot for line in plain}) == 1
    assert len(chart.legend()) == 2


def test_recipes_are_kept_apart(runs):
    """Curves of two recipes in one chart would be taken for those of two networks."""
    config = runs / "en3_resnet8" / "config.yaml"
    config.write_text(config.read_text().replace("batch_size: 64", "batch_size: 32"))
    facts = facts_of(runs)
    slots = network_slots(facts)
    for charts in (training_charts, draw_charts):
        panels = charts(facts, slots)
        assert len({line.name for one in panels for c in one.charts for line in c.lines}) > 0
        for one in panels:
            assert len({line.name for chart in one.charts for line in chart.lines}) == 1
    headings = [one.heading.partition("trained with ")[2] for one in training_charts(facts, slots)]
    assert headings == ["pgd, batch_size 64", "pgd, batch_size 32"]


def test_accuracy_against_epsilon_from_sections_curve_and_diagnosis(runs):
    path = runs / "resnet8" / "evaluation.json"
    stored = json.loads(path.read_text())
    for radius, accuracy in ((0.1, 0.9), (0.3, 0.4)):
        section = copy.deepcopy(stored["best"])
        section["epsilon"] = radius
        section["robust"] = {"fgsm": section["robust"]["fgsm"]}
        section["robust"]["fgsm"]["settings"]["epsilon"] = radius
        section["robust"]["fgsm"]["accuracy"] = accuracy
        stored[f"best at epsilon {radius}"] = section
    path.write_text(json.dumps(stored))
    points = [{"epsilon": r, "accuracy": 1 - r, "low": 0.0, "high": 1.0} for r in (0.0, 0.5, 1.0)]
    curve = {"images": 9, "norms": {"fmn100_l2": "l2"}, "lines": {"fmn100_l2": points}}
    (runs / "resnet8" / "mine.json").write_text(json.dumps({"curve": curve}))
    points = [{"at": r, "accuracy": 0.5, "low": 0.4, "high": 0.6} for r in (0.01, 0.2, 1.0)]
    diagnosis = {"images": 100, "against_epsilon": points}
    (runs / "en3_resnet8" / "diagnosis.json").write_text(json.dumps(diagnosis))
    facts = facts_of(runs)
    found = {(c.attack, c.norm, c.file): c for one in facts for c in one.curves}
    assert sorted(found) == [
        ("fgsm", "linf", "evaluation.json"),
        ("fmn100_l2", "l2", "mine.json"),
        ("ifgsm20", "linf", "diagnosis.json"),
    ]
    line = found["fgsm", "linf", "evaluation.json"].points
    assert [(p.epsilon, round(p.accuracy, 3)) for p in line] == [
        (0.0, 0.986),
        (0.1, 0.9),
        (0.2, 0.85),
        (0.3, 0.4),
    ]
    (panels,) = radius_charts(facts, network_slots(facts))
    fgsm, ifgsm, fmn = panels.charts
    assert [chart.log_x for chart in (fgsm, fmn, ifgsm)] == [False, False, True]
    assert fgsm.guide == (0.2, "training")
    assert fmn.guide is None


def test_accuracy_against_draws_is_flat_without_noise(runs):
    facts = facts_of(runs)
    (panels,) = draw_charts(facts, network_slots(facts))
    assert [chart.title.partition(" ")[0] for chart in panels.charts] == [
        "clean",
        "fgsm",
        "ifgsm20",
    ]
    plain, noisy = panels.charts[1].lines
    assert len({y for _, y in plain.points}) == 1
    assert [x for x, _ in plain.points] == [x for x, _ in noisy.points] == [1, 2, 5, 10]
    assert noisy.points[0][1] == pytest.approx(84.0)
    assert noisy.points[-1][1] == pytest.approx(81.6)  # 'always right'
    for line in (plain, noisy):
        for (_, y), (_, low, high) in zip(line.points, line.band, strict=True):
            assert low <= y <= high


@pytest.mark.parametrize("points", [[(1, 3)], [(0, 0), (1, 0)], [(1, 1e-3), (2, 99), (70, 5)]])
@pytest.mark.parametrize("number", [1, 4])
def test_everything_is_drawn_inside_the_picture(points, number):
    band = [(x, y - 1, y + 1) for x, y in points]
    chart = Chart("t", "x", "y", [Line(f"l{n}", n, points, band) for n in range(number)])
    drawing = chart.drawing()
    for line in drawing["lines"]:
        for x, y, hint in line["marks"]:
            assert 0 <= x <= WIDTH
            assert TOP <= y <= HEIGHT
            assert hint.startswith("l")
    places = [place for place, _ in drawing["y_ticks"]]
    assert 2 <= len(places) <= 8
    assert places == sorted(places, reverse=True)
    assert bool(drawing["lines"][0]["band"]) == (number == 1)
    assert bool(drawing["lines"][0]["bars"]) == (number == 4)


def test_blind_attacks_are_a_heat_map(tmp_path):
    (found,) = read_heat_maps(RESULTS / "cifar10" / "transfer.json")
    assert found.title == "ifgsm20, epsilon = 8/255, EOT over 5, 1000 images of cifar10"
    names = [source for source, _ in found.rows]
    assert (
        names == list(found.targets) == ["resnet20", "en1_resnet20", "en2_resnet20", "en5_resnet20"]
    )
    for row, (_, cells) in enumerate(found.rows):
        assert [cell.own for cell in cells] == [column == row for column in range(4)]
    assert [round(cell.value, 1) for cell in found.rows[0][1]] == [41.8, 45.7, 49.5, 48.9]
    assert (found.low, found.high) == (40, 50)
    (tmp_path / "transfer.json").write_text('{"natural": {}}')
    with pytest.raises(ValueError, match="no whole result of enresnet transfer"):
        read_heat_maps(tmp_path / "transfer.json")


def test_figures_on_colours_can_be_read():
    """WCAG asks for a contrast of 4.5 to 1 between text and ground."""
    for step in range(101):
        ground, text = _colours(step / 100)
        light = _luminance([int(n) for n in re.findall(r"\d+", ground)])
        other = 1.0 if text == "#fff" else 0.0
        assert (max(light, other) + 0.05) / (min(light, other) + 0.05) > 4.5


def test_what_lies_beside_the_runs_is_found(runs, tmp_path):
    shutil.copy(RESULTS / "cifar10" / "transfer.json", runs / "transfer.json")
    assert find_runs([runs]).transfers == (runs / "transfer.json",)
    assert find_runs([runs / "resnet8"]).transfers == ()  # it took no part in it
    beside = RESULTS / "cifar10"
    named = find_runs([beside / "resnet20", beside / "en2_resnet20", beside / "resnet20"])
    assert [run.folder.name for run in named.runs] == ["resnet20", "en2_resnet20"]
    assert [path.name for path in named.transfers] == ["transfer.json"]
    (runs / "transfer-2.json").write_text("[]")
    found = find_runs([runs])
    (sentence,) = write_report(tmp_path / "r.html", found.runs, transfers=found.transfers)
    assert "transfer-2.json is left out" in sentence


def test_images_are_attacked_and_both_networks_answer(runs, tmp_path):
    assert main(["report", str(runs), "--images", "2", "--out", str(tmp_path / "r.html")]) == 0
    page = Page(tmp_path / "r.html")
    assert page.count("img") == 2 * 5
    section = page.section("images")
    assert section.count('class="answer') == 2 * 5 * 2
    for title in ("ifgsm20 on resnet8", "cw_pixel on en3_resnet8"):
        assert f'<th scope="col">{title}</th>' in section
    original = re.findall(r"<td><img.*?</td>", section, flags=re.S)[0]
    assert original.count("✓") == 2
    assert "eot=5" in section
    (runs / "en3_resnet8" / "best.safetensors").unlink()
    write_report(tmp_path / "r.html", find_runs([runs]).runs, images=2)
    assert "could not be made: the figure needs a network and an ensemble" in Page(
        tmp_path / "r.html"
    ).section("images")


def test_figure_4_from_its_files_and_computed(tmp_path, runs):
    result = study_figure4(size=16, steps=40, sigmas=(0.0, 0.1), points=100)
    shown = Figure4View.of(result)
    assert [row[""] for row in shown.rows] == ["u(x, 1) = f", "u(x, 0), σ = 0", "u(x, 0), σ = 0.1"]
    numbers = runs / "pde-figure4.json"
    numbers.write_text(json.dumps(result.to_json()))
    found = find_runs([runs])
    assert found.figure4 == (numbers,)
    assert Figure4View.read(found.figure4) == Figure4View("", shown.rows, 16)
    write_report(tmp_path / "r.html", found.runs, figure4=shown)
    section = Page(tmp_path / "r.html").section("figure4")
    assert section.count("<img") == 1
    assert "16 × 16 points" in section
    picture = tmp_path / "drawn.png"
    picture.write_bytes(base64.b64decode(shown.picture.partition(",")[2]))
    drawings = tuple(
        Drawing(key, f"Drawn {key}", "So.", picture) for key in ("fig4", "fig5", "fig6")
    )
    drawings += (Drawing("fig6", "Lost", "", tmp_path / "none.png"),)
    (sentence,) = write_report(tmp_path / "r.html", found.runs, Contents(drawings=drawings))
    assert sentence.startswith("Lost is left out: ")
    page = Page(tmp_path / "r.html")
    for name, key in (("training", "fig5"), ("images", "fig6"), ("figure4", "fig4")):
        assert f'alt="Drawn {key}"' in page.section(name)
    for name, text in (("a.png", "GIF"), ("b.json", "[]"), ("c.json", "{}")):
        (tmp_path / name).write_text(text)
        (sentence,) = write_report(tmp_path / "r.html", found.runs, figure4=[tmp_path / name])
        assert sentence.startswith("Figure 4 is left out: ")
        assert name in sentence


def test_passes_are_those_of_the_objectives(tmp_path):
    for name, objective in OBJECTIVES.items():
        assert objective.passes == 1 + (name in TWO_LOSSES), name
    recipe = Recipe(
        objective="n_fgsm", epochs=4, low_resolution=0.5, final_steps=5, final_from=0.75
    )
    run = Run.create(tmp_path / "run", RunConfig("resnet8", "digits", recipe))
    row = dict.fromkeys(("validation_natural", "validation_robust", "seconds"))
    facts = RunFacts(run, "stopped", ({**row, "epoch": 1.0},) * 4, None, {}, (), (), ())
    assert facts.training_passes == 2 * 0.25 + 2 * 0.25 + 2 + 6
    assert facts.training_seconds is None
    assert facts.cores is None


def test_notes_have_letters():
    assert [_letter(n) for n in (0, 25, 26, 27, 52)] == ["a", "z", "aa", "ab", "ba"]
