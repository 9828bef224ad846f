"""Evaluations that are abandoned, repeated, or of several radii at once."""

import functools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from enresnet.attacks import FGSM, IFGSM, PGD
from enresnet.cli import main
from enresnet.common.files import temporary_path
from enresnet.evaluation import evaluate, transfer_matrix
from enresnet.evaluation.journal import Journals
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.evaluation.runner import Runner
from problems import SmallNet, random_problem, seeded

IMAGES, LABELS = random_problem((20, 3, 8, 8))

MODULE = """
import torch
from enresnet.models import create_model

def noisy(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return create_model("en1_resnet8", num_classes=10, in_channels=1, generator=generator).eval()

def other():
    return noisy(1)
"""
SMALL = ["--data", "digits", "--limit", "24", "--batch-size", "8", "--draws", "2"]
JOURNAL = Path("out/evaluation.journal")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODULE)


@pytest.fixture
def done(monkeypatch):
    """The pieces of work that were done; after ``done.limit`` of them comes Ctrl-C."""

    class Done(list):
        limit = 10**9

    original, found = Runner._compute, Done()

    def counted(self, unit, *rest):
        if len(found) == found.limit:
            raise KeyboardInterrupt
        found.append(f"{unit.attack} {unit.start}")
        return original(self, unit, *rest)

    monkeypatch.setattr(Runner, "_compute", counted)
    return found


def run(*words, model="net:noisy"):
    return main(["evaluate", model, *SMALL, "--out", "out", *words])


def sections():
    return json.loads(Path("out/evaluation.json").read_text())


def accuracies(section="best"):
    found = sections()[section]
    entries = {"natural": found["natural"], **found["robust"]}
    return {name: (entry["accuracy"], entry["images"]) for name, entry in entries.items()}


class TestLeftBehind:
    """A process that dies while it removes its journal has recorded its results already."""

    def left(self, monkeypatch, *words):
        """Evaluate, and die before the journal is gone."""

        def died(_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("enresnet.evaluation.journal.remove_journal", died)
            assert run(*words) == 130
        assert JOURNAL.is_dir()
        assert set(sections()["best"]["robust"]) == {w for w in words if not w.startswith("--")}

    def test_the_same_command_removes_it(self, monkeypatch, done):
        self.left(monkeypatch, "--attacks", "fgsm")
        done.clear()
        assert run("--attacks", "fgsm") == 0
        assert not done
        assert not JOURNAL.exists()

    def test_one_of_what_was_new_then_goes_too(self, monkeypatch, done):
        assert run("--attacks", "fgsm") == 0
        self.left(monkeypatch, "--attacks", "fgsm", "pgd2")
        done.clear()
        assert run("--attacks", "fgsm", "pgd2") == 0
        assert not done
        assert not JOURNAL.exists()

    def test_what_a_dead_process_was_removing_goes(self):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        mine = temporary_path(JOURNAL / "0123456789ab")
        half = mine.with_name(mine.name.replace(f".{os.getpid()}.", f".{dead.pid}."))
        half.mkdir(parents=True)
        (half / "0.jsonl").write_text("")
        assert run("--attacks", "fgsm") == 0
        assert not JOURNAL.exists()

    def test_others_stay(self, monkeypatch, done, capsys):
        done.limit = 4
        assert run("--attacks", "fgsm", "--seed", "5") == 130
        done.limit = 10**9
        self.left(monkeypatch, "--attacks", "fgsm")
        assert run("--attacks", "fgsm") == 0
        assert len(list(JOURNAL.iterdir())) == 1  # that of the other seed
        assert "is not finished" in capsys.readouterr().err


class TestAbandoned:
    def test_an_interruption_says_how_to_go_on(self, done, capsys):
        done.limit = 4
        assert run("--attacks", "fgsm") == 130
        error = capsys.readouterr().err
        assert "4 finished batches kept in out/evaluation.journal" in error
        assert "the same command goes on" in error
        assert "--restart" in error
        done.clear()
        assert run("--attacks", "fgsm") == 0
        assert done == ["fgsm 8", "fgsm 16"]
        assert not JOURNAL.exists()

    def test_before_anything_was_done(self, done, capsys):
        done.limit = 0
        assert run("--attacks", "fgsm") == 130
        assert "interrupted before the first batch was done" in capsys.readouterr().err

    def test_another_evaluation_goes_on_beside_it(self, done, capsys):
        done.limit = 4
        assert run("--attacks", "fgsm") == 130
        done.limit = 10**9
        assert run("--attacks", "ifgsm2", "--seed", "1") == 0
        error = capsys.readouterr().err
        (left,) = JOURNAL.iterdir()
        assert "another evaluation (fgsm) is not finished" in error
        assert f"remove {left}" in error
        done.clear()
        assert run("--attacks", "fgsm") == 0  # and loses nothing
        assert done == ["fgsm 8", "fgsm 16"]
        assert not JOURNAL.exists()

    def test_a_restart_throws_away_its_own_journal_only(self, done):
        done.limit = 4
        assert run("--attacks", "fgsm") == 130
        done.limit = 8
        assert run("--attacks", "ifgsm2", "--seed", "1") == 130
        assert len(list(JOURNAL.iterdir())) == 2
        done.clear()
        assert run("--attacks", "fgsm", "--restart") == 0
        assert len(done) == 6
        assert len(list(JOURNAL.iterdir())) == 1

    def test_a_restart_mends_a_damaged_journal(self, done, capsys):
        done.limit = 4
        assert run("--attacks", "fgsm") == 130
        (journal,) = JOURNAL.iterdir()
        (journal / "header.json").write_text("{")
        assert run("--attacks", "fgsm") == 2
        assert "is not JSON" in capsys.readouterr().err
        done.limit = 10**9
        assert run("--attacks", "fgsm", "--restart") == 0
        assert not JOURNAL.exists()

    def test_a_restart_leaves_alone_what_is_being_written(self):
        header = {"attacks": {"fgsm": {}}}
        journal = Journals("j").open(header)
        journal.start()
        with journal.writer(0) as append:
            append("a/b/0-8", {})
            with pytest.raises(FileExistsError, match="is being made by another process"):
                Journals("j", restart=True).open(header).start()
            (word,) = Journals("j").others()
            assert word == "another evaluation (fgsm) runs beside this one"
        assert len(journal.entries()) == 1
        Journals("j", restart=True).open(header).start()
        assert not journal.entries()

    def test_transfer_and_diagnose_go_on_too(self, done, capsys):
        matrix = ["transfer", "--matrix", "net:noisy", "net:other", *SMALL, "--attacks", "fgsm"]
        diagnosis = ["diagnose", "net:noisy", "--data", "digits", "--limit", "16"]
        diagnosis += ["--batch-size", "8", "--draws", "2", "--queries", "5"]
        for command, folder in (
            (matrix, Path("transfer.journal")),
            (diagnosis, Path("evaluations/net.noisy/diagnosis.journal")),
        ):
            done.clear()
            done.limit = 5
            assert main(command) == 130
            error = capsys.readouterr().err
            assert f"5 finished batches kept in {folder}" in error
            done.limit = 6
            assert main([*command, "--seed", "1"]) == 130  # beside it
            done.limit = 10**9
            first = list(done[:5])
            done.clear()
            assert main(command) in (0, 1)
            assert done[: len(first)] != first
            assert folder.exists()  # the other one's is left
            assert main([*command, "--seed", "1"]) in (0, 1)
            assert not folder.exists()

    def test_a_real_interruption(self):
        words = [sys.executable, "-m", "enresnet", "evaluate", "net:noisy", "--data", "digits"]
        words += ["--attacks", "pgd5000", "--batch-size", "8", "--draws", "2", "--out", "out"]
        # As from a terminal: tests may run where Ctrl-C is ignored, and that would be inherited.
        heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(
            words, stderr=subprocess.PIPE, text=True, preexec_fn=heard
        ) as process:
            try:
                while process.poll() is None and not list(JOURNAL.glob("*/0.jsonl")):
                    time.sleep(0.05)
                time.sleep(0.5)
                process.send_signal(signal.SIGINT)
                _, error = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 130
        assert "Traceback" not in error
        assert "interrupted" in error


class TestRepeated:
    def test_what_was_measured_is_not_measured_again(self, done, capsys):
        assert run("--attacks", "fgsm") == 0
        before, table = accuracies(), capsys.readouterr().out
        done.clear()
        assert run("--attacks", "fgsm") == 0
        found = capsys.readouterr()
        assert not done
        assert "measured before" in found.err
        assert "nothing is left to measure (--again measures anew)" in found.err
        assert found.out == table
        assert run("--attacks", "fgsm", "ifgsm2", "--json", "r.json") == 0
        error = capsys.readouterr().err
        assert "clean images, fgsm (--again" in error
        assert done == ["ifgsm2 0", "ifgsm2 8", "ifgsm2 16"]
        assert accuracies() == {**before, "ifgsm2": accuracies()["ifgsm2"]}
        assert list(json.loads(Path("r.json").read_text())["robust"]) == ["fgsm", "ifgsm2"]
        scores, _ = ResultsFolder(Path("out")).scores()
        assert set(scores) == {"best/natural", "best/fgsm", "best/ifgsm2"}

    def test_what_comes_later_is_as_if_it_had_come_at_once(self):
        assert run("--attacks", "fgsm") == 0
        assert run("--attacks", "pgd3", "fgsm") == 0
        apart = accuracies()
        shutil.rmtree("out")
        assert run("--attacks", "fgsm", "pgd3") == 0
        assert accuracies() == apart

    @pytest.mark.parametrize(
        "words",
        [
            ["--again"],
            ["--seed", "1"],
            ["--draws", "3"],
            ["--limit", "16"],
            ["--batch-size", "4"],
            ["--eot", "2"],
            ["--epsilon", "0.1"],
            ["--save", "sets"],
            ["--picture", "p.png"],
        ],
    )
    def test_what_differs_is_measured(self, done, words):
        assert run("--attacks", "fgsm") == 0
        done.clear()
        assert run("--attacks", "fgsm", *words) == 0
        assert any(unit.startswith("fgsm") for unit in done)

    def test_so_are_other_weights_and_other_images(self, done):
        assert run("--attacks", "fgsm") == 0
        done.clear()
        assert run("--attacks", "fgsm", model="net:other") == 0
        assert len(done) == 6

    def test_a_damaged_entry_is_measured_again(self, done):
        assert run("--attacks", "fgsm") == 0
        stored = sections()
        del stored["best"]["robust"]["fgsm"]["averaged_interval"]
        Path("out/evaluation.json").write_text(json.dumps(stored))
        done.clear()
        assert run("--attacks", "fgsm") == 0
        assert len(done) == 3

    def test_what_nothing_tells_apart_is_measured_again(self, done, capsys):
        """Numpy's noise cannot be seeded from here, so two models may give any answers."""
        Path("held.py").write_text(
            "import numpy, torch\n"
            "class Held:\n"
            "    __slots__ = ('weights',)\n"
            "    def __call__(self, x):\n"
            "        return torch.from_numpy(numpy.random.rand(len(x), 10))\n"
            "model = Held()\n"
        )
        for number in range(2):
            done.clear()
            assert run("--attacks", "noise", model="held:model") == 0
            assert len(done) == 6
            error = capsys.readouterr().err
            assert ("measured before, and now again: clean images, noise" in error) == number
            assert ("we cannot tell whether those results are its own" in error) == number

    def test_noise_from_torch_is_told_apart_by_answers(self, done):
        Path("drawn.py").write_text(
            "import torch\n"
            "def one(x):\n"
            "    return torch.rand(len(x), 10)\n"
            "def two(x):\n"
            "    return 2 * torch.rand(len(x), 10)\n"
        )
        for name, number in (("one", 6), ("one", 0), ("two", 6)):
            done.clear()
            assert run("--attacks", "noise", model=f"drawn:{name}") == 0
            assert len(done) == number


def _write(folder, name):
    """Add one attack's result to a record, as a process does at its end."""
    result = evaluate(SmallNet(channels=3), (IMAGES, LABELS), {name: FGSM()}, seed=0)
    about = {"model": "m", "weights": "w", "data_name": "d", "checkpoint": "c", "epsilon": 0.1}
    for _ in range(10):
        ResultsFolder(folder).add("best", result, data="d", conditions=about)


def test_two_that_end_at_the_same_time_both_keep_their_results(tmp_path):
    context = multiprocessing.get_context("fork")
    names = ["one", "two", "three"]
    processes = [context.Process(target=_write, args=(tmp_path, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert set(ResultsFolder(tmp_path).sections()["best"]["robust"]) == set(names)
    scores, _ = ResultsFolder(tmp_path).scores()
    assert set(scores) == {"best/natural", *(f"best/{name}" for name in names)}


class TestWhatIsKept:
    def test_fewer_draws_do_not_replace_more(self, capsys):
        assert run("--attacks", "fgsm") == 0
        before = sections()
        capsys.readouterr()
        assert run("--attacks", "fgsm", "--draws", "1") == 0
        error = capsys.readouterr().err
        assert "kept natural: draws 2, now 1" in error
        assert "kept fgsm: draws 2, now 1" in error
        assert sections() == before

    def test_what_is_replaced_is_told(self, capsys):
        assert run("--attacks", "fgsm") == 0
        for words, told in (
            (["--seed", "1"], "replaced fgsm: seed 0, now 1"),
            (["--seed", "1", "--batch-size", "12"], "replaced fgsm: batch size 8, now 12"),
            (["--seed", "1", "--batch-size", "12", "--draws", "3"], "replaced fgsm: draws 2, now"),
        ):
            capsys.readouterr()
            assert run("--attacks", "fgsm", *words) == 0
            assert told in capsys.readouterr().err

    def test_a_table_of_several_numbers_of_draws_shows_them(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "150")
        assert run("--attacks", "fgsm") == 0
        assert run("--attacks", "ifgsm2", "--draws", "3") == 0
        capsys.readouterr()
        assert main(["results", "out"]) == 0
        said = capsys.readouterr().out
        assert "draws" in said
        assert run("--attacks", "fgsm_l2", "--draws", "3") == 0
        assert "fgsm_l2 at 0.5" in capsys.readouterr().out

    def test_figures_of_other_weights_are_not_passed_off(self, capsys):
        for seed in ("0", "1"):
            words = ["--model", "resnet8", "--data", "digits", "--recipe", "quickstart"]
            words += ["--epochs", "1", "--limit", "100", "--seed", seed, "--out", f"run{seed}"]
            assert main(["train", *words]) == 0
            assert main(["evaluate", f"run{seed}", "--limit", "50", "--attacks", "fgsm"]) == 0
        assert main(["compare", "run0", "run1"]) == 0
        shutil.copy("run1/best.safetensors", "run0/best.safetensors")
        capsys.readouterr()
        assert main(["results", "run0", "run1"]) == 0
        error = capsys.readouterr().err
        assert "run0 (best) was measured with other weights than best.safetensors" in error
        assert "run1 (best)" not in error
        assert main(["compare", "run0", "run1"]) == 2
        assert "evaluate it again" in capsys.readouterr().err
        assert main(["runs", "."]) == 0
        assert "other weights" in " ".join(capsys.readouterr().out.split())
        assert main(["evaluate", "run0", "--limit", "50", "--attacks", "fgsm"]) == 0
        assert main(["compare", "run0", "run1"]) == 0

    def test_two_outputs_in_one_file_are_refused(self, capsys):
        assert run("--attacks", "fgsm", "--json", "o", "--markdown", "o") == 2
        assert "named for two outputs" in capsys.readouterr().err


class TestSeveralRadii:
    def test_on_the_command_line(self, done, capsys):
        assert run("--attacks", "fgsm", "pgd3", "--epsilon", "2/255", "0.1") == 0
        assert "fgsm at 2/255" in capsys.readouterr().out
        found = sections()
        assert set(found) == {"best at epsilon 0.00784314", "best at epsilon 0.1"}
        for section in found.values():
            assert set(section["robust"]) == {"fgsm", "pgd3"}
            assert section["robust"]["fgsm"]["settings"]["epsilon"] == section["epsilon"]
        assert sum(unit.startswith("natural") for unit in done) == 3  # once for both
        together = accuracies("best at epsilon 0.1")
        shutil.rmtree("out")
        assert run("--attacks", "fgsm", "pgd3", "--epsilon", "0.1") == 0
        assert accuracies("best at epsilon 0.1") == together
        done.clear()
        assert run("--attacks", "fgsm", "--epsilon", "0.1", "0.2") == 0
        assert [unit for unit in done if "fgsm" in unit] == [f"fgsm at 0.2 {n}" for n in (0, 8, 16)]

    def test_their_sets_have_folders_of_their_own(self):
        words = ["--attacks", "fgsm", "--epsilon", "2/255", "0.1", "--save", "sets", "--png"]
        assert run(*words) == 0
        assert {path.name for path in Path("sets").iterdir()} == {
            "fgsm-at-2_255",
            "fgsm-at-0.1",
        }
        assert set(sections()["best at epsilon 0.1"]["robust"]) == {"fgsm", "fgsm_8bit"}

    def test_in_l2(self, capsys):
        words = ["--attacks", "pgd2_l2", "fgsm", "--epsilon-l2", "0.5", "1", "--restarts", "2"]
        assert run(*words) == 0
        robust = sections()["best"]["robust"]
        assert set(robust) == {"pgd2_l2", "pgd2_l2 at 1", "fgsm"}
        assert robust["pgd2_l2 at 1"]["settings"]["epsilon"] == 1
        assert robust["pgd2_l2"]["settings"]["restarts"] == 2
        assert "0.5, 1 in l2" in capsys.readouterr().out

    def test_transfer(self, capsys):
        words = ["transfer", "--matrix", "net:noisy", "net:other", *SMALL, "--attacks", "fgsm"]
        assert main([*words, "--epsilon", "0.05", "0.1", "--json", "t.json"]) == 0
        assert "fgsm at 0.05" in capsys.readouterr().out
        found = json.loads(Path("t.json").read_text())
        assert found["epsilon"] == [0.05, 0.1]
        assert set(found["robust"]) == {"fgsm at 0.05", "fgsm at 0.1"}

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            (["--attacks", "pgd2_l2", "--epsilon", "0.1"], "give --epsilon-l2 too"),
            (["--attacks", "fgsm", "--epsilon-l2", "1"], "--epsilon-l2 is for attacks in l2"),
            (["--attacks", "fgsm", "--restarts", "2"], "--restarts is for attacks with a random"),
            (["--attacks", "pgd2", "--restarts", "0"], "restarts must be at least 1"),
            (["--attacks", "fgsm", "--epsilon", "0.1", "0.1"], "every radius once"),
            (["--attacks", "fgsm", "fgsm"], "every attack once, found fgsm twice"),
            (["--attacks", "fgsm", "--size", "8"], "--size and --gray are for folders"),
            (["--attacks", "fgsm", "--gray"], "--size and --gray are for folders"),
        ],
    )
    def test_bad_input(self, words, error, capsys):
        assert run(*words) == 2
        assert error in capsys.readouterr().err
        assert not Path("out").exists()

    def test_in_python(self):
        model = SmallNet(channels=3)
        attacks = [FGSM(epsilon=2 / 255), FGSM(epsilon=0.1), IFGSM(steps=2)]
        found = evaluate(model, (IMAGES, LABELS), attacks, seed=0)
        assert list(found.robust) == ["fgsm at 2/255", "fgsm at 0.1", "ifgsm2"]
        attacks = [PGD(steps=2, restarts=n, generator=seeded()) for n in (1, 3)]
        found = evaluate(model, (IMAGES, LABELS), attacks, seed=0)
        assert list(found.robust) == ["pgd2, restarts=1", "pgd2, restarts=3"]
        matrix = transfer_matrix(
            {"a": model}, {"b": model}, (IMAGES, LABELS), {"mine": FGSM()}, seed=0
        )
        assert matrix.attacks == ["mine"]

    def test_the_same_attack_draws_the_same_under_any_name(self):
        model = SmallNet(channels=3)
        one = PGD(steps=2, epsilon=0.1, generator=seeded())
        two = PGD(steps=2, epsilon=0.2, generator=seeded())
        alone = evaluate(model, (IMAGES, LABELS), [one], seed=0).robust["pgd2"]
        both = evaluate(model, (IMAGES, LABELS), [two, one], seed=0).robust
        assert both["pgd2 at 0.1"].accuracy == alone.accuracy
        assert torch.equal(both["pgd2 at 0.1"].scores, alone.scores)


class TestFolders:
    @pytest.fixture
    def folder(self, tmp_path):
        from PIL import Image

        for number, name in enumerate(("cats", "dogs")):
            place = tmp_path / "pets" / name
            place.mkdir(parents=True)
            for index in range(3):
                Image.new("RGB", (40, 30), (80 * number, 10, 20 * index)).save(
                    place / f"{index}.png"
                )
        return tmp_path / "pets"

    def test_size_and_gray(self, folder):
        Path("looking.py").write_text(
            "from pathlib import Path\n"
            "def model(x):\n"
            "    Path('shape.txt').write_text(str(list(x.shape[1:])))\n"
            "    return x.flatten(1)[:, :2]\n"
        )
        words = ["evaluate", "looking:model", "--data", str(folder), "--attacks", "fgsm"]
        for options, shape in (
            ([], "[3, 32, 32]"),
            (["--size", "16"], "[3, 16, 16]"),
            (["--size", "16", "--gray"], "[1, 16, 16]"),
        ):
            assert main([*words, *options]) == 0
            assert Path("shape.txt").read_text() == shape
