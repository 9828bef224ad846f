"""Several seeds a side: intervals cover, false alarms are rare, and only like runs make a group."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributions import Normal

import enresnet
from enresnet.cli import main
from enresnet.data import Images
from enresnet.evaluation import Evaluation, compare_scores, holm
from enresnet.evaluation.aggregation import summarise
from enresnet.evaluation.groups import compare_groups
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.evaluation.scoring import Scored
from enresnet.training import Run, RunConfig, load_recipe
from problems import SmallNet, seeded

PHI = Normal(0.0, 1.0).cdf
EASE, KIND, OWN = 1.5, 0.4, 1.1  # spreads: of images, of a method on an image, of a run on an image


def two_methods(runs, images, luck, means, generator, *, shared=0.0):
    """Return right and wrong answers of two methods: {seed: scores} each.

    ``luck`` is the spread of trainings, of which seeds share a part where methods are paired.
    """
    ease = EASE * torch.randn(images, generator=generator)
    common = math.sqrt(shared) * luck * torch.randn(max(runs), 1, generator=generator)
    sides = []
    for count, mean in zip(runs, means, strict=True):
        own = math.sqrt(1 - shared) * luck * torch.randn(count, 1, generator=generator)
        kind = KIND * torch.randn(images, generator=generator)
        noise = OWN * torch.randn(count, images, generator=generator)
        right = (mean + common[:count] + own + ease + kind + noise > 0).double()
        sides.append({str(number): right[number] for number in range(count)})
    return sides


def expected(mean, luck):
    spread = math.sqrt(EASE**2 + KIND**2 + OWN**2 + luck**2)
    return float(PHI(torch.tensor(mean / spread)))


@pytest.mark.parametrize(
    ("paired", "runs"),
    [
        *((True, runs) for runs in ((2, 2), (3, 3), (5, 5))),
        *((False, runs) for runs in ((2, 2), (3, 3), (5, 5), (2, 5))),
    ],
)
@pytest.mark.parametrize("luck", [0.0, 0.02, 0.1])  # 0, 0.5 and 2.5 points of a training's accuracy
def test_intervals_cover_and_false_alarms_are_rare(paired, runs, luck):
    """From two seeds up, whether seeds or images vary most, and of equal methods too."""
    generator, repeats = seeded(runs[1]), 400
    for means, images in (((0.0, 0.0), 300), ((0.2, 0.0), 1500)):
        truth = expected(means[0], luck) - expected(means[1], luck)
        covered = called = 0
        for _ in range(repeats):
            shared = 0.5 if paired else 0.0
            sides = two_methods(runs, images, luck, means, generator, shared=shared)
            found = compare_groups(*sides, paired=paired)
            covered += found.interval[0] <= truth <= found.interval[1]
            called += found.verdict != "undecided"
        assert covered / repeats >= 0.925
        if truth == 0:
            assert called / repeats <= 0.075


@pytest.mark.parametrize("lucks", [(0.2, 0.2), (0.2, 0.06), (0.06, 0.2)])
@pytest.mark.parametrize("runs", [(2, 3), (2, 5), (2, 10)])
def test_sides_of_different_size_and_luck_raise_no_false_alarms(runs, lucks):
    """The estimated degrees of freedom of a sum would: in one comparison of ten."""
    generator, called, repeats = seeded(9), 0, 500
    for _ in range(repeats):
        scores = [
            0.5 + 0.1 * luck * torch.randn(count, 1, generator=generator) + 0.01 * ease
            for ease in [torch.randn(100, generator=generator)]
            for count, luck in zip(runs, lucks, strict=True)
        ]
        sides = [{str(n): one for n, one in enumerate(side)} for side in scores]
        called += compare_groups(*sides, paired=False).verdict != "undecided"
    assert called / repeats <= 0.06


def test_holm_allows_for_the_number_of_tests():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_each_seed_is_compared_with_itself():
    """In whatever order its runs were named."""
    scores = {"a": 0.1, "b": 0.4, "c": 0.8}
    first = {seed: torch.full((50,), scores[seed] + 0.1) for seed in "abc"}
    second = {seed: torch.full((50,), scores[seed]) for seed in "cab"}
    found = compare_groups(first, second, paired=True)
    assert found.by_seed == pytest.approx({"a": 0.1, "b": 0.1, "c": 0.1})


def test_images_alone_would_raise_false_alarms():
    """What the comparison of single runs gets wrong when it is read as one of methods."""
    generator, alone, groups = seeded(), 0, 0
    for _ in range(200):
        one, two = two_methods((3, 3), 3000, 0.1, (0.0, 0.0), generator)
        alone += compare_scores(one["0"], two["0"]).verdict != "undecided"
        groups += compare_groups(one, two, paired=True).verdict != "undecided"
    assert alone / 200 > 0.3
    assert groups / 200 <= 0.075


def test_a_difference_is_found():
    generator, found = seeded(), 0
    for _ in range(100):
        sides = two_methods((5, 5), 3000, 0.02, (0.15, 0.0), generator, shared=0.5)
        found += compare_groups(*sides, paired=True).verdict == "better"
    assert found >= 95


def test_the_interval_and_the_p_value_agree():
    generator, decided = seeded(5), 0
    for number in range(300):
        runs = ((2, 2), (3, 3), (4, 4))[number % 3]
        means = (0.15 * (number % 2), 0.0)
        sides = two_methods(runs, 300, 0.05, means, generator)
        found = compare_groups(*sides, paired=number % 4 < 2)
        low, high = found.interval
        assert (found.p_value < 0.05) == (not low <= 0 <= high)
        assert low <= found.difference <= high
        decided += found.p_value < 0.05
    assert 10 < decided < 290


def test_what_cannot_be_compared():
    scores = torch.ones(10)
    with pytest.raises(ValueError, match="two runs each.*found 1 and 2 runs"):
        compare_groups({"0": scores}, {"0": scores, "1": scores}, paired=False)
    with pytest.raises(ValueError, match="on 9, 10 images"):
        compare_groups({"0": scores, "1": scores}, {"0": scores, "1": scores[:9]}, paired=False)
    with pytest.raises(ValueError, match="the same seeds, found 0, 1 and 0, 2"):
        compare_groups({"0": scores, "1": scores}, {"0": scores, "2": scores}, paired=True)
    equal = compare_groups({"0": scores, "1": scores}, {"0": scores, "1": scores}, paired=True)
    assert equal.p_value == 1
    assert equal.interval[0] < 0 < equal.interval[1]


RECIPE = load_recipe("fast")


def write_run(folder, scores, *, model="resnet8", seed=0, commit="c1", robust=(), **changes):
    """Write a run that was evaluated with these scores on clean images, and under attacks."""
    run = Run.create(folder, RunConfig(model, "digits", replace(RECIPE, **changes), seed=seed))
    right = scores.bool()[:, None]
    data = Images(torch.zeros(len(right), 1, 1, 1), torch.zeros(len(right)).long(), ("a", "b"))
    kept = Scored(right, right, right, torch.ones(len(right)))
    about = {"model": model, "weights": f"{folder}", "data_name": "d", "checkpoint": "best"}
    how = {"seconds": 1.0, "independent": True, "deterministic": True}
    attacked = {name: summarise(kept, data, settings={"epsilon": 0.1}, **how) for name in robust}
    ResultsFolder(folder).add(
        "best",
        Evaluation(summarise(kept, data, **how), attacked),
        data="images",
        conditions={**about, "epsilon": 0.1},
    )
    (folder / "environment.json").write_text(json.dumps([{"commit": commit}]))
    return run


@pytest.fixture
def groups(tmp_path):
    sides = two_methods((3, 3), 2000, 0.01, (0.4, 0.0), seeded(7))
    folders = []
    for model, side in zip(("en1_resnet8", "resnet8"), sides, strict=True):
        folders.append([tmp_path / f"{model}-{seed}" for seed in side])
        for folder, (seed, scores) in zip(folders[-1], side.items(), strict=True):
            # One was evaluated on more images than the others: the common ones count.
            number = 2000 if seed == "0" else 1500
            write_run(folder, scores[:number], model=model, seed=int(seed))
    return [[str(folder) for folder in side] for side in folders]


class TestCommand:
    def test_groups_are_paired_by_seed(self, groups, tmp_path, capsys):
        out, table = tmp_path / "out.json", tmp_path / "table.md"
        words = [*groups[0], "--against", *groups[1], "--json", out, "--markdown", table]
        assert main(["compare", *map(str, words)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "en1_resnet8 (3 runs) less resnet8 (3 runs)" in shown
        assert "Paired by seed: 0, 1, 2." in shown
        assert "over pairs of seeds and images" in shown
        assert "these weights" not in shown
        value = json.loads(out.read_text())["compared"]["natural"]
        assert value["verdict"] == "better"
        assert value["images"] == 1500
        assert value["runs"] == [3, 3]
        assert list(value["by_seed"]) == ["0", "1", "2"]
        assert value["difference"] == pytest.approx(value["first"] - value["second"])
        assert "en1_resnet8 (3 runs) less" in table.read_text()

    def test_one_run_a_side_says_so(self, groups, capsys):
        assert main(["compare", groups[0][0], groups[1][0]]) == 0
        shown = capsys.readouterr().out
        assert "the verdict is on these weights" in shown
        assert "same weights" not in shown
        assert main(["compare", groups[0][0], groups[0][0]]) == 0
        assert "Both sides hold the same weights." in capsys.readouterr().out

    def test_seeds_without_a_partner_are_left_out(self, groups, capsys):
        assert main(["compare", *groups[0], "--against", *groups[1][1:]]) == 0
        shown = capsys.readouterr().out
        assert "Left out of en1_resnet8 (3 runs): seed 0" in shown
        assert "Paired by seed: 1, 2." in shown

    def test_other_seeds_are_two_groups(self, groups, tmp_path, capsys):
        others = []
        for number, folder in enumerate(groups[1]):
            config = tmp_path / f"resnet8-{number}" / "config.yaml"
            config.write_text(config.read_text().replace(f"seed: {number}", f"seed: {number + 5}"))
            others.append(folder)
        assert main(["compare", *groups[0], "--against", *others]) == 0
        assert "compared as two groups" in capsys.readouterr().out

    def test_other_commits_are_told_of(self, groups, tmp_path, capsys):
        (tmp_path / "resnet8-1" / "environment.json").write_text('[{"commit": "c2"}]')
        assert main(["compare", *groups[0], "--against", *groups[1]]) == 0
        assert "different commits: c1, c2" in capsys.readouterr().out

    def test_what_one_run_lacks_is_named(self, tmp_path, capsys):
        scores = torch.arange(40) % 2
        for model in ("en1_resnet8", "resnet8"):
            for seed in (0, 1):
                robust = () if (model, seed) == ("resnet8", 1) else ("fgsm",)
                folder = tmp_path / f"{model}-{seed}"
                own = scores.roll(seed + len(model))
                write_run(folder, own, model=model, seed=seed, robust=robust)
        first, second = (
            [str(tmp_path / f"{m}-{n}") for n in (0, 1)] for m in ("en1_resnet8", "resnet8")
        )
        assert main(["compare", *first, "--against", *second]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"fgsm is not compared: it was not measured for {second[1]}" in shown

    def test_scores_of_another_run_are_refused(self, groups, capsys):
        shutil.copy(f"{groups[1][0]}/scores.safetensors", groups[1][1])
        assert main(["compare", *groups[0], "--against", *groups[1]]) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert "they are not of one evaluation; evaluate again" in shown

    def test_a_collapse_is_told_of(self, groups, capsys):
        note = "collapsed: PGD-5 accuracy fell from 20.0 % to 2.0 %; back, and on with PGD-2"
        (Path(groups[1][2]) / "metrics.csv").write_text(
            f'epoch,validation_natural,validation_robust,note\n1,0.5,0.4,\n2,0.5,0.4,"{note}"\n'
        )
        for words in ([groups[0][2], groups[1][2]], [*groups[0], "--against", *groups[1]]):
            assert main(["compare", *words]) == 0
            shown = " ".join(capsys.readouterr().out.split())
            assert f"resnet8-2: in epoch 2 it {note}." in shown

    def test_other_recipes_are_told_of(self, groups, capsys):
        for folder in groups[1]:
            config = Path(folder) / "config.yaml"
            text = config.read_text()
            assert "  epochs: " in text
            config.write_text(re.sub(r"  epochs: \d+", "  epochs: 77", text))
        for words in ([groups[0][2], groups[1][2]], [*groups[0], "--against", *groups[1]]):
            assert main(["compare", *words]) == 0
            shown = " ".join(capsys.readouterr().out.split())
            assert re.search(r"The sides differ in recipe.epochs \d+ and 77\.", shown)

    def test_bad_groups(self, groups, tmp_path, capsys):
        def error(*words):
            assert main(["compare", *map(str, words)]) == 2
            return " ".join(capsys.readouterr().err.split())

        first, second = groups
        assert "found 3 runs: name two, or more with --against" in error(*first)
        assert "before --against" in error("--against", *second)
        assert "has one run and" in error(first[0], "--against", *second)
        mixed = error(*first[:2], second[2], "--against", *second)
        assert "differ in more than their seed (model 'en1_resnet8' and 'resnet8')" in mixed
        assert "hold the same weights" in error(first[0], first[0], "--against", *second)
        copy = tmp_path / "copy"
        write_run(copy, torch.ones(100), model="en1_resnet8", seed=0)
        assert "the same seed" in error(first[0], copy, "--against", *second)
        shutil.rmtree(copy)
        write_run(copy, torch.ones(100), model="en1_resnet8", seed=9, weight_decay=0.1)
        assert "recipe.weight_decay 0.0005 and 0.1" in error(first[0], copy, "--against", *second)


class TestPython:
    """`enresnet.compare` says what the command says."""

    def test_two_runs(self, groups, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "120")
        found = enresnet.compare(groups[0][0], Path(groups[1][0]) / "evaluation.json")
        assert main(["compare", groups[0][0], groups[1][0]]) == 0
        assert capsys.readouterr().out == f"{found}\n"
        assert "<td>clean</td>" in found._repr_html_()
        (row,) = found.rows()
        assert row["low"] <= row["difference"] <= row["high"]
        assert row["number"] == 2000

    def test_several_seeds_a_side(self, groups, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "120")
        runs = [Run.open(Path(folder)) for folder in groups[0]]
        found = enresnet.compare(runs, groups[1])
        out = tmp_path / "out.json"
        assert main(["compare", *groups[0], "--against", *groups[1], "--json", str(out)]) == 0
        assert capsys.readouterr().out == f"{found}\n"
        assert json.loads(out.read_text()) == json.loads(json.dumps(found.to_json()))
        (row,) = found.rows()
        assert row["first"] - row["second"] == pytest.approx(row["difference"])

    def test_evaluations_in_memory(self):
        images, labels = torch.rand(30, 3, 8, 8, generator=seeded()), torch.arange(30) % 4
        models = [SmallNet(seed=seed).eval() for seed in range(4)]
        made = [enresnet.evaluate(m, (images, labels), "fgsm", warn=False) for m in models]
        found = enresnet.compare(made[0], made[1])
        assert list(found.compared) == ["natural", "fgsm"]
        assert found.title == "the first less the second"
        expected = compare_scores(made[0].natural.scores, made[1].natural.scores)
        assert found.compared["natural"] == expected
        methods = enresnet.compare(made[:2], made[2:])
        assert methods.compared["fgsm"].runs == (2, 2)
        fewer = enresnet.evaluate(models[0], (images, labels), warn=False, limit=20)
        assert enresnet.compare(fewer, made[1]).compared["natural"].images == 20
        other = enresnet.evaluate(models[0], (images / 2, labels), warn=False)
        with pytest.raises(ValueError, match="clean is not compared: measured on other images"):
            enresnet.compare(other, made[1])

    def test_runs_of_different_limits_are_compared_on_the_images_that_both_have(
        self, tmp_path, capsys
    ):
        """A run's limit cuts its test images too: 40 and 60 of them, of which 30 are measured."""
        runs = [str(tmp_path / str(limit)) for limit in (40, 60)]
        for run, limit in zip(runs, ("40", "60"), strict=True):
            words = "--model resnet8 --data digits --epochs 1 --limit"
            assert main(["train", *words.split(), limit, "--out", run]) == 0
            assert main(["evaluate", run, "--attacks", "fgsm", "--limit", "30"]) == 0
            said = f"{run} was trained with --limit {limit}, which holds for its test images too"
            assert said in capsys.readouterr().err
        found = enresnet.compare(*runs)
        assert {name: value.images for name, value in found.compared.items()} == {
            "natural": 30,
            "fgsm": 30,
        }
        for run in runs:
            assert main(["evaluate", run, "--attacks", "fgsm", "--again"]) == 0
        with pytest.raises(ValueError, match=r"evaluate all runs with one --limit, the smallest"):
            enresnet.compare(*runs)

    def test_what_is_no_source(self, groups, tmp_path):
        with pytest.raises(TypeError, match="second must be a run, its folder or an Evaluation"):
            enresnet.compare(groups[0][0], 3)
        with pytest.raises(ValueError, match="first must hold at least one"):
            enresnet.compare([], groups[1])
        with pytest.raises(ValueError, match="tries must be at least 1"):
            enresnet.compare(*groups, tries=0)
        with pytest.raises(FileNotFoundError, match="has no evaluation of 'best'"):
            enresnet.compare(tmp_path, groups[1][0])
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            enresnet.load_results(groups[0][0])["best"].save(tmp_path / name / "evaluation.json")
        with pytest.raises(ValueError, match=r"one has no scores.safetensors"):
            enresnet.compare(tmp_path / "one", tmp_path / "two")
