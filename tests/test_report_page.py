"""The report: one page on runs and what they say of the paper, from the results kept here."""

import copy
import json
import re
import shutil
import subprocess
import sys

import pytest

from enresnet.cli import main
from enresnet.models import load_model, save_model
from enresnet.report import find_runs, write_report
from enresnet.report.charts import Chart
from enresnet.report.contents import Cell, Contents, Measured, Row, Table, Verdict
from pages import HOSTILE, RESULTS, Page, contents, facts_of


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
    # Of the figures that the paper has: not those under the strongest attack
    assert "3 of the 6 accuracies in the paper's tables were measured." in page.text
    assert "3 of 5 measured" in tables
    assert tables.count('<span class="interval">n = 500</span>') == 4
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
    assert words == ["holds", "fails", "undecided", "not comparable", "not run"]
    assert "+1.50" in rows[0]
    assert "+0.50 to +2.50" in rows[0]
    assert "+2.10" in rows[0]
    assert ">0, 1, 2</td>" in rows[0]
    assert "2.1e-12" in rows[1]
    assert "−1.00" in rows[1]
    assert "paper-mark" not in rows[2]
    assert "No scores." in rows[3]  # the reason
    assert "+4.20" in rows[4]
    for row in rows[3:]:
        assert "our-mark" not in row
        assert "interval-bar" not in row
    # A note that two claims share stands below them, once.
    assert claims.count("One seed.") == 1
    assert [row.count('href="#claims-note-a"') for row in rows] == [1, 0, 1, 0, 0]
    assert "Contradicted." in rows[1]
    # One scale for all: no effect is at one place, and larger effects lie to the right.
    zeros = set(re.findall(r'class="axis" d="M([\d.]+),', claims))
    assert len(zeros) == 1
    ours = [float(re.search(r'our-mark" cx="([\d.]+)', row)[1]) for row in rows[:3]]
    assert ours[1] < float(zeros.pop()) < ours[2] < ours[0]


def test_what_a_reader_must_know_stands_at_the_head(runs, tmp_path):
    write_report(tmp_path / "r.html", find_runs([runs]).runs, contents(runs))
    head = Page(tmp_path / "r.html").source.partition("</header>")[0]
    assert "<li>There are two runs of one network.</li>" in head


def test_each_figure_of_a_run_has_its_number_of_images_in_sight(runs, tmp_path):
    write_report(tmp_path / "r.html", find_runs([runs]).runs)
    section = Page(tmp_path / "r.html").section("runs")
    assert section.count('<span class="interval">n = 500</span>') == sum(
        len(one.accuracies()) for one in facts_of(runs)
    )


def test_radii_are_written_as_one_would_type_them(runs, tmp_path):
    path = runs / "resnet8" / "evaluation.json"
    stored = json.loads(path.read_text())
    for level in range(1, 13):
        section = copy.deepcopy(stored["best"])
        section["epsilon"] = level / 255
        for entry in section["robust"].values():
            entry["settings"]["epsilon"] = level / 255
        stored[f"best at epsilon {level / 255:.6g}"] = section
    path.write_text(json.dumps(stored))
    write_report(tmp_path / "r.html", find_runs([runs]).runs)
    page = Page(tmp_path / "r.html")
    for level in range(1, 13):
        assert f"{level / 255:.6g}" not in page.source
        assert f'<th scope="row">{level}/255</th>' in page.section("epsilon")
        assert f"best at epsilon {level}/255" in page.section("details")


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
