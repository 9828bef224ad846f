"""What runs say of the paper: figures only with a run behind them, verdicts only over seeds."""

import csv
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from enresnet.cli import main
from enresnet.data import Images
from enresnet.evaluation import Evaluation, group_accuracy
from enresnet.evaluation.aggregation import summarise
from enresnet.evaluation.scoring import Scored
from enresnet.paper import Setup, contents_of, load_claims, load_paper
from enresnet.paper.claims import Side
from enresnet.paper.evidence import NO_PAIR, ONE_SEED, Evidence
from enresnet.paper.measurement import eot_of, paper_attack, section_of
from enresnet.paper.outputs import CLAIMS_CAPTION
from enresnet.paper.published import Network
from enresnet.paper.run_index import RunIndex
from enresnet.training import Run, load_recipe
from problems import seeded

SETUP = Setup(recipe="fast")
IMAGES = 2000
NOISE = "noise-helps-en1_resnet20-natural"
MASKING = "no-gradient-masking-en2_resnet20-ifgsm20"


def accuracy(share, *, seed, attack=None, deterministic=True):
    """Return an accuracy of about a share; images are as easy or hard for every network."""
    ease = torch.arange(IMAGES) / IMAGES
    own = 0.02 * torch.rand(IMAGES, generator=seeded(seed))
    right = (0.98 * ease + own < share)[:, None]
    data = Images(torch.zeros(IMAGES, 1, 1, 1), torch.zeros(IMAGES).long(), ("a", "b"))
    kept = Scored(right, right, right, torch.ones(IMAGES))
    settings = None if attack is None else attack.settings()
    return summarise(
        kept, data, seconds=1.0, independent=True, deterministic=deterministic, settings=settings
    )


def write(
    out,
    network,
    seed,
    natural,
    robust=(),
    *,
    eot=None,
    epsilon=None,
    source=None,
    data="images",
    setup=SETUP,
    **joined,
):
    """Write the folder of a finished run with these accuracies."""
    config = replace(setup.config(network, seed), **joined)
    folder = out / setup.place(network, seed)
    run = Run.open(folder) if folder.exists() else Run.create(folder, config)
    run.weights("best").touch()
    run.weights("last").parent.mkdir(exist_ok=True)
    run.weights("last").touch()
    columns = ("epoch", "validation_natural", "validation_robust", "kept")
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({"epoch": n + 1} for n in range(config.recipe.epochs))
    attacked = config if source is None else setup.config(source, seed)
    found = {}
    for name, share in dict(robust).items():
        attack = paper_attack(name, epsilon or setup.epsilon, eot or eot_of(attacked))
        found[name] = accuracy(share, seed=seed, attack=attack, deterministic=eot_of(config) == 1)
    about = {
        "model": config.model,
        "weights": str(folder),
        "data_name": config.data,
        "checkpoint": "best",
    }
    run.results.add(
        section_of(setup, run, source),
        Evaluation(accuracy(natural, seed=seed), found),
        data=data,
        conditions={**about, "epsilon": 0.1, "source": {"sha256": None}},
    )
    return run


def network(model, training="robust"):
    return Network(model, training, "cifar10")


def evidence(out, setup=SETUP, **options):
    return Evidence(RunIndex(setup, out, **options))


def collect(*words):
    """Return what enresnet reproduce --collect finds, as JSON."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "found.json"
        assert main(["reproduce", *map(str, words), "--collect", "--json", str(path)]) == 0
        return json.loads(path.read_text())


def two(out, first, second, *, seeds=(0, 1, 2), **both):
    """Write En1ResNet20 and ResNet20 with these natural accuracies."""
    for seed in seeds:
        write(out, network("en1_resnet20"), seed, first, **both)
        write(out, network("resnet20"), seed, second, **both)


@pytest.mark.parametrize(
    ("first", "second", "decision"),
    [(0.75, 0.70, "holds"), (0.70, 0.75, "fails"), (0.701, 0.70, "undecided")],
)
def test_a_claim_is_decided_over_seeds(tmp_path, first, second, decision):
    two(tmp_path, first, second)
    verdict = evidence(tmp_path).verdict(load_claims()[NOISE])
    assert verdict.decision == decision
    assert verdict.paper_effect == 2.10
    assert verdict.effect == pytest.approx(100 * (first - second), abs=0.6)
    assert verdict.low < verdict.effect < verdict.high
    assert (verdict.p_value < 0.05) == (decision != "undecided")
    assert verdict.seeds == (0, 1, 2)
    assert len(verdict.runs) == 6


def test_one_training_a_side_decides_nothing(tmp_path):
    two(tmp_path, 0.8, 0.6, seeds=(0,))
    verdict = evidence(tmp_path).verdict(load_claims()[NOISE])
    assert verdict.decision == "undecided"
    assert verdict.effect > 15  # it is shown all the same
    assert verdict.note == ONE_SEED
    assert verdict.p_value is None
    assert "over images alone with fewer than two pairs" in CLAIMS_CAPTION


def test_only_pairs_of_seeds_count(tmp_path):
    two(tmp_path, 0.8, 0.6, seeds=(0, 1))
    write(tmp_path, network("resnet20"), 2, 0.1)
    assert evidence(tmp_path).verdict(load_claims()[NOISE]).seeds == (0, 1)


@pytest.mark.parametrize(("others", "note"), [((0, 2), ONE_SEED), ((2, 3), NO_PAIR)])
def test_seeds_without_a_partner_decide_nothing(tmp_path, others, note):
    for seed, other in zip((0, 1), others, strict=True):
        write(tmp_path, network("en1_resnet20"), seed, 0.8)
        write(tmp_path, network("resnet20"), other, 0.6)
    found = evidence(tmp_path, Setup(recipe="fast", seeds=(0, 1, 2, 3)))
    verdict = found.verdict(load_claims()[NOISE])
    assert (verdict.decision, verdict.note) == ("undecided", note)
    assert len(verdict.runs) == 2


def test_results_without_their_scores_do_not_count(tmp_path):
    run = write(tmp_path, network("resnet20"), 0, 0.7)
    (run.folder / "scores.safetensors").unlink()
    assert evidence(tmp_path).measured(Side(network("resnet20")), "natural") is None


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (["scores.safetensors"], "natural accuracy of ResNet20 was measured, but the scores"),
        (
            ["scores.safetensors", "evaluation.json"],
            "natural accuracy of ResNet20 was not measured",
        ),
    ],
)
def test_what_was_run_but_cannot_be_compared_says_why(tmp_path, lost, words, capsys):
    """It is not called "not run": the networks are there."""
    two(tmp_path, 0.8, 0.7)
    for seed in range(3):
        for name in lost:
            (tmp_path / SETUP.place(network("resnet20"), seed) / name).unlink()
    verdict = collect("claims", "--recipe", "fast", "--out", tmp_path)["claims"][NOISE]
    assert verdict["decision"] == "not comparable"
    assert words in verdict["note"]
    assert words in " ".join(capsys.readouterr().err.split())
    assert verdict["effect"] is None
    assert len(verdict["runs"]) == 6


def test_of_two_runs_that_with_results_counts(tmp_path, capsys):
    """Even if its folder comes later; and it is said that there are two."""
    for place in ("a", "b", "c"):
        write(tmp_path / place, network("resnet20"), 0, 0.7)
    for name in ("evaluation.json", "scores.safetensors"):
        (tmp_path / "a" / SETUP.place(network("resnet20"), 0) / name).unlink()
    runs = ("--runs", tmp_path / "a", tmp_path / "b")
    found = collect("table2", "claims", "--recipe", "fast", "--out", tmp_path / "new", *runs)
    table = found["tables"]["table2"]
    measured = table["rows"][0]["cells"][0]["measured"]
    taken, other = (tmp_path / p / SETUP.place(network("resnet20"), 0) for p in "ba")
    assert measured["runs"] == [str(taken)]
    sentence = f"There are 2 runs of resnet20 on cifar10, seed 0: {taken} counts, {other} does not"
    assert " ".join(capsys.readouterr().err.split()).count(sentence) == 1
    assert sentence in table["caption"]
    assert sentence in found["claims"][NOISE]["note"]
    alone = evidence(tmp_path / "c").table(load_paper().tables["table2"])
    assert "There are" not in alone.caption


def test_runs_of_another_recipe_are_named(tmp_path, capsys):
    run = write(tmp_path / "runs", network("resnet20"), 0, 0.7)
    for recipe, said in (("paper", True), ("fast", False)):
        places = ("--out", tmp_path / "new", "--runs", tmp_path / "runs")
        collect("table2", "--recipe", recipe, *places)
        err = " ".join(capsys.readouterr().err.split())
        sentence = (
            "1 run of a network shown as not run does not count, trained in another way than "
            f"recipe {recipe}: recipe fast ({run.folder})."
        )
        assert (sentence in err) == said
        assert bool(err) == said
        page = (tmp_path / "new" / recipe / "index.html").read_text()
        assert ("trained in another way" in page) == said


def test_a_part_of_the_seeds_or_tables_takes_nothing_away(tmp_path):
    """What a command prints is what it was asked for; the files are of all runs."""
    two(tmp_path, 0.8, 0.7, robust={"strongest": 0.4})
    out = ("--recipe", "fast", "--out", tmp_path)
    collect("table2", "claims", *out)
    place = tmp_path / "fast"
    table, claims, shown = (place / name for name in ("table2.json", "claims.json", "index.html"))
    rows, verdicts = json.loads(table.read_text())["rows"], json.loads(claims.read_text())
    page = shown.read_text()
    printed = collect("table2", *out, "--seeds", 1, "--strongest", 0)["tables"]["table2"]
    assert printed["rows"][0]["cells"][0]["measured"]["seeds"] == [1]
    collect("claims", *out, "--data", "cifar100", "--strongest", 0)
    assert json.loads(table.read_text())["rows"] == rows
    assert json.loads(claims.read_text()) == verdicts
    for section in ("tables", "claims"):
        cut = [text.partition(f'<section id="{section}"')[2] for text in (page, shown.read_text())]
        counts = [text.partition("</section>")[0].count('class="interval"') for text in cut]
        assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(
    ("parts", "weights", "counts"),
    [
        (("en2_resnet20-seed0", "en5_resnet20-seed0"), (0.5, 0.5), True),
        (("en2_resnet20-seed0", "en5_resnet20-seed0"), (0.95, 0.05), False),
        (("en2_resnet20-seed0", "en5_resnet20-natural"), (0.5, 0.5), False),
    ],
)
def test_an_integrated_run_has_the_right_parts(tmp_path, parts, weights, counts):
    whole = network("en2_resnet20+en5_resnet20", "integrated")
    seeds = SETUP.part_seeds(whole, 0)
    for part, seed in zip(whole.parts, seeds, strict=True):
        write(tmp_path, part, seed, 0.7)
    names = [n.replace("seed0", f"seed{s}") for n, s in zip(parts, seeds, strict=True)]
    write(tmp_path, whole, 0, 0.8, parts=tuple(names), weights=weights)
    (table,) = collect("table7", "--recipe", "fast", "--out", tmp_path)["tables"].values()
    (row,) = (row for row in table["rows"] if row["model"] == whole.model)
    assert (row["cells"][0]["measured"] is not None) == counts


@pytest.mark.parametrize(("partner", "counts"), [(3, True), (0, False)])
def test_a_part_may_have_any_other_seed(tmp_path, partner, counts):
    """Two networks of one seed begin with the same weights: they are not separate trainings."""
    whole = network("resnet20+resnet20", "integrated")
    parts = [write(tmp_path, whole.parts[0], seed, 0.7) for seed in {0, partner}]
    names = tuple(parts[number % len(parts)].folder.name for number in range(2))
    write(tmp_path, whole, 0, 0.8, parts=names, weights=(0.5, 0.5))
    (table,) = collect("simple", "--recipe", "fast", "--out", tmp_path)["tables"].values()
    (row,) = (row for row in table["rows"] if row["model"] == whole.model)
    assert (row["cells"][0]["measured"] is not None) == counts


def collapsed(run):
    """Let a training say that it collapsed in its second epoch."""
    rows = list(csv.DictReader((run.folder / "metrics.csv").read_text().splitlines()))
    rows[1]["note"] = "collapsed: PGD-5 accuracy fell from 20.0 % to 2.0 %; on with PGD-2"
    with (run.folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "note"])
        writer.writeheader()
        writer.writerows(rows)


def test_a_training_that_collapsed_does_not_count(tmp_path):
    """It went on in another way than its recipe says; it is named."""
    two(tmp_path, 0.75, 0.70)
    collapsed(Run.open(tmp_path / SETUP.place(network("resnet20"), 1)))
    found = evidence(tmp_path)
    verdict = found.verdict(load_claims()[NOISE])
    assert verdict.seeds == (0, 2)
    words = "resnet20-seed1 is left out: in epoch 2 it collapsed: PGD-5 accuracy fell from 20.0 %"
    assert words in verdict.note
    assert found.measured(Side(network("resnet20")), "natural").seeds == (0, 2)
    assert words in found.table(load_paper().tables["table2"]).caption


@pytest.mark.parametrize("place", ["", "elsewhere/cifar10/fast/"])
def test_nor_does_what_it_is_a_part_of(tmp_path, place):
    whole = network("resnet20+resnet20", "integrated")
    parts = [write(tmp_path, whole.parts[0], seed, 0.7) for seed in (0, 3)]
    names = tuple(place + part.folder.name for part in parts)
    write(tmp_path, whole, 0, 0.8, parts=names, weights=(0.5, 0.5))
    assert evidence(tmp_path, others=[tmp_path]).measured(Side(whole), "natural") is not None
    collapsed(parts[1])
    found = evidence(tmp_path, others=[tmp_path])
    assert found.measured(Side(whole), "natural") is None
    verdict = found.verdict(
        load_claims()["little-without-noise-resnet20+resnet20-integrated-natural"]
    )
    assert "of its part resnet20-seed3, in epoch 2 it collapsed" in verdict.note


def test_what_was_not_run_is_not_shown(tmp_path):
    write(tmp_path, network("en1_resnet20"), 0, 0.8)
    found = evidence(tmp_path)
    verdict = found.verdict(load_claims()[NOISE])
    assert (verdict.decision, verdict.effect, verdict.runs) == ("not run", None, ())
    table = found.table(load_paper().tables["table2"])
    cells = {(row.model, c.metric): c.measured for row in table.rows for c in row.cells}
    (key,) = (key for key, measured in cells.items() if measured is not None)
    assert key == ("en1_resnet20", "natural")
    assert cells[key].runs == (tmp_path / "cifar10" / "fast" / "en1_resnet20-seed0",)


def test_an_unfinished_run_does_not_count(tmp_path):
    run = write(tmp_path, network("resnet20"), 0, 0.7)
    assert evidence(tmp_path).measured(Side(network("resnet20")), "natural")
    lines = (run.folder / "metrics.csv").read_text().splitlines()
    (run.folder / "metrics.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert evidence(tmp_path).measured(Side(network("resnet20")), "natural") is None


def test_a_mean_is_over_its_seeds_and_its_interval_too(tmp_path):
    for seed, share in enumerate((0.6, 0.7, 0.8)):
        write(tmp_path, network("resnet20"), seed, share)
    found = evidence(tmp_path).measured(Side(network("resnet20")), "natural")
    assert found.mean == pytest.approx(70, abs=0.6)
    assert found.seeds == (0, 1, 2)
    assert found.images == IMAGES
    assert found.high - found.low > 40  # the seeds differ: 2.2 points over images alone
    one = evidence(tmp_path, Setup(recipe="fast", seeds=(1,)))
    alone = one.measured(Side(network("resnet20")), "natural")
    assert alone.high - alone.low < 5


def test_accuracies_under_other_attacks_do_not_count(tmp_path):
    """Without averaged gradients the noise hides the way."""
    side = Side(network("en1_resnet20"))
    write(tmp_path, side.network, 0, 0.7, {"ifgsm20": 0.5}, eot=1)
    assert evidence(tmp_path).measured(side, "ifgsm20") is None
    assert evidence(tmp_path).measured(side, "natural") is not None
    write(tmp_path, side.network, 1, 0.7, {"ifgsm20": 0.5})
    assert evidence(tmp_path).measured(side, "ifgsm20").seeds == (1,)


def test_attacks_are_at_the_papers_epsilon_whatever_the_training(tmp_path):
    """Accuracies at 4/255 beside the paper's at 8/255 would flatter."""
    path, side = tmp_path / "weak.yaml", Side(network("resnet20"))
    path.write_text(yaml.safe_dump(load_recipe("fast", epsilon=4 / 255).to_dict()))
    setup = Setup(recipe=str(path))
    run = write(tmp_path, side.network, 0, 0.7, {"ifgsm20": 0.7}, epsilon=4 / 255, setup=setup)
    assert evidence(tmp_path, setup).measured(side, "ifgsm20") is None
    run = write(tmp_path, side.network, 1, 0.7, {"ifgsm20": 0.4}, setup=setup)
    assert list(run.results.sections()) == ["best at epsilon 0.0313725"]  # as evaluate calls it
    found = evidence(tmp_path, setup)
    assert found.measured(side, "ifgsm20").seeds == (1,)
    caption = found.table(load_paper().tables["table2"]).caption
    assert "epsilon = 8/255, as in the paper; robust training by 4/255." in caption
    assert "epsilon = 8/255, as in the paper." in SETUP.caption
    assert "epsilon = 8/255, as in the paper" in contents_of([run]).tables[0].caption


@pytest.mark.parametrize(
    ("gain", "decision"), [(0.0, "holds"), (0.02, "undecided"), (0.06, "fails")]
)
def test_little_is_at_most_a_bound(tmp_path, gain, decision):
    for seed in range(3):
        write(tmp_path, network("en2_resnet20", "without_noise"), seed, 0.7 + gain)
        write(tmp_path, network("resnet20"), seed, 0.7)
    key = "little-without-noise-en2_resnet20-without_noise-natural"
    verdict = evidence(tmp_path).verdict(load_claims()[key])
    assert verdict.decision == decision
    assert (verdict.p_value < 0.05) == (decision != "undecided")  # of a gain of 2 points


@pytest.mark.parametrize(
    ("share", "decision"), [(0.0, "holds"), (0.02, "undecided"), (0.1, "fails")]
)
def test_about_zero_is_said_of_one_network(tmp_path, share, decision):
    side = network("en2_resnet20", "natural")
    for seed in range(2):
        write(tmp_path, side, seed, 0.9, {"ifgsm20": share})
    verdict = evidence(tmp_path).verdict(load_claims()["no-gradient-masking-en2_resnet20-ifgsm20"])
    assert verdict.decision == decision
    assert verdict.paper_effect == 0.02
    assert len(verdict.runs) == 2


def test_seeds_of_different_precisions_are_of_one_kind(tmp_path):
    """In tables and in claims alike, on one network and on two; and it is said."""
    words = "Trained in different precisions: 32, bf16."
    for seed, precision in enumerate(("bf16", "32")):
        for model in ("en1_resnet20", "resnet20"):
            write(tmp_path, network(model), seed, 0.7, precision=precision)
        natural = network("en2_resnet20", "natural")
        write(tmp_path, natural, seed, 0.9, {"ifgsm20": 0.0}, precision=precision)
    found = evidence(tmp_path)
    assert found.measured(Side(network("resnet20")), "natural").seeds == (0, 1)
    assert f"ResNet20: {words}" in found.table(load_paper().tables["table2"]).caption
    two_sided = found.verdict(load_claims()[NOISE])
    alone = found.verdict(load_claims()[MASKING])
    assert (two_sided.decision, alone.decision) == ("undecided", "holds")
    assert words in two_sided.note
    assert words in alone.note


def test_a_group_that_is_none_hinders_one_claim_alone(tmp_path):
    """Two seeds of the same weights are one training."""
    for seed in range(2):
        run = write(tmp_path, network("en2_resnet20", "natural"), seed, 0.9, {"ifgsm20": 0.0})
        stored = json.loads((run.folder / "evaluation.json").read_text())
        stored["best"]["weights"] = "of one training"
        (run.folder / "evaluation.json").write_text(json.dumps(stored))
    two(tmp_path, 0.8, 0.7)
    claims = collect("claims", "--recipe", "fast", "--out", tmp_path)["claims"]
    assert claims[MASKING]["decision"] == "not comparable"
    assert "hold the same weights" in claims[MASKING]["note"]
    assert claims[NOISE]["decision"] == "holds"


def doctored(run, change):
    """Change what a run's evaluation.json says of all its accuracies."""
    stored = json.loads((run.folder / "evaluation.json").read_text())
    for entry in (stored["best"]["natural"], *stored["best"]["robust"].values()):
        change(entry)
    (run.folder / "evaluation.json").write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e.update(images=9), "is of 9 images, its scores are of 2000"),
        (lambda e: e.update(data="0"), "and its scores are of different images"),
        (lambda e: e["circumstances"].update(data_name="cifar100"), "is on cifar100, it was train"),
    ],
)
def test_scores_are_of_the_images_that_the_accuracy_is_of(tmp_path, change, words):
    side = Side(network("en2_resnet20", "natural"))
    for seed in range(2):
        run = write(tmp_path, side.network, seed, 0.9, {"ifgsm20": 0.0})
        doctored(run, change)
    found = evidence(tmp_path)
    assert found.measured(side, "ifgsm20") is None
    verdict = found.verdict(load_claims()[MASKING])
    assert verdict.decision == "not comparable"
    assert words in verdict.note
    good = write(tmp_path, side.network, 2, 0.9, {"ifgsm20": 0.0})
    assert evidence(tmp_path).measured(side, "ifgsm20").runs == (good.folder,)


def test_seeds_on_different_images_are_not_averaged(tmp_path):
    side = Side(network("en2_resnet20", "natural"))
    for seed in range(2):
        write(tmp_path, side.network, seed, 0.9, {"ifgsm20": 0.0}, data=f"images {seed}")
    found = evidence(tmp_path)
    assert found.measured(side, "ifgsm20") is None
    verdict = found.verdict(load_claims()[MASKING])
    assert verdict.decision == "not comparable"
    assert "was measured on different images" in verdict.note


def test_a_training_counts_once(tmp_path):
    side = Side(network("resnet20"))
    for seed in range(2):
        run = write(tmp_path, side.network, seed, 0.7)
        stored = json.loads((run.folder / "evaluation.json").read_text())
        stored["best"]["weights"] = "of one training"
        (run.folder / "evaluation.json").write_text(json.dumps(stored))
    found = evidence(tmp_path)
    assert found.measured(side, "natural").seeds == (0,)
    assert "hold the same weights" in found.table(load_paper().tables["table2"]).caption


@pytest.mark.parametrize("name", ["config.yaml", "evaluation.json", "scores.safetensors"])
def test_a_run_that_cannot_be_read_is_named_and_left_out(tmp_path, name, capsys):
    """In tables and claims; also a config.yaml of somebody else."""
    two(tmp_path, 0.8, 0.7)
    bad = tmp_path / SETUP.place(network("resnet20"), 1)
    (bad / name).write_bytes(b"x: 1" if name == "config.yaml" else (bad / name).read_bytes()[:20])
    found = collect("table2", "claims", "--recipe", "fast", "--out", tmp_path)
    assert found["tables"]["table2"]["rows"][0]["cells"][0]["measured"]["seeds"] == [0, 2]
    assert found["claims"][NOISE]["decision"] == "holds"
    assert found["claims"][NOISE]["seeds"] == [0, 2]
    assert f"{bad} is left out" in " ".join(capsys.readouterr().err.split())


def test_a_caption_says_how_many_images_were_measured(tmp_path):
    """Not how many were asked for: runs of before have their own number."""
    write(tmp_path, network("resnet20"), 0, 0.7, {"fgsm": 0.5})
    for setup in (SETUP, Setup(recipe="fast", limit=20, strongest=4)):
        caption = evidence(tmp_path, setup).table(load_paper().tables["table2"]).caption
        assert f"Test images measured: natural {IMAGES}, fgsm {IMAGES}." in caption
        assert "are attacked" not in caption
    assert (
        "Test images"
        not in evidence(tmp_path / "none").table(load_paper().tables["table2"]).caption
    )


def test_comparable_is_within_a_bound(tmp_path):
    key = "as-robust-as-trades-en1_wrn34_10-ifgsm20"
    for seed in range(2):
        write(tmp_path, network("en1_wrn34_10"), seed, 0.8, {"ifgsm20": 0.55})
        write(tmp_path, network("wrn34_10", "trades"), seed, 0.8, {"ifgsm20": 0.60})
    assert evidence(tmp_path).verdict(load_claims()[key]).decision == "fails"


def test_blind_accuracies_are_compared_in_both_directions(tmp_path):
    plain, ensemble = network("resnet20"), network("en5_resnet20")
    for seed in range(2):
        write(tmp_path, plain, seed, 0.7, {"fgsm": 0.5}, source=ensemble)
        write(tmp_path, ensemble, seed, 0.7, {"fgsm": 0.6}, source=plain)
    found = evidence(tmp_path)
    verdict = found.verdict(load_claims()["blind-en5_resnet20-from-resnet20-fgsm"])
    assert verdict.decision == "holds"
    assert verdict.effect == pytest.approx(10, abs=1)
    assert found.measured(Side(plain), "fgsm") is None  # not a white-box attack


def test_a_contradiction_of_the_paper_is_said(tmp_path):
    verdict = evidence(tmp_path).verdict(
        load_claims()["natural-ensembles-help-en2_resnet110-natural"]
    )
    assert verdict.note == "The paper's own numbers contradict it: -0.81 points."
    table = evidence(tmp_path).table(load_paper().tables["table1"])
    (row,) = (row for row in table.rows if row.model == "en2_resnet110")
    assert "94.30" in row.cells[0].note


def test_runs_of_another_recipe_do_not_count(tmp_path):
    write(tmp_path, network("resnet20"), 0, 0.7, setup=Setup(recipe="fast"))
    for recipe, found in (("fast", True), ("paper", False)):
        other = evidence(tmp_path / "new", Setup(recipe=recipe), others=[tmp_path])
        assert (other.measured(Side(network("resnet20")), "natural") is not None) == found


def test_contents_of_whatever_runs_there_are(tmp_path):
    """The recipe of most runs counts, and all seeds that there are."""
    two(tmp_path, 0.75, 0.70, seeds=(0, 7))
    odd = write(tmp_path, network("en2_resnet20"), 0, 0.7, setup=Setup(recipe="paper"))
    runs = [Run.open(path.parent) for path in sorted(tmp_path.rglob("config.yaml"))]
    assert odd.folder in [run.folder for run in runs]
    contents = contents_of(runs)
    (verdict,) = (v for v in contents.verdicts if v.key == NOISE)
    assert (verdict.decision, verdict.seeds) == ("holds", (0, 7))
    table = next(table for table in contents.tables if table.key == "table2")
    cells = {row.model: row.cells[0].measured for row in table.rows}
    assert cells["en1_resnet20"].seeds == (0, 7)
    assert cells["en2_resnet20"] is None
    assert "recipe fast" in table.caption
    empty = contents_of([])
    assert {v.decision for v in empty.verdicts} == {"not run"}


def test_a_measured_run_counts_before_many_that_are_not(tmp_path):
    for seed in (0, 1, 2):
        (write(tmp_path, network("resnet20"), seed, 0.6).folder / "evaluation.json").unlink()
    write(tmp_path, network("resnet20"), 0, 0.7, setup=Setup(recipe="paper"))
    runs = [Run.open(path.parent) for path in sorted(tmp_path.rglob("config.yaml"))]
    assert len(runs) == 4
    table = next(one for one in contents_of(runs).tables if one.key == "table2")
    cells = {row.model: row.cells[0].measured for row in table.rows}
    assert cells["resnet20"].seeds == (0,)
    assert "recipe paper" in table.caption


def test_the_interval_of_a_group_covers():
    """Over trainings of which each has luck of its own."""
    generator, covered = seeded(3), 0
    for _ in range(300):
        luck = 0.7 + 0.05 * torch.randn(3, 1, generator=generator)
        scores = (torch.rand(3, 500, generator=generator) < luck).double()
        mean, low, high = group_accuracy({str(n): one for n, one in enumerate(scores)})
        assert low <= mean <= high
        covered += low <= 0.7 <= high
    assert covered / 300 >= 0.925
