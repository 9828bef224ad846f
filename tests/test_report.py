"""The quickstart, on a plan small enough for a test, and its page."""

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
from enresnet.paper.quickstart import SHOWN
from enresnet.report import quickstart_page
from enresnet.report.figures import accuracy_bars
from enresnet.report.html import verdict
from enresnet.report.quickstart import ATTACKS, BASE, ENSEMBLE, NETWORKS, Plan
from enresnet.training import load_recipe
from problems import seeded


@pytest.fixture(scope="module")
def result():
    plan = Plan(
        recipe=load_recipe("quickstart", epochs=2, steps=1),
        images={"fgsm": 300, "ifgsm20": 12, "cw_pixel": 9},
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
    (mine,) = (a for a in result.attacked if (a.source, a.attack, a.seed) == (BASE, "ifgsm20", 1))
    blind = result.scores(ENSEMBLE, "ifgsm20", source=BASE)
    torch.testing.assert_close(blind[12:24], mine.scores[ENSEMBLE])
    assert not torch.equal(blind, result.scores(ENSEMBLE, "ifgsm20"))


def test_the_ensemble_is_attacked_over_its_noise(result):
    settings = {(a.source, a.attack): a.settings for a in result.attacked}
    assert all(("eot=5" in text) == (key[0] == ENSEMBLE) for key, text in settings.items())
    # The paper's step of 6e-4 at 8/255, scaled to this epsilon
    scaled = 6e-4 * 0.2 * 255 / 8
    assert f"step_size={scaled:.4g}" in settings[BASE, "cw_pixel"]


def test_both_networks_train_for_the_same_epochs(result):
    assert {len(t.epochs) for t in result.trained} == {2}
    assert [(t.network, t.seed) for t in result.trained] == [
        (network, seed) for network in (ENSEMBLE, BASE) for seed in (0, 1)
    ]


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
    page = quickstart_page(result)
    parser = Links()
    parser.feed(page)
    assert parser.open == []
    assert all(link.startswith(("data:", "#")) for link in parser.found)
    assert "<script" not in page
    assert page.count("<svg") == 2
    assert "data:image/png;base64," in page
    shown = re.sub(r"<[^>]*>", "", page)
    for row in result.rows():
        assert row["images"] in shown
        assert f"{100 * row[BASE]['accuracy']:.1f}" in shown
    assert f"first {SHOWN} test images, not chosen" in shown


def test_the_page_says_what_was_measured_whatever_the_outcome(result):
    """With the networks' parts exchanged the page must say worse."""
    swap = {BASE: ENSEMBLE, ENSEMBLE: BASE}
    clean = {BASE: torch.ones(2, 500), ENSEMBLE: torch.zeros(2, 500)}
    page = quickstart_page(replace(result, clean=clean))
    assert re.search(r"It is <span class=\"worse\">worse</span> on: clean images", page)
    clean = {swap[network]: scores for network, scores in clean.items()}
    page = quickstart_page(replace(result, clean=clean))
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
