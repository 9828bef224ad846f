"""The quickstart, on a plan small enough for a test, and its page."""

import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from enresnet.cli import main
from enresnet.common.plotting import as_png
from enresnet.evaluation import paired_difference
from enresnet.paper import run_quickstart
from enresnet.report import render_quickstart
from enresnet.report.examples import Answers
from enresnet.report.figures import accuracy_bars
from enresnet.report.quickstart import ATTACKS, BASE, ENSEMBLE, NETWORKS, Plan
from enresnet.report.quickstart_page import SHOWN, verdict
from enresnet.training import load_recipe
from problems import seeded


@pytest.fixture(scope="module")
def result():
    plan = Plan(
        recipe=load_recipe("quickstart", epochs=2, steps=1),
        images={"fgsm": 300, "ifgsm20": 12, "cw_pixel": 9},
        radii=(0.2, 0.4),
    )
    return run_quickstart(seeds=2, plan=plan, progress=False)


def test_the_table_holds_every_comparison(result):
    rows = {row["images"]: row for row in result.rows()}
    assert list(rows) == [
        "clean images",
        *(f"{attack}, white box" for attack in ATTACKS),
        *(f"{attack}, blind" for attack in ATTACKS),
    ]
    for row in rows.values():
        for network in NETWORKS:
            low, high = row[network]["interval"]
            assert 0 <= low <= row[network]["accuracy"] <= high <= 1
        expected = row[ENSEMBLE]["accuracy"] - row[BASE]["accuracy"]
        assert row["difference"]["difference"] == pytest.approx(expected, abs=1e-6)
        assert len(row["difference"]["by_seed"]) == 2
    # Two seeds of 300 images cover the 500 with 100 of them twice; none counts twice.
    assert [row["count"] for row in rows.values()] == [500, 500, 24, 18, 500, 24, 18]


def test_blind_scores_are_those_on_the_other_networks_images(result):
    key = (BASE, "ifgsm20", 0.2, 1)
    (mine,) = (a for a in result.attacked if (a.source, a.attack, a.epsilon, a.seed) == key)
    blind = result.scores(ENSEMBLE, "ifgsm20", source=BASE)
    torch.testing.assert_close(blind[12:24], mine.scores[ENSEMBLE])
    assert not torch.equal(blind, result.scores(ENSEMBLE, "ifgsm20"))


def test_the_ensemble_is_attacked_over_its_noise(result):
    settings = {(a.source, a.attack): a.settings for a in result.attacked if a.epsilon == 0.2}
    assert all(("eot=5" in text) == (key[0] == ENSEMBLE) for key, text in settings.items())
    # The paper's step of 6e-4 at 8/255, scaled to this epsilon
    scaled = 6e-4 * 0.2 * 255 / 8
    assert f"step_size={scaled:.4g}" in settings[BASE, "cw_pixel"]


def test_both_networks_train_for_the_same_epochs(result):
    assert {len(t.epochs) for t in result.trained} == {2}
    assert [(t.network, t.seed) for t in result.trained] == [
        (network, seed) for network in (ENSEMBLE, BASE) for seed in (0, 1)
    ]


def test_the_curve_ends_at_the_figures_of_the_table(result):
    table = {row["images"]: row for row in result.rows()}
    clean, trained, beyond = result.curve_rows()
    assert [row["epsilon"] for row in (clean, trained, beyond)] == [0, 0.2, 0.4]
    for key in (*NETWORKS, "difference", "count"):
        assert clean[key] == table["clean images"][key]
        assert trained[key] == table["ifgsm20, white box"][key]
    for network in NETWORKS:
        assert beyond[network]["accuracy"] < trained[network]["accuracy"]
        assert beyond["count"] == trained["count"] == 24


def test_the_attack_of_each_epsilon_is_run_once(result):
    runs = [(a.source, a.epsilon, a.seed) for a in result.attacked if a.attack == "ifgsm20"]
    assert sorted(runs) == sorted(itertools.product(NETWORKS, (0.2, 0.4), (0, 1)))
    for a in result.attacked:
        assert f"epsilon={a.epsilon:g}" in a.settings or a.attack == "cw_pixel"
        if a.attack != "cw_pixel":
            moved = (a.images - result.images[a.rows]).abs().amax()
            assert 0.9 * a.epsilon < moved <= a.epsilon + 1e-6


def test_examples_are_the_attacked_images_in_the_order_of_the_data_set(result):
    examples = result.examples()
    assert [e.row for e in examples] == list(range(24))
    assert [e.seed for e in examples] == [0] * 12 + [1] * 12
    for e in examples:
        assert e.label == result.labels[e.row]
        assert torch.equal(e.image, result.images[e.row])
    # The single network answers each image in one way, so its answers are the scores.
    held = torch.tensor([e.held_by(BASE) for e in examples]).float()
    torch.testing.assert_close(held, result.scores(BASE, "ifgsm20"))
    blind = torch.tensor([e.answers[ENSEMBLE][BASE].said == e.label for e in examples]).float()
    torch.testing.assert_close(blind, result.scores(BASE, "ifgsm20", source=ENSEMBLE))
    clean = torch.tensor([e.clean_answers[BASE].said == e.label for e in examples]).float()
    scored = torch.cat([result.clean[BASE][0, :12], result.clean[BASE][1, 12:24]])
    torch.testing.assert_close(clean, scored)
    answers = [a for e in examples for by in e.answers.values() for a in by.values()]
    assert all(0.1 <= a.confidence <= 1 for a in answers)


def test_an_image_of_two_seeds_is_the_first_ones(result):
    moved = [replace(a, rows=a.rows % 12) if a.seed == 1 else a for a in result.attacked]
    again = replace(result, attacked=moved)
    assert [(e.row, e.seed) for e in again.examples()] == [(row, 0) for row in range(12)]


def test_every_image_is_counted_once_by_who_holds_it(result):
    found = result.differing()
    assert found.both + found.neither + found.total == 24
    held = sum(e.held_by(ENSEMBLE) for e in result.examples())
    assert found.both + found.counts()[ENSEMBLE] == held


def answered(result, right):
    """Return the results with given answers under ifgsm20: ``right[network](row)``."""
    changed = []
    for a in result.attacked:
        if a.answers:
            labels = result.labels[a.rows]
            keep = torch.tensor([right[a.source](row) for row in a.rows.tolist()])
            classes = torch.where(keep, labels, (labels + 1) % 10)
            own = Answers(classes, torch.full((len(classes),), 0.75))
            a = replace(a, answers={**a.answers, a.source: own})
        changed.append(a)
    return replace(result, attacked=changed)


def text(page):
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition("<body>")[2]).split())


def test_the_page_counts_and_shows_both_directions(result):
    # Of 24: 0-11 only the ensemble, 12-15 only the single network, 16-17 neither, the rest both.
    right = {
        ENSEMBLE: lambda row: row < 12 or row > 17,
        BASE: lambda row: row >= 12 and row not in (16, 17),
    }
    page = render_quickstart(answered(result, right))
    shown = text(page)
    assert "Of 24 attacked test images, both networks hold 6 and neither holds 2" in shown
    assert f"Only {ENSEMBLE} holds 12 ; only {BASE} holds 4" in shown
    assert f"Only {ENSEMBLE} holds: the first 6 of 12" in shown
    assert f"Only {BASE} holds: the first 2 of 4" in shown
    part = page.partition("Images on which the two differ")[2].partition("<h2>")[0]
    assert re.findall(r">image (\d+)<", part) == [*"012345", "12", "13"]
    assert part.count("75 %") >= SHOWN * 2


def test_the_page_says_so_where_a_kind_is_missing(result):
    def always(_):
        return True

    page = text(render_quickstart(answered(result, {ENSEMBLE: always, BASE: lambda row: row != 3})))
    assert f"Only {ENSEMBLE} holds: 1" in page
    assert f"Only {BASE} holds: 0 There is no such image." in page
    page = text(render_quickstart(answered(result, {ENSEMBLE: always, BASE: always})))
    assert "No image differs" in page
    assert "both networks hold 24 and neither holds 0" in page
    assert "holds:" not in page


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attributes):
        self.found += [value for key, value in attributes if key in ("src", "href")]
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_stands_alone(result):
    page = render_quickstart(result)
    parser = Links()
    parser.feed(page)
    assert parser.open == []
    assert all(link.startswith(("data:", "#")) for link in parser.found)
    assert "<script" not in page
    assert page.count("<svg") == page.count('role="img" aria-label="') == 3
    pictures = re.findall(r"<img [^>]*>", page)
    assert len(pictures) == 5 * (SHOWN + min(SHOWN, result.differing().total))
    assert all('src="data:image/png;base64,' in p and re.search('alt="[^"]+"', p) for p in pictures)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    shown = re.sub(r"<[^>]*>", "", page)
    for row in result.rows():
        assert row["images"] in shown
        assert f"{100 * row[BASE]['accuracy']:.1f}" in shown
    assert f"first {SHOWN} test images, not chosen" in shown


def test_the_page_says_what_was_measured_whatever_the_outcome(result):
    """With the networks' parts exchanged the page must say worse."""
    swap = {BASE: ENSEMBLE, ENSEMBLE: BASE}
    clean = {BASE: torch.ones(2, 500), ENSEMBLE: torch.zeros(2, 500)}
    page = render_quickstart(replace(result, clean=clean))
    assert re.search(r"The ensemble is <span class=\"worse\">worse</span> on: clean images", page)
    clean = {swap[network]: scores for network, scores in clean.items()}
    page = render_quickstart(replace(result, clean=clean))
    assert re.search(
        r"better</span>, with 95 % confidence over the images and in every seed, on:\s*clean", page
    )


def test_the_verdict_needs_an_interval_that_leaves_0_out():
    def row(low, high, *seeds):
        return {"images": f"{low}", "difference": {"interval": (low, high), "by_seed": seeds}}

    rows = [row(0.1, 0.2, 0.1), row(-0.2, -0.1, -0.1), row(-0.1, 0.1, 0.1), row(0.3, 0.4, -1, 2)]
    assert verdict(rows) == {"better": ["0.1"], "worse": ["-0.2"], "unclear": ["-0.1", "0.3"]}


def test_the_json_is_plain(result):
    values = json.loads(json.dumps(result.to_json()))
    assert values["table"][0]["images"] == "clean images"
    assert values["recipe"]["epsilon"] == 0.2
    assert len(values["training"]) == 4
    assert [row["epsilon"] for row in values["curve"]] == [0, 0.2, 0.4]
    assert values["held"]["both"] == result.differing().both


def test_the_picture_is_a_png(result):
    assert as_png(accuracy_bars(result.rows(), NETWORKS)).startswith(b"\x89PNG")


def test_the_paired_difference_covers_the_truth():
    for count in (20, 100):
        generator, covered = seeded(), 0
        for _ in range(400):
            easy = torch.rand(count, generator=generator)
            one = (torch.rand(count, generator=generator) < easy).float()
            two = (torch.rand(count, generator=generator) < (easy * 0.9)).float()
            _, low, high = paired_difference(one, two)
            covered += low <= 0.05 <= high
        assert 0.92 <= covered / 400 <= 0.99
    mean, low, high = paired_difference(torch.ones(50), torch.ones(50))
    assert low < mean == 0 < high  # fifty equal answers prove no equality
    with pytest.raises(ValueError, match="scores must be of the same images"):
        paired_difference(torch.ones(2), torch.ones(3))


def test_bad_input_is_met_before_any_work(capsys, tmp_path):
    assert main(["quickstart", "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err
    assert main(["quickstart", "--seeds", "0"]) == 2
    assert "seeds must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_the_quickstart_as_it_ships(tmp_path, capsys):
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    assert main(["quickstart", "--out", str(page), "--json", str(figures)]) == 0
    assert "ifgsm20, blind" in capsys.readouterr().out
    rows = {row["images"]: row for row in json.loads(figures.read_text())["table"]}
    for attack in ATTACKS:
        assert 0.2 <= rows[f"{attack}, white box"][BASE]["accuracy"] <= 0.8
    assert rows["clean images"][BASE]["accuracy"] > 0.9
