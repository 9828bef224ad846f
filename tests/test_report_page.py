"""The report: one page on runs and what they say of the paper, from the results kept here."""

import base64
import copy
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from enresnet.cli import main
from enresnet.models import load_model, save_model
from enresnet.paper import study_figure4
from enresnet.report import Figure4View, find_runs, write_report
from enresnet.report.blind_matrix import _colours, _luminance, read_heat_maps
from enresnet.report.charts import HEIGHT, TOP, WIDTH, Chart, Line
from enresnet.report.contents import Cell, Contents, Drawing, Measured, Row, Table, Verdict
from enresnet.report.paper_views import _letter
from enresnet.report.run_charts import draw_charts, network_slots, radius_charts, training_charts
from enresnet.report.run_facts import TWO_LOSSES, RunFacts
from enresnet.training import Recipe, Run, RunConfig
from enresnet.training.objectives import OBJECTIVES

RESULTS = Path(__file__).parent.parent / "results"
HOSTILE = "<img src=x onerror=alert(1)> \"'&amp; {{7*7}} ${7*7}"
VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """A page as a browser reads it: balanced tags, attributes, text."""

    def __init__(self, path):
        super().__init__()
        self.source = Path(path).read_text(encoding="utf-8")
        self.tags, self.open, self.text, self.ids = [], [], "", []
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def values(self, *keys):
        return [v for _, attributes in self.tags for k, v in attributes.items() if k in keys]

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)

    def section(self, name):
        """Return the source of one section."""
        return self.source.partition(f'<section id="{name}"')[2].partition("</section>")[0]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("ENRESNET_DATA", str(tmp_path / "data"))  # images are those of digits
    shutil.copytree(RESULTS / "digits", tmp_path / "digits")
    return tmp_path / "digits"


def contents(folder):
    """Return two tables and four claims: measured, not run, contradicted, of all four verdicts."""
    plain, noisy = folder / "resnet8", folder / "en3_resnet8"

    def cell(metric, paper, mean, *folders, note=""):
        seeds = tuple(range(len(folders)))
        ours = Measured(mean, mean - 1, mean + 2, seeds, 500, folders) if folders else None
        return Cell(metric, paper, ours, note)

    rows = (
        Row(
            "ResNet8 & co",
            "resnet8",
            (
                cell("natural", 75.11, 98.6, plain, plain),
                cell("ifgsm20", 46.03, 75.6, plain, note="53.05 in the text"),
                cell("strongest", None, 71.0, plain),
            ),
        ),
        Row(
            "En3ResNet8",
            "en3_resnet8",
            (
                cell("natural", 80.34, 99.0, noisy),
                cell("ifgsm20", 50.06, 0.0),
                cell("strongest", None, 0.0),
            ),
        ),
        Row("En5ResNet8", "en5_resnet8", (cell("natural", 82.5, 0.0),)),
    )
    claims = (
        ("holds", 2.1, (1.5, 0.5, 2.5, 0.01, (0, 1, 2), (noisy, plain))),
        ("fails", 3.0, (-1.0, -1.5, -0.5, 2.1e-12, (0, 1), (noisy, plain))),
        ("undecided", None, (0.1, -0.9, 1.1, 0.8, (0,), (noisy, plain))),
        ("not run", 4.2, ()),
    )
    verdicts = tuple(
        Verdict(
            f"claim-{n}",
            f"The claim number {n}.",
            "Table 2",
            decision,
            paper,
            *found,
            note="One seed." if n in (0, 2) else "Contradicted." * (n == 1),
        )
        for n, (decision, paper, found) in enumerate(claims)
    )
    table = Table("table2", "Robust networks", "digits", rows, "Smaller than the paper's.")
    empty = Table(
        "mask", "Checks for masking", "digits", (Row("A", "a", (Cell("natural", 92.0),)),)
    )
    return Contents((table, empty), verdicts)


def facts_of(folder, *names):
    return [RunFacts.read(Run.open(folder / name)) for name in names or ("resnet8", "en3_resnet8")]


# The page as a whole.


def test_the_command_writes_a_page_that_needs_nothing(runs, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", str(runs), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}: 2 runs\n"
    assert printed.err == ""
    page = Page(out)
    assert "2 runs on digits." in " ".join(page.text.split())
    for word in ("en3_resnet8", "pgd at 0.2", "84.0", "80.5–87.0", "be8912e3b2", "AMD EPYC"):
        assert word in page.text, word
    assert page.count("h1") == 1
    assert {"main", "nav", "header"} <= {tag for tag, _ in page.tags}
    assert page.section("training").count("<svg viewBox") > 2


def test_nothing_is_loaded_and_every_link_leads_somewhere(runs, tmp_path):
    found = find_runs([runs, RESULTS / "cifar10"])
    write_report(
        tmp_path / "r.html", found.runs, contents(runs), transfers=found.transfers, images=1
    )
    page = Page(tmp_path / "r.html")
    assert "://" not in page.source
    assert all(value.startswith("data:image/png;base64,") for value in page.values("src"))
    links = page.values("href")
    assert {link[0] for link in links} == {"#"}
    assert {link[1:] for link in links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    referred = [word for value in page.values("aria-labelledby") for word in value.split()]
    assert set(referred) <= set(page.ids)
    (policy,) = page.values("content")[1:2]
    assert policy.startswith("default-src 'none'; img-src data:;")
    # Every picture has words in its place: SVG as an image with a title, or hidden as decoration.
    drawn = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert all("aria-labelledby" in a or a.get("aria-hidden") == "true" for a in drawn)
    assert all(a.get("alt") for tag, a in page.tags if tag == "img")


def test_reading_results_needs_no_torch(runs, tmp_path):
    code = "import sys\nfrom enresnet.report import find_runs, write_report\n"
    code += "write_report(sys.argv[1], find_runs(sys.argv[2:]).runs)\n"
    code += "print({'torch', 'scipy', 'matplotlib', 'numpy'} & set(sys.modules))"
    words = [str(tmp_path / "r.html"), str(runs)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == "set()\n"


def test_the_papers_tables_stand_beside_ours(runs, tmp_path):
    write_report(tmp_path / "r.html", find_runs([runs]).runs, contents(runs))
    page = Page(tmp_path / "r.html")
    tables = page.section("tables")
    assert "4 of the 8 accuracies in the paper's tables were measured." in page.text
    assert tables.count(">not run<") == 4
    assert "<h3>Table 2: Robust networks</h3>" in tables
    folded = re.findall(r'<details class="table" id="[^"]*"( open)?>', tables)
    assert folded == [" open", ""]  # what has nothing to show is there, and closed
    # Paper, ours with its interval and a link to its run, and the difference
    anchor = re.search(r'<a href="#(run-\d)">98.6</a>', tables)[1]
    (run,) = (a for tag, a in page.tags if a.get("id") == anchor)
    assert run["class"] == "run"
    assert ">75.11</td>" in tables
    assert '<span class="interval">97.6–100.6</span>' in tables
    assert ">+23.5</td>" in tables
    assert ">0, 1</td>" in tables  # the row's seeds
    assert tables.count('<span class="interval">seed 0</span>') == 2  # of cells that have fewer
    assert "<sup>a</sup> 53.05 in the text" in tables
    assert "Smaller than the paper&#39;s." in tables
    assert "ResNet8 &amp; co" in tables
    # What the paper does not have takes one column, not three; every row has as many cells.
    assert tables.count(">diff.</abbr>") == 2 + 1
    body = tables.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [len(re.findall(r"<t[dh][ >]", row)) for row in body.split("</tr>")[:-1]]
    assert rows == [1 + 3 + 3 + 1 + 1] * 3


def test_claims_have_their_verdict_effect_interval_and_the_papers_own(runs, tmp_path):
    write_report(tmp_path / "r.html", find_runs([runs]).runs, contents(runs))
    claims = Page(tmp_path / "r.html").section("claims")
    rows = re.findall(r'<tr id="claim-\d">.*?</tr>', claims, flags=re.S)
    words = [re.search(r'class="verdict [^"]*">.*?</span> ([\w ]+)</span>', row)[1] for row in rows]
    assert words == ["holds", "fails", "undecided", "not run"]
    assert "+1.50" in rows[0]
    assert "+0.50 to +2.50" in rows[0]
    assert "+2.10" in rows[0]
    assert ">0, 1, 2</td>" in rows[0]
    assert "2.1e-12" in rows[1]
    assert "−1.00" in rows[1]
    assert "paper-mark" not in rows[2]
    assert "+4.20" in rows[3]
    assert "our-mark" not in rows[3]
    assert "interval-bar" not in rows[3]
    # A note that two claims share stands below them, once.
    assert claims.count("One seed.") == 1
    assert [row.count('href="#claims-note-a"') for row in rows] == [1, 0, 1, 0]
    assert "Contradicted." in rows[1]
    # One scale for all: no effect is at one place, and larger effects lie to the right.
    zeros = set(re.findall(r'class="axis" d="M([\d.]+),', claims))
    assert len(zeros) == 1
    ours = [float(re.search(r'our-mark" cx="([\d.]+)', row)[1]) for row in rows[:3]]
    assert ours[1] < float(zeros.pop()) < ours[2] < ours[0]


def test_without_the_paper_the_page_shows_the_runs(runs, tmp_path):
    write_report(tmp_path / "r.html", find_runs([runs]).runs)
    page = Page(tmp_path / "r.html")
    assert page.section("claims") == page.section("tables") == ""
    assert page.section("runs")


def test_the_cost_of_each_run(runs, tmp_path):
    facts = facts_of(runs)
    seconds = [sum(row["seconds"] for row in one.epochs) for one in facts]
    assert [one.training_seconds for one in facts] == seconds
    assert [one.cores for one in facts] == [1, 1]
    assert [one.training_passes for one in facts] == [20 * (5 + 1)] * 2
    write_report(tmp_path / "r.html", find_runs([runs]).runs)
    cost = Page(tmp_path / "r.html").section("cost")
    # 500 images: fgsm 5 + 10 draws, ifgsm20 100 + 10, clean 10
    assert f'data-value="{500 * (5 + 100 + 30)}"' in cost


# Bad input.


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.yaml", lambda _: "model: [", "is not YAML"),
        ("config.yaml", lambda text: text.replace("resnet8", "nonsense"), "nonsense"),
        ("metrics.csv", lambda text: text.replace("\n2,", "\ntwo,"), "metrics.csv is damaged"),
        ("metrics.csv", lambda text: text.replace("\n2,", "\nnan,"), "metrics.csv is damaged"),
        ("evaluation.json", lambda text: text[:-20], "is not JSON"),
        ("evaluation.json", lambda text: re.sub('aged": 0[.0-9]+', 'aged": "<b>"', text), "number"),
        ("evaluation.json", lambda text: text.replace('"draws": 10', '"draws": []'), "no number"),
        ("environment.json", lambda _: "{}", "environment.json must list"),
        ("diagnosis.json", lambda _: '{"against_epsilon": 3, "images": 2}', "not whole"),
        ("curve.json", lambda _: '{"curve": {"lines": {"a": [1]}}}', "not whole"),
    ],
)
def test_a_malformed_run_is_named_and_the_rest_goes_on(runs, tmp_path, capsys, file, change, words):
    path = runs / "en3_resnet8" / file
    path.write_text(change(path.read_text() if path.is_file() else ""))
    assert main(["report", str(runs), "--out", str(tmp_path / "r.html")]) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith(": 1 run\n")
    (sentence,) = printed.err.splitlines()
    assert sentence.startswith(f"{path.parent} is left out: ")
    assert words in sentence
    page = Page(tmp_path / "r.html")
    assert sentence in page.text
    assert "en3_resnet8</a>" not in page.section("runs")
    assert "resnet8</a>" in page.section("runs")


def test_bad_arguments_get_a_sentence(runs, tmp_path, capsys):
    out = ["--out", str(tmp_path / "r.html")]
    for words, expected in (
        (["report", *out], "name a run"),
        (["report", str(tmp_path / "none"), *out], "there is no folder"),
        (["report", str(RESULTS / "engine"), *out], "there is no run in"),
        (["report", str(runs), "--images", "-1", *out], "images"),
        (["report", str(runs), "--out", str(tmp_path / "no" / "r.html")], "no/r.html"),
        (["report", str(runs), "--solve-figure4", "--figure4", "a.png", *out], "leave one"),
    ):
        assert main(words) == 2, words
        printed = capsys.readouterr().err
        assert expected in printed
        assert printed.count("\n") == 1
    for name in ("resnet8", "en3_resnet8"):
        (runs / name / "config.yaml").write_text("?")
    assert main(["report", str(runs), *out]) == 2
    assert "no run can be read: " in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_results_of_other_weights_are_not_shown(runs, tmp_path):
    weights = runs / "resnet8" / "best.safetensors"
    save_model(load_model(weights), weights)  # with a digest, which earlier files have not
    path = runs / "resnet8" / "evaluation.json"
    stored = json.loads(path.read_text())
    for entry in (stored["best"]["natural"], *stored["best"]["robust"].values()):
        entry["circumstances"]["file"] = {"name": "best.safetensors", "sha256": "0" * 64}
    path.write_text(json.dumps(stored))
    write_report(tmp_path / "r.html", find_runs([runs]).runs)
    page = Page(tmp_path / "r.html")
    assert "was measured with other weights than best.safetensors holds now" in page.text
    assert "97.1–99.3" not in page.text


def test_hostile_words_are_only_words(runs, tmp_path):
    folder = runs / HOSTILE.replace("/", "")
    shutil.move(runs / "resnet8", folder)
    with (folder / "config.yaml").open("a") as file:
        file.write(f"classes: {json.dumps([HOSTILE, '</script><script>alert(2)</script>'])}\n")
    stored = json.loads((folder / "evaluation.json").read_text())
    robust = stored["best"]["robust"]
    robust[HOSTILE] = {**robust["fgsm"], "attack": f"{HOSTILE}\u202e\x1b[2J"}
    (folder / "evaluation.json").write_text(json.dumps(stored))
    one = Cell(HOSTILE, 1.0, Measured(1.0, 0.0, 2.0, (0,), 5, (folder,)), HOSTILE)
    table = Table(HOSTILE, HOSTILE, HOSTILE, (Row(HOSTILE, HOSTILE, (one,)),), HOSTILE)
    claim = Verdict(HOSTILE, HOSTILE, HOSTILE, "holds", 1.0, runs=(folder,), note=HOSTILE)
    found = find_runs([runs])
    write_report(
        tmp_path / "r.html",
        found.runs,
        Contents((table,), (claim,)),
        skipped=[HOSTILE],
        images=1,
        title=HOSTILE,
    )
    page = Page(tmp_path / "r.html")
    assert page.count("script") == 1
    assert page.values("onerror") == []
    assert all(value.startswith("data:") for value in page.values("src"))
    assert page.text.count("<img src=x onerror=alert(1)> \"'&amp; {{7*7}} ${7*7}") > 10
    assert "\u202e" not in page.source
    assert "\x1b" not in page.source


def test_a_failure_leaves_the_page_that_was_there(runs, tmp_path, monkeypatch):
    out = tmp_path / "r.html"
    out.write_text("before")
    monkeypatch.setattr(Chart, "drawing", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(out, find_runs([runs]).runs)
    assert out.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["r.html"]


# What the charts show.


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


# In a browser.


@pytest.fixture
def browser(tmp_path):
    """Yield headless Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if importlib.util.find_spec("selenium") is None or chromium is None or driver is None:
        pytest.skip("selenium, chromium or chromedriver is not installed")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = chromium
    words = "headless no-sandbox disable-gpu disable-quic no-first-run disable-sync"
    words += " disable-background-networking disable-component-update window-size=1280,1000"
    for word in [*words.split(), f"user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    found = Chrome(options=options, service=ChromeService(driver))
    yield found
    found.quit()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_page_in_a_browser(runs, tmp_path, browser):
    from selenium.webdriver.common.by import By

    found = find_runs([runs, RESULTS / "cifar10"])
    page = tmp_path / "report.html"
    title = f"A report {HOSTILE}"
    write_report(page, found.runs, contents(runs), transfers=found.transfers, images=2, title=title)

    def column(table, number):
        script = f"return [...document.querySelectorAll('{table} tbody tr')].map("
        return browser.execute_script(f"{script}r => r.cells[{number}].innerText.split('\\n')[0])")

    def click(table, head):
        path = f"//table[contains(@class, '{table}')]//button[normalize-space()='{head}']"
        browser.find_element(By.XPATH, path).click()

    def colour():
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    for width in (1280, 390):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        browser.get(page.as_uri())
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
        browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width

    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get(page.as_uri())
    assert browser.find_element(By.TAG_NAME, "h1").text == title

    # Numbers sort as numbers, both ways, and what was not run stays last.
    click("runs", "ifgsm20")
    shown = [float(v) for v in column(".runs", 7) if v != "not run"]
    assert column(".runs", 7)[-1] == "not run"
    assert shown == sorted(shown)
    assert len(shown) == 6
    click("runs", "ifgsm20")
    assert [float(v) for v in column(".runs", 7)[:6]] == shown[::-1]
    assert column(".runs", 7)[-1] == "not run"
    heads = browser.find_elements(By.CSS_SELECTOR, ".runs th[aria-sort]")
    assert [head.get_attribute("aria-sort") for head in heads] == ["descending"]
    click("claims", "verdict")
    click("claims", "verdict")
    assert column(".claims", 1) == ["? undecided", "✗ fails", "✓ holds"]
    click("paper", "seeds")
    assert column("[open] .paper", 0)[-1] == "En5ResNet8"  # it has no seed

    # A figure leads to its run, which opens.
    link = browser.find_element(By.LINK_TEXT, "98.6")
    anchor = link.get_attribute("href").partition("#")[2]
    assert browser.find_element(By.ID, anchor).get_attribute("open") is None
    link.click()
    assert browser.find_element(By.ID, anchor).get_attribute("open")

    # Light and dark: the system's, until the reader chooses, who is remembered.
    assert colour() == "rgb(255, 255, 255)"
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert colour() == "rgb(21, 23, 26)"
    browser.find_element(By.ID, "theme").click()
    assert colour() == "rgb(255, 255, 255)"
    browser.get(page.as_uri())
    assert colour() == "rgb(255, 255, 255)"
    browser.find_element(By.ID, "theme").click()
    assert colour() == "rgb(21, 23, 26)"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert colour() == "rgb(255, 255, 255)"

    # No word was said to the console, nothing was asked of anyone.
    assert browser.get_log("browser") == []
    asked = re.findall(
        r'"Network.requestWillBeSent".*?"url":"([^"]+)"',
        "\n".join(entry["message"] for entry in browser.get_log("performance")),
    )
    assert asked
    # chrome: is the browser's own first tab
    assert {address.partition(":")[0] for address in asked} <= {"file", "data", "chrome"}
