"""The commands that measure: sets that are whole, tables that tell all, words for bad input."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from enresnet.attacks import PGD
from enresnet.cli import main
from enresnet.common import progress
from enresnet.common.tables import print_table
from enresnet.data.attacked import AdversarialSet, eight_bit, load_adversarial_set
from enresnet.evaluation import evaluate
from enresnet.evaluation.journal import Journal, remove_journal
from problems import SmallNet, random_problem, seeded

IMAGES, LABELS = random_problem((40, 3, 8, 8))

MODULE = """
import torch
from PIL import Image
from enresnet.models import create_model

def noisy():
    generator = torch.Generator().manual_seed(0)
    return create_model("en1_resnet8", num_classes=10, in_channels=1, generator=generator).eval()

def other():
    generator = torch.Generator().manual_seed(1)
    return create_model("en1_resnet8", num_classes=10, in_channels=1, generator=generator).eval()
"""
SMALL = ["--data", "digits", "--limit", "24", "--batch-size", "8", "--draws", "2"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODULE)
    return tmp_path


def run(*words):
    return main(["evaluate", "net:noisy", *SMALL, "--out", "out", *words])


class StoppedError(Exception):
    """Stands for the end of a process."""


def stop_after(monkeypatch, number):
    """Let an evaluation end after so many pieces of work."""
    from enresnet.evaluation.runner import Runner

    original, done = Runner._compute, []

    def counted(self, unit, *rest):
        if len(done) == number:
            raise StoppedError
        done.append(unit)
        return original(self, unit, *rest)

    monkeypatch.setattr(Runner, "_compute", counted)


class TestSavedSets:
    @pytest.mark.parametrize("png", [False, True])
    def test_a_resumed_evaluation_saves_whole_sets(self, png, monkeypatch):
        options = ["--attacks", "fgsm", "--epsilon", "0.1"]
        saving = ["--save", "sets", *(["--png"] if png else [])]
        with monkeypatch.context() as patch:
            stop_after(patch, 5)  # three clean batches and two attacked ones
            with pytest.raises(StoppedError):
                run(*options)
        assert run(*options, *saving) == 0
        assert len(load_adversarial_set(Path("sets/fgsm"))) == 24
        kept = json.loads(Path("out/evaluation.json").read_text())["best at epsilon 0.1"]
        shutil.rmtree("out")
        assert main(["evaluate", "net:noisy", *SMALL, "--out", "again", *options]) == 0
        alone = json.loads(Path("again/evaluation.json").read_text())["best at epsilon 0.1"]
        assert kept["robust"]["fgsm"]["accuracy"] == alone["robust"]["fgsm"]["accuracy"]
        if png:
            assert kept["robust"]["fgsm_8bit"]["images"] == 24

    def test_another_evaluations_set_is_left_alone(self, capsys):
        options = ["--attacks", "fgsm", "--save", "sets"]
        assert run(*options) == 0
        about = json.loads(Path("sets/fgsm/set.json").read_text())
        assert (about["count"], about["seed"], about["limit"], about["batch_size"]) == (
            24,
            0,
            24,
            8,
        )
        for words, name in (
            (["--seed", "1"], "seed"),
            (["--limit", "16"], "limit"),
            (["--batch-size", "12"], "batch_size"),
            (["--eot", "2"], "settings"),
        ):
            assert run(*options, *words) == 2
            error = capsys.readouterr().err
            assert "holds a set made otherwise" in error
            assert name in error

    def test_gaps_are_named(self):
        images = torch.rand(6, 1, 4, 4, generator=seeded())
        labels = torch.arange(6) % 2
        for kind in ("float32", "png"):
            folder = Path(kind)
            made = AdversarialSet(folder, classes="ab", about={"count": 6}, kind=kind)
            made.write(0, images[:3], labels[:3], images[:3])
            assert made.has(0, labels[:3])
            assert not made.has(3, labels[3:])
            with pytest.raises(ValueError, match="is not whole: images 3 to 5 are missing"):
                load_adversarial_set(folder)
            made.write(3, images[3:], labels[3:], images[3:])
            assert len(load_adversarial_set(folder)) == 6
        (folder / "0000" / "00000002.png").unlink()
        with pytest.raises(ValueError, match="is not whole: images 2 to 2 are missing"):
            load_adversarial_set(folder)


class TestEightBits:
    @pytest.mark.parametrize("levels", [16, 7, 255])
    @pytest.mark.parametrize("epsilon", [0.2, 8 / 255, 2.5 / 255, 1 / 255, 0.6 / 255])
    def test_images_off_the_levels_stay_in_the_ball(self, levels, epsilon):
        generator = seeded(levels)
        clean = torch.randint(levels + 1, (30, 1, 8, 8), generator=generator) / levels
        change = torch.randn(clean.shape, generator=generator).sign()
        change *= torch.rand(clean.shape, generator=generator).round(decimals=1)
        moved = (clean + epsilon * change).clamp(0, 1)
        rounded = eight_bit(moved, clean, epsilon=epsilon) / 255
        assert (rounded - clean).abs().max() <= epsilon + 5e-6
        assert (rounded - moved).abs().max() < 1.001 / 255
        unchanged = change == 0
        assert (rounded - clean)[unchanged].abs().max() <= 0.501 / 255  # the nearest

    def test_in_l2_too(self):
        generator = seeded()
        clean = torch.randint(17, (30, 1, 8, 8), generator=generator) / 16
        moved = (clean + 0.02 * torch.randn(clean.shape, generator=generator)).clamp(0, 1)
        sizes = (moved - clean).flatten(1).norm(dim=1)
        radius = float(sizes.max())
        rounded = eight_bit(moved, clean, epsilon=radius, norm="l2") / 255
        assert (rounded - clean).flatten(1).norm(dim=1).max() <= radius + 1e-5
        assert (rounded - clean).flatten(1).norm(dim=1).mean() > 0.8 * sizes.mean()

    def test_a_radius_without_levels_is_refused_before_any_work(self, capsys):
        words = ["--attacks", "fgsm", "--epsilon", "0.3/255", "--save", "sets", "--png"]
        assert run(*words) == 2
        assert "keep the set in float32" in capsys.readouterr().err
        assert not Path("out/evaluation.json").exists()


class TestTables:
    def test_the_budget_stands_beside_the_figure(self, capsys):
        files = ["--markdown", "t.md", "--latex", "t.tex"]
        words = ["--data", "digits", "--limit", "4", "--draws", "2", "--out", "out"]
        attack = ["--attacks", "strongest", "--budget", "100"]
        assert main(["evaluate", "net:noisy", *words, *attack, *files]) == 0
        assert "of 100" in capsys.readouterr().out
        first, details = Path("t.md").read_text().split("\n\n|")
        assert "| gradients |" in first
        assert "of 100 |" in first
        assert "passes" in details
        assert "of 100" in Path("t.tex").read_text()
        kept = json.loads(Path("out/evaluation.json").read_text())["best"]["robust"]["strongest"]
        assert kept["settings"]["budget"] == 100
        assert kept["circumstances"]["hardware"]["processor"] not in ("", "x86_64")

    def test_transfer_tells_how_to_repeat_it(self):
        models = ["--oracle", "net:noisy", "--target", "net:other"]
        files = ["--json", "t.json", "--markdown", "t.md", "--latex", "t.tex"]
        assert main(["transfer", *models, "--attacks", "fgsm", *SMALL, *files]) == 0
        values = json.loads(Path("t.json").read_text())
        assert len(set(values["weights"].values())) == 2
        assert values["attacks"]["fgsm"]["epsilon"] == 8 / 255
        assert {"processor", "threads"} <= set(values["hardware"])
        assert {"torch", "enresnet", "commit", "python"} == set(values["versions"])
        assert (values["seed"], values["draws"], values["limit"]) == (0, 2, 24)
        assert Path("t.md").read_text().startswith("| made against | net.other |")
        assert r"\toprule" in Path("t.tex").read_text()
        assert not Path("transfer.journal").exists()

    @pytest.mark.parametrize("command", ["evaluate", "transfer"])
    def test_no_draws_at_all_are_refused(self, command, capsys):
        models = ["net:noisy"] if command == "evaluate" else ["--matrix", "net:noisy", "net:other"]
        assert main([command, *models, *SMALL, "--eot", "0"]) == 2
        assert "eot must be at least 1, found 0" in capsys.readouterr().err


def test_a_picture_of_no_known_kind_is_refused_before_any_work(capsys):
    assert run("--attacks", "fgsm", "--picture", "draws.jpeg") == 2
    assert "--picture must end in .png, .svg, .pdf, found draws.jpeg" in capsys.readouterr().err
    assert not Path("out").exists()


class TestJournals:
    def test_a_kill_while_the_header_is_written(self, tmp_path):
        folder = tmp_path / "j"
        folder.mkdir()
        (folder / f".header.json.{os.getpid()}.0123abcd.tmp").write_text("{")
        Journal(folder, {"a": 1}).start()
        assert json.loads((folder / "header.json").read_text())["a"] == 1

    def test_a_kill_while_the_journal_is_removed(self, tmp_path, monkeypatch):
        folder = tmp_path / "j"
        Journal(folder, {"a": 1}).start()

        def killed(*_, **__):
            raise StoppedError

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", killed)
            with pytest.raises(StoppedError):
                remove_journal(folder)
        assert not folder.exists()
        (left,) = tmp_path.glob(".j.*.tmp")  # of this process, which lives: let it be a dead one's
        left.rename(left.with_name(left.name.replace(f".{os.getpid()}.", ".999999999.")))
        Journal(folder, {"b": 2}).start()  # another evaluation is not held up
        remove_journal(folder)
        assert not list(tmp_path.glob("*j*"))


def test_progress_moves_within_a_batch(monkeypatch, capsys):
    """And without a terminal a line is printed now and then."""
    monkeypatch.setattr(progress, "BETWEEN", 0.0)
    attack = PGD(steps=5, generator=seeded())
    evaluate(SmallNet().eval(), (IMAGES, LABELS), [attack], batch_size=40)
    lines = [line for line in capsys.readouterr().err.splitlines() if "pgd5" in line]
    assert len(lines) > 4
    assert " left" in lines[0]
    shares = [int(line.split(", ")[1].removesuffix(" %")) for line in lines]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert len(set(shares)) > 4
    evaluate(SmallNet().eval(), (IMAGES, LABELS), [attack], progress=False)
    assert capsys.readouterr().err == ""


class Moody(torch.nn.Module):
    """Noisy for bright images alone."""

    def forward(self, images):
        bright = images.mean(dim=(1, 2, 3)) > 0.6
        logits = images.flatten(1)[:, :4]
        return logits + bright[:, None] * torch.randn(logits.shape)


def test_noise_that_comes_later_is_seen():
    images = IMAGES.clone()
    images[16:] = images[16:] * 0.2 + 0.8
    value = evaluate(Moody(), (images, LABELS), draws=4, batch_size=16).natural
    assert value.draws == 4
    assert not value.deterministic


class OffTheLevels(torch.nn.Module):
    """Noisy wherever a pixel is not on one of the data's levels: no clean image shows it."""

    def forward(self, images):
        off = ((images * 16) % 1 != 0).flatten(1).any(dim=1)
        logits = 4 * images.flatten(1)[:, :4]
        return logits + off[:, None] * torch.randn(logits.shape)


def test_noise_that_only_attacked_images_meet_is_seen():
    images = (IMAGES * 16).round() / 16
    attack = PGD(epsilon=0.05, steps=3, generator=seeded())
    value = evaluate(OffTheLevels(), (images, LABELS), [attack], draws=4, warn=False)
    assert value.robust["pgd3"].draws == 4


class TestImagesThatWereAttacked:
    def test_no_attack_is_run_on_them_unless_asked_for(self, capsys):
        assert run("--attacks", "fgsm", "--epsilon", "0.3", "--save", "sets") == 0
        capsys.readouterr()
        words = ["evaluate", "net:other", "--data", "sets/fgsm", "--out", "b", "--draws", "2"]
        assert main([*words, "--json", "b.json"]) == 0
        said = capsys.readouterr()
        assert json.loads(Path("b.json").read_text())["robust"] == {}
        assert "as they are" in said.out
        assert "clean" not in said.out
        assert "FGSM(epsilon=0.3" in said.out
        assert "chance" not in said.err
        assert main([*words, "--attacks", "noise"]) == 0
        assert "as far once more" in " ".join(capsys.readouterr().out.split())


def test_all_results_in_one_table(capsys):
    assert run("--attacks", "fgsm") == 0
    assert run("--attacks", "noise", "--limit", "12") == 0
    capsys.readouterr()
    files = ["--json", "r.json", "--markdown", "r.md", "--latex", "r.tex"]
    assert main(["results", "out", *files]) == 0
    text = Path("r.md").read_text()
    assert [line.split(" | ")[:2] for line in text.splitlines()[2:5]] == [
        ["| clean", "24"],
        ["| fgsm", "24"],
        ["| noise", "12"],
    ]
    kept = json.loads(Path("out/evaluation.json").read_text())["best"]
    found = json.loads(Path("r.json").read_text())["out"]["best"]
    assert found["robust"]["fgsm"]["interval"] == kept["robust"]["fgsm"]["interval"]
    assert found["natural"]["broken_in"] == kept["natural"]["broken_in"]
    assert r"\begin{tabular}" in Path("r.tex").read_text()
    assert main(["results", "nowhere"]) == 2
    assert "run enresnet evaluate first" in capsys.readouterr().err
    assert main(["results", "out", "--section", "last"]) == 2
    assert "it has best" in capsys.readouterr().err


def test_a_bad_folder_does_not_hide_the_results_of_others(capsys):
    assert run("--attacks", "fgsm") == 0
    Path("bad").mkdir()
    Path("bad/evaluation.json").write_text('{"best": 3}')
    capsys.readouterr()
    files = ["--json", "r.json", "--markdown", "r.md"]
    for folders in (["bad", "out"], ["out", "bad", "nowhere"]):
        assert main(["results", *folders, *files]) == 2
        said = capsys.readouterr()
        assert "fgsm" in said.out
        assert "bad/evaluation.json is damaged: its section 'best' must be a map" in said.err
        assert ("nowhere has no evaluation" in said.err) == ("nowhere" in folders)
        assert list(json.loads(Path("r.json").read_text())) == ["out"]
        assert "fgsm" in Path("r.md").read_text()
        for name in ("r.json", "r.md"):
            Path(name).unlink()
    assert main(["results", "bad", *files]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("enresnet: bad/evaluation.json is damaged")
    assert not Path("r.json").exists()


@pytest.mark.parametrize("width", ["80", "200"])
def test_a_narrow_terminal_breaks_no_number(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    words = ["accuracy", "averaged", "always right", "lost in 10"]
    row = dict.fromkeys(words, "65.6 (64.7-66.5)")
    print_table([{"images": "strongest", "number": "10000", **row, "gradients": "445 of 1000"}])
    said = capsys.readouterr().out
    assert said.count("(64.7-66.5)") == 4
    assert max(map(len, said.splitlines())) <= int(width)


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m enresnet attacks | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-1] in ("141", "0")  # 0 where all was written in time


class TestFolders:
    """A test folder is a test set, whole; of its own folder a run tests on what it kept."""

    @staticmethod
    def write(root, number):
        generator = torch.Generator().manual_seed(number)
        for name in ("cat", "dog"):
            (root / name).mkdir(parents=True)
            for index in range(number):
                pixels = torch.randint(256, (8, 8, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(root / name / f"{index}.png")

    def test_all_of_it_or_what_was_kept(self, here, capsys):
        self.write(here / "own", 20)
        self.write(here / "others", 15)
        words = ["--model", "resnet8", "--data", "own", "--size", "8", "--recipe", "natural"]
        assert main(["train", *words, "--epochs", "1", "--out", "run"]) == 0
        for data, number, said in (
            ([], 4, "a tenth of the images in"),
            (["--data", "own"], 4, "a tenth of the images in"),
            (["--data", "others"], 30, "all images in others"),
        ):
            capsys.readouterr()
            words = ["--attacks", "fgsm", "--json", "found.json", *data]
            assert main(["evaluate", "run", *words]) == 0
            assert json.loads(Path("found.json").read_text())["natural"]["images"] == number
            assert f"test images: {number}, {said}" in capsys.readouterr().err
