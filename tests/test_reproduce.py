"""enresnet reproduce: from an empty folder to tables, figures and claims, and on after a kill."""

import json
import re
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from enresnet.cli import main
from enresnet.paper import Reproduction, Setup, cost, load_claims, load_paper, make_plan, smoke
from enresnet.paper.published import Network
from enresnet.training import Run, load_recipe
from processes import finish, kill, start, wait_for

WORDS = ("table6", "--recipe", "smoke", "--seeds", "0")


def run(*words):
    assert main(["reproduce", *map(str, words)]) == 0


def files(folder, *, but=(".html",)):
    """Return the results in a folder, by name; its page tells the time that each run took."""
    place = Path(folder) / "reproduction" / "smoke"
    return {path.name: path.read_bytes() for path in place.iterdir() if path.suffix not in but}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A smoke run of Table 6: two networks, each blindly attacked by way of the other."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(*WORDS)
    return folder


def test_a_table_has_the_papers_figures_and_ours(whole):
    table = json.loads(files(whole)["table6.json"])
    assert "SMOKE RUN" in table["caption"]
    assert "epsilon = 0.2; in the paper by 8/255." in table["caption"]
    papers = [[cell["paper"] for cell in row["cells"]] for row in table["rows"]]
    assert papers == [[33.08, 30.79, 41.52], [34.15, 33.34, 48.21]]
    for row in table["rows"]:
        for cell in row["cells"]:
            ours = cell["measured"]
            assert 0 <= ours["low"] <= ours["mean"] <= ours["high"] <= 100
            assert ours["seeds"] == [0]
            assert ours["images"] == smoke.ATTACKED_IMAGES
            (folder,) = ours["runs"]
            assert Run.open(whole / folder).finished
    text = files(whole)["table6.md"].decode()
    (line,) = re.findall(r"\| ResNet20, attacks on En2ResNet20 \| under fgsm \| 33.08 .*", text)
    assert line.split(" | ")[4] == ""  # no difference: what is compared has nothing in common
    assert rb"\begin{table}" in files(whole)["table6.tex"]


def test_blind_accuracies_are_kept_with_the_network_that_classifies(whole):
    place = whole / "reproduction" / "cifar100" / "smoke" / "resnet20-seed0"
    sections = json.loads((place / "evaluation.json").read_text())
    (section,) = (name for name in sections if "blind" in name)
    entry = sections[section]["robust"]["fgsm"]
    assert entry["circumstances"]["source"]["run"].endswith("en2_resnet20-seed0")
    assert entry["settings"]["eot"] == 5  # the attacked network has noise


def test_nothing_is_done_twice(whole, monkeypatch, capsys):
    monkeypatch.chdir(whole)
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*.safetensors")}
    results = files(whole)
    run(*WORDS)
    assert "[" not in capsys.readouterr().out.partition("table6")[0]  # no job
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*.safetensors")} == before
    assert files(whole) == results


def test_a_blind_accuracy_is_of_the_source_that_there_is(whole, monkeypatch):
    """Trained anew, the source is another network: what was measured is not of it."""
    monkeypatch.chdir(whole)
    setup = Setup(recipe="smoke", seeds=(0,))
    source = Network("en2_resnet20", "robust", "cifar100")
    found = Reproduction(["table6"], setup)
    weights = found.index.folder(source, 0) / "best.safetensors"
    other = found.index.folder(Network("resnet20", "robust", "cifar100"), 0) / "best.safetensors"
    kept = weights.read_bytes()
    try:
        weights.write_bytes(other.read_bytes())
        rows = Reproduction(["table6"], setup).contents().tables[0].rows
        assert [[cell.measured for cell in row.cells] for row in rows] == [[None] * 3] * 2
    finally:
        weights.write_bytes(kept)


def test_shards_and_rows_make_the_same_files(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(*WORDS, "--only", "en2_resnet20")  # the training alone
    assert len(list(tmp_path.rglob("config.yaml"))) == 1
    run(*WORDS, "--shard", "2/2")
    run(*WORDS, "--shard", "1/2")
    run(*WORDS)
    assert files(tmp_path) == files(whole)


def test_a_part_takes_nothing_away(whole, tmp_path, monkeypatch):
    """The files are of all runs of the recipe, not of those of the last command."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    part = ("--recipe", "smoke", "--only", "resnet20", "--seeds")
    run("table6", *part, 1)
    assert files(tmp_path) == files(whole)
    run("table3", *part, 0)
    page = (tmp_path / "reproduction" / "smoke" / "index.html").read_text()
    (sixth,) = re.findall(r"<h3>Table 6:.*?</summary>", page, flags=re.S)
    assert "6 of 6 measured" in sixth


def test_killed_the_same_command_goes_on_to_the_same_files(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for begun in ("en2_resnet20-seed0/config.yaml", "evaluation.journal"):
        process = start("reproduce", *WORDS)
        wait_for(lambda begun=begun: list(tmp_path.rglob(begun)))
        kill(process)
    assert len(list(tmp_path.rglob("evaluation.json"))) < 2  # it was not through
    printed = finish("reproduce", *WORDS)
    assert "train reproduction/cifar100/smoke/resnet20-seed0" not in printed  # it was there
    assert files(tmp_path) == files(whole)


def test_runs_of_before_count(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("table6", "--recipe", "smoke", "--runs", whole, "--collect", "--json", "found.json")
    found = json.loads(Path("found.json").read_text())["tables"]["table6"]["rows"]
    expected = json.loads(files(whole)["table6.json"])["rows"]
    for row, there in zip(found, expected, strict=True):
        assert [c["measured"]["mean"] for c in row["cells"]] == [
            c["measured"]["mean"] for c in there["cells"]
        ]
    assert list(tmp_path.rglob("config.yaml")) == []
    run("table6", "--recipe", "smoke", "--runs", whole, "--collect", "--seeds", 1)
    assert capsys.readouterr().out.count("not run") == 6  # there is no such seed
    run("table6", "--recipe", "fast", "--runs", whole, "--collect")  # not of this recipe
    assert capsys.readouterr().out.count("not run") == 6


@pytest.mark.slow
def test_processes_share_the_work(whole, tmp_path, monkeypatch):
    """At the same time, in one folder: what one does, the other waits for."""
    monkeypatch.chdir(tmp_path)
    both = [start("reproduce", *WORDS) for _ in range(2)]
    printed = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    jobs = [line for out, _ in printed for line in out.splitlines() if line.startswith("[")]
    trained = [line.partition("train ")[2] for line in jobs if "] train " in line]
    assert len(trained) == len(set(trained)) == 2
    assert files(tmp_path) == files(whole)


# What there is to do.


def test_all_is_every_cell_and_every_claim():
    setup = Setup(recipe="fast", seeds=(0, 1))
    jobs = make_plan(["all"], setup)
    have = {(j.network, j.source, j.seed, m) for j in jobs for m in j.metrics}
    for seed in setup.seeds:
        for cell in load_paper().cells():
            assert (cell.network, cell.source, seed, cell.metric) in have
        for claim in load_claims().values():
            for side in claim.sides:
                assert (side.network, side.source, seed, claim.metric) in have
    keys = [(job.network, job.source, job.seed) for job in jobs]
    assert len(keys) == len(set(keys))
    done = set()
    for job in jobs:  # each after what it needs
        assert {(network, job.seed) for network in job.needs} <= done
        if job.source is None:
            done.add((job.network, job.seed))


def test_shards_are_all_of_the_work():
    setup = Setup(recipe="fast")
    parts = [Reproduction(["all"], setup, shard=f"{i}/3").jobs for i in (1, 2, 3)]
    assert sorted(map(repr, [job for part in parts for job in part])) == sorted(
        map(repr, make_plan(["all"], setup))
    )


def test_the_list_has_a_command_for_every_row(capsys):
    run("table2", "table3", "--recipe", "fast", "--seeds", 0, 1, "--limit", 100, "--list")
    lines = capsys.readouterr().out.splitlines()
    words = [shlex.split(line) for line in lines]
    assert len(lines) == len(set(lines)) == 2 * 16
    for command in words:
        assert command[:2] == ["enresnet", "reproduce"]
        run(*command[2:], "--list")  # each is a command of one row
        assert len(capsys.readouterr().out.splitlines()) == 1
    assert words[0][2:] == shlex.split("table2 --only resnet20 --seeds 0 --recipe fast --limit 100")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table11"], "target must be one of"),
        ([], "name what to reproduce"),
        (["table1", "--only", "resnet21"], "--only must name rows .* found 'resnet21'"),
        (["table1", "--shard", "3/2"], "--shard must be i/n with i from 1 to n"),
        (["table1", "--recipe", "nothing"], "unknown recipe 'nothing'"),
        (["table1", "--natural-recipe", "fast"], "natural_recipe must train networks naturally"),
        (["table1", "--seeds", "0", "0"], "seeds must name every seed once"),
        (["table1", "--seeds", "100"], "seeds must be below 100"),
        (["table1", "--data", "mnist"], "data must be one of cifar10, cifar100"),
        (["table2", "--data", "cifar100", "--list"], "found cifar100: table2 is on cifar10"),
        (["table1", "--runs", "nowhere"], "there is no folder nowhere"),
        (["table1", "--limit", "0"], "limit must be at least 2"),
        (["table1", "--list", "--json", "x"], "--json has no effect with --list"),
        (["table1", "--collect", "--limit", "9"], "--limit has no effect with --collect"),
        (["table1", "--collect", "--dry-run"], "--dry-run has no effect with --collect"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("recipe", "natural", "^recipe must train networks robustly, .* found objective natural:"),
        ("recipe", "trades", "^recipe .* found objective trades: name another"),
        ("recipe", {"noise": 0.0}, "^recipe .* found noise 0: give it noise"),
        ("recipe", {"weight_step": 0.1}, "^recipe .* found weight_step 0.1: set it to 0"),
        ("natural_recipe", "paper", "^natural_recipe must train networks naturally, .* found obj"),
        ("natural_recipe", {"objective": "natural", "noise": 0.0}, "^natural_recipe .* noise 0"),
    ],
)
def test_a_recipe_has_the_role_that_tables_give_it(option, given, message, tmp_path):
    """Otherwise networks stand under a heading that is not theirs."""
    if isinstance(given, dict):
        path = tmp_path / "own.yaml"
        path.write_text(yaml.safe_dump({**load_recipe("paper").to_dict(), **given}))
        given = str(path)
    with pytest.raises(ValueError, match=message):
        Setup(**{option: given})


def test_a_figure_that_was_not_drawn_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("fig5", "fig6", "--recipe", "fast", "--collect")
    shown = capsys.readouterr()
    assert "fig5 and fig6 were not drawn before" in " ".join(shown.err.split())
    assert "1 file in" in shown.out


def test_parts_of_one_base_have_seeds_of_their_own():
    setup = Setup()
    seeds = {
        model: setup.part_seeds(Network(model, "integrated", "cifar10"), 1)
        for model in ("en2_resnet20+en5_resnet20", "resnet20+resnet20", "resnet20+resnet44")
    }
    assert list(seeds.values()) == [[1, 101], [1, 101], [1, 1]]


def test_trainings_are_as_the_paper_has_them():
    setup = Setup(recipe="paper")
    network = Network("en2_resnet20", "without_noise", "cifar10")
    assert setup.config(network, 0).recipe.noise == 0
    assert setup.recipe_for("learned_weights").weight_step > 0
    trades = asdict(setup.recipe_for("trades"))
    assert trades == asdict(load_recipe("trades"))


def test_a_file_has_folders_of_its_own(tmp_path):
    """Named as a recipe of ours it would mix with that; changed, with what it was before."""
    path, network = tmp_path / "fast.yaml", Network("resnet20", "robust", "cifar10")
    shipped, names = Setup(recipe="fast"), set()
    for epochs in (shipped.recipe_for("robust").epochs, 22, 23):
        path.write_text(yaml.safe_dump(load_recipe("fast", epochs=epochs).to_dict()))
        own = Setup(recipe=str(path))
        assert own.recipe_for("robust").epochs == epochs
        names.add(own.name)
        assert own.place(network, 0).parts[1] == own.name
        assert re.fullmatch("fast(-[0-9a-f]{8})?", own.name)
        assert own.natural_name == shipped.natural_name
    assert len(names) == 3
    assert shipped.name == "fast"
    assert shipped.name in names  # the first is our recipe


def test_every_network_has_a_stand_in():
    for cell in load_paper().cells():
        assert smoke.stand_in(cell.network.model) != cell.network.model
    assert smoke.stand_in("en2_resnet110+en1_wrn34_10") == "en2_resnet14+en1_wrn10_2"


# What it would cost.


def test_the_cost_is_that_of_all_images_and_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "measure_speed", lambda _: cost.Speed(1e-3, 1e-4, 1e-5))
    setup = Setup(recipe="fast", seeds=(0, 1), limit=1000, strongest=0)
    (one, two) = cost.estimate_cost(
        Reproduction(["table2"], setup, tmp_path, only=["en1_resnet20"])
    )
    epochs = 21 * (0.6 + 0.4 / 4) * 45_000 * 1e-3  # at first with images of half the side
    validation = 5000 * (10 * 1e-4 + 2 * 5 * 1e-5)  # once, at the end
    assert one.training == pytest.approx(epochs + validation)
    natural = 10_000 * 10 * 1e-5
    passes = 5 * (1 + 20 + 51)  # FGSM, IFGSM20, C&W; EOT-5
    attacked = 1000 * (passes * 1e-4 + 3 * 10 * 1e-5)
    assert one.measuring == pytest.approx(natural + attacked)
    assert (two.training, two.measuring) == (one.training, one.measuring)
    blind = cost.estimate_cost(Reproduction(["table6"], setup, tmp_path))
    assert sum(c.training for c in blind) == pytest.approx(4 * one.training)  # each once


def test_a_dry_run_measures_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("table4", "--recipe", "smoke", "--only", "resnet20", "--dry-run", "--json", "cost.json")
    assert "timing resnet20" in capsys.readouterr().out
    assert [row["network"] for row in json.loads(Path("cost.json").read_text())][-1] == "all"
    assert [path.name for path in tmp_path.iterdir()] == ["cost.json"]


# Everything.


def test_a_smoke_run_of_everything(tmp_path, monkeypatch):
    """All tables, figures and claims, and no figure without a run behind it."""
    monkeypatch.chdir(tmp_path)
    run("all", "--recipe", "smoke", "--json", "all.json")
    found = json.loads(Path("all.json").read_text())
    assert list(found["tables"]) == list(load_paper().tables)
    assert list(found["claims"]) == list(load_claims())
    assert list(found["figures"]) == ["fig4", "fig5", "fig6"]
    cells = [c for t in found["tables"].values() for r in t["rows"] for c in r["cells"]]
    assert sum(cell["paper"] is not None for cell in cells) == len(list(load_paper().cells()))
    for cell in cells:
        assert cell["measured"]["seeds"] == list(smoke.SEEDS)
        for folder in cell["measured"]["runs"]:
            assert Run.open(folder).finished
    for table in found["tables"].values():
        assert smoke.CAPTION in table["caption"]
    for claim in found["claims"].values():
        assert claim["decision"] in ("holds", "fails", "undecided")
        assert claim["low"] <= claim["effect"] <= claim["high"]
        assert claim["p_value"] is not None
        assert claim["runs"]
        assert "means nothing" in claim["note"]
    for figure in found["figures"].values():
        assert smoke.CAPTION in figure["caption"]
        assert Path(figure["picture"]).read_bytes().startswith(b"\x89PNG")
    endings = {path.suffix for path in Path("reproduction/smoke").iterdir()}
    assert endings >= {".json", ".md", ".tex", ".png"}
