"""Finished networks are never lost, and a training goes on only as it began."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load

from enresnet import native
from enresnet.cli import main
from enresnet.training import Recipe, Run, RunConfig, integrate, list_runs, resume, train
from enresnet.training.checkpoint import checkpoints, newest_checkpoint, write_checkpoint
from trainings import StopAt, StopError, assert_same_weights

RECIPE = Recipe(objective="natural", epochs=2, batch_size=64, epsilon=0.1, step_size=0.05, steps=1)
CONFIG = RunConfig(model="resnet8", data="digits", recipe=RECIPE, limit=200)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two runs of the same kind, with seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("finished")
    for seed in (0, 1):
        train(replace(CONFIG, seed=seed), folder / str(seed))
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return Run.open(shutil.copytree(finished / "0", tmp_path / "runs" / "a"))


def content(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def listed(folder, capsys):
    target = folder.parent / "list.json"
    assert main(["runs", str(folder), "--json", str(target)]) == 0
    return json.loads(target.read_text()), capsys.readouterr().out


class TestFinishedNetworks:
    def strip(self, run, what):
        if what == "last":
            shutil.rmtree(run.last)
        else:
            (run.folder / "metrics.csv").unlink()

    @pytest.mark.parametrize("what", ["last", "metrics.csv"])
    def test_weights_only_is_a_state(self, what, run, capsys):
        self.strip(run, what)
        (found,), shown = listed(run.folder.parent, capsys)
        assert found["state"] == "finished, weights only"
        assert found["resume"] is None
        assert "to resume" not in shown

    @pytest.mark.parametrize("what", ["last", "metrics.csv"])
    @pytest.mark.parametrize("command", ["resume", "train"])
    def test_they_are_not_trained_over(self, what, command, run, capsys):
        self.strip(run, what)
        before = content(run.folder)
        if command == "resume":
            code = main(["resume", str(run.folder)])
        else:
            words = "--model resnet8 --data digits --recipe natural --limit 200 --epochs 2"
            more = "--batch-size 64 --epsilon 0.1 --step-size 0.05 --steps 1"
            code = main(["train", *words.split(), *more.split(), "--out", str(run.folder)])
        assert content(run.folder) == before
        shown = capsys.readouterr()
        if what == "last":  # metrics.csv says that all epochs are done
            assert code == 0
            assert "finished already" in shown.out
        else:
            assert code == 2
            assert "no checkpoint to go on from" in shown.err

    def test_unless_the_user_says_so(self, run, finished, capsys):
        shutil.rmtree(run.last)
        (run.folder / "evaluation.json").write_text("{}")
        before = load(run.weights("best").read_bytes())
        shutil.copy(finished / "1" / "best.safetensors", run.weights("best"))
        assert main(["resume", str(run.folder), "--overwrite"]) == 0
        assert "kept as the best" in capsys.readouterr().out
        found = load(run.weights("best").read_bytes())
        torch.testing.assert_close(found, before, rtol=0, atol=0)
        assert run.state == "finished"
        assert (run.folder / "evaluation.json").read_text() == "{}"

    def test_a_stopped_run_whose_checkpoints_are_gone(self, tmp_path, capsys):
        with pytest.raises(StopError):
            train(CONFIG, tmp_path / "runs" / "a", checkpoint_every=0, callbacks=[StopAt(4)])
        run = Run.open(tmp_path / "runs" / "a")
        assert run.state == "stopped"
        for path in checkpoints(run.last):
            path.unlink()
        (found,), _ = listed(tmp_path / "runs", capsys)
        assert found["state"] == "stopped, weights only"
        before = content(run.folder)
        with pytest.raises(FileExistsError, match="no checkpoint to go on from.*--overwrite"):
            train(CONFIG, run.folder)
        assert content(run.folder) == before

    def test_no_network_is_there_before_a_checkpoint(self, tmp_path, monkeypatch):
        """Or what a kill leaves of a short training would look finished."""
        seen, save = [], Run.save

        def watched(self, *arguments):
            seen.append(len(checkpoints(self.last)))
            save(self, *arguments)

        monkeypatch.setattr(Run, "save", watched)
        train(CONFIG, tmp_path / "run", checkpoint_every=1e9)
        assert seen
        assert all(seen)

    def test_an_interrupted_overwriting_does_not_advise_to_overwrite_again(self, run):
        error = sys.modules["enresnet.training.interruption"].InterruptedTrainingError

        def stop():
            raise error(2)

        with pytest.raises(error, match="the same command again without --overwrite"):
            train(CONFIG, run.folder, overwrite=True, callbacks=[StopAt(1, stop)])


@pytest.mark.parametrize("loops", [True, False])
class TestLoops:
    """Those in C and torch's draw other noise from the same seed."""

    @pytest.fixture
    def stopped(self, tmp_path, monkeypatch, loops):
        self.have(monkeypatch, loops)
        with pytest.raises(StopError):
            train(CONFIG, tmp_path / "run", checkpoint_every=0, callbacks=[StopAt(2)])
        return Run.open(tmp_path / "run")

    def have(self, monkeypatch, loops):
        # A network without noise never calls them, so anything stands for the library.
        monkeypatch.setattr(native, "library", lambda: object() if loops else None)
        monkeypatch.setattr(native, "supports", lambda _: False)

    def test_a_run_does_not_go_on_with_others(self, stopped, monkeypatch, loops):
        self.have(monkeypatch, not loops)
        before = content(stopped.folder)
        remedy = "install a C compiler" if loops else "set ENRESNET_NATIVE=0"
        with pytest.raises(ValueError, match=f"cannot go on as it began.*{remedy}.*--other-loops"):
            train(CONFIG, stopped.folder)
        assert content(stopped.folder) == before
        self.have(monkeypatch, loops)
        assert train(CONFIG, stopped.folder).finished

    def test_unless_told_and_then_it_says_so(self, stopped, monkeypatch, loops):
        self.have(monkeypatch, not loops)
        seen = StopAt(0)
        run = train(CONFIG, stopped.folder, callbacks=[seen], other_loops=True)
        assert "from here on the noise is drawn by" in seen.resumed
        found = json.loads((run.folder / "environment.json").read_text())
        assert [start["native_loops"] for start in found] == [loops, not loops]

    def test_checkpoints_that_do_not_say_are_asked_by_environment_json(
        self, stopped, monkeypatch, loops
    ):
        tensors, facts, _ = newest_checkpoint(stopped.last)
        for name in ("native_loops", "run"):  # as earlier versions wrote them
            del facts[name]
        for path in checkpoints(stopped.last):
            path.unlink()
        write_checkpoint(stopped.last, 1, tensors, facts)
        self.have(monkeypatch, not loops)
        with pytest.raises(ValueError, match="cannot go on as it began"):
            train(CONFIG, stopped.folder)
        (stopped.folder / "environment.json").unlink()  # then nothing tells
        assert train(CONFIG, stopped.folder).finished


class TestCheckpointsOfOthers:
    @pytest.fixture
    def stopped(self, tmp_path):
        with pytest.raises(StopError):
            train(CONFIG, tmp_path / "a", checkpoint_every=0, callbacks=[StopAt(2)])
        return Run.open(tmp_path / "a")

    def swap(self, run, other, tmp_path):
        with pytest.raises(StopError):
            train(other, tmp_path / "b", checkpoint_every=0, callbacks=[StopAt(3)])
        shutil.rmtree(run.last)
        shutil.copytree(tmp_path / "b" / "last", run.last)

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"seed": 1}, "seed 1 there, 0 here"),
            ({"model": "resnet14"}, "model 'resnet14' there, 'resnet8' here"),
            ({"recipe": replace(RECIPE, momentum=0.5)}, "recipe.momentum 0.5 there, 0.9"),
        ],
    )
    def test_they_are_refused(self, changes, word, stopped, tmp_path, capsys):
        self.swap(stopped, replace(CONFIG, **changes), tmp_path)
        before = content(stopped.folder)
        assert main(["resume", str(stopped.folder)]) == 2
        shown = capsys.readouterr().err
        assert "holds a checkpoint of another run" in shown
        assert word in shown
        assert content(stopped.folder) == before

    def test_earlier_names_of_a_precision_are_read(self, stopped):
        config = stopped.folder / "config.yaml"
        config.write_text(config.read_text().replace("precision: '32'", "precision: bf16-mixed"))
        assert Run.open(stopped.folder).config.precision == "bf16"
        tensors, facts, _ = newest_checkpoint(stopped.last)
        facts["run"]["precision"] = "bf16-mixed"
        shutil.rmtree(stopped.last)
        write_checkpoint(stopped.last, 2, tensors, facts)
        assert resume(stopped.folder).finished

    @pytest.mark.parametrize("facts", ["another network's", "none", "no mapping"])
    def test_one_that_does_not_fit_gets_a_sentence(self, facts, stopped, tmp_path, capsys):
        """Whatever it says of itself."""
        self.swap(stopped, replace(CONFIG, model="resnet14"), tmp_path)
        tensors, known, _ = newest_checkpoint(stopped.last)
        del known["run"]
        shutil.rmtree(stopped.last)
        say = {"another network's": known, "none": {}, "no mapping": {**known, "epochs": 3}}
        write_checkpoint(stopped.last, 1, tensors, say[facts])
        assert main(["resume", str(stopped.folder)]) == 2
        shown = capsys.readouterr().err
        assert "does not fit resnet8" in shown
        assert len(shown) < 700


class TestListing:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("evaluation.json", "{"),
            ("evaluation.json", "[]"),
            ("evaluation.json", '{"best": 3}'),
            ("evaluation.json", '{"best": {"natural": {"accuracy": "x"}, "robust": {}}}'),
            ("evaluation.json", '{"best": {"natural": {}, "robust": {"fgsm": 1}}}'),
            ("metrics.csv", "epoch\nx"),
            ("metrics.csv", "epoch,seconds\n1,2\n"),
            ("metrics.csv", "epoch\n1,2,3\n"),
            ("config.yaml", "3"),
            ("config.yaml", "model: 3\ndata: digits\nrecipe: {}\n"),
            ("config.yaml", "model: resnet8\ndata: digits\nrecipe: {}\nparts: 3\n"),
            ("last/step-0000000007.safetensors", "damaged"),
        ],
    )
    def test_one_bad_run_does_not_hide_the_others(self, name, text, run, capsys):
        other = shutil.copytree(run.folder, run.folder.with_name("b"))
        (other / name).write_text(text)
        (good, bad), shown = listed(run.folder.parent, capsys)
        assert good["state"] == "finished"
        assert "error" not in good
        if name.startswith("last"):
            assert bad["state"] == "stopped"
        else:
            assert bad["error"]
            assert bad["state"] == ("finished" if name == "evaluation.json" else "unreadable")
        assert "finished" in shown

    def test_runs_are_python_objects_too(self, run, capsys):
        stopped = Run.create(run.folder.with_name("b"), CONFIG)
        (run.folder / "evaluation.json").write_text("{")
        first, second = found = list_runs(run.folder.parent)
        assert (first.path, first.state, first.accuracy) == (run.folder, "finished", {})
        assert first.model == "resnet8"
        assert first.error
        assert second.path == stopped.folder
        assert second.resume == f"enresnet resume {stopped.folder}"
        assert listed(run.folder.parent, capsys)[0] == [one.to_json() for one in found]
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            list_runs(run.folder / "nowhere")


class TestIntegrating:
    def test_one_that_was_killed_is_repeated(self, finished, tmp_path, monkeypatch, capsys):
        runs, save = [finished / "0", finished / "1"], Run.save
        whole = integrate(runs, tmp_path / "whole")
        for writes in (0, 1):
            out = tmp_path / "runs" / str(writes)
            left = iter(range(writes))

            def killed(self, *arguments, left=left):
                if next(left, None) is None:
                    raise StopError
                save(self, *arguments)

            monkeypatch.setattr(Run, "save", killed)
            with pytest.raises(StopError):
                integrate(runs, out)
            monkeypatch.setattr(Run, "save", save)
            (found,), _ = listed(out.parent, capsys) if not writes else ([None], "")
            if found:
                assert found["state"] == "stopped"
                assert found["resume"].startswith("enresnet integrate ")
            run = integrate(runs, out)
            assert run.state == "integrated"
            assert_same_weights(run.folder, whole.folder)

    def test_its_best_network_is_all_that_counts(self, finished, tmp_path):
        runs = [finished / "0", finished / "1"]
        run = integrate(runs, tmp_path / "both")
        shutil.rmtree(run.last)
        assert run.finished
        assert run.state == "integrated"
        assert_same_weights(integrate(runs, run.folder).folder, run.folder)

    def test_repeated_it_changes_nothing(self, finished, tmp_path):
        runs = [finished / "0", finished / "1"]
        run = integrate(runs, tmp_path / "both", weights=[3, 1])
        before = content(run.folder)
        integrate(runs, tmp_path / "both", weights=[3, 1])
        assert content(run.folder) == before
        with pytest.raises(FileExistsError, match="another configuration"):
            integrate(runs, tmp_path / "both", weights=[1, 1])

    def test_another_network_is_written_over_only_if_told(self, finished, tmp_path):
        for name in "01":
            shutil.copytree(finished / name, tmp_path / name)
        runs = [tmp_path / "0", tmp_path / "1"]
        run = integrate(runs, tmp_path / "both")
        before = content(run.folder)
        shutil.copy(runs[1] / "best.safetensors", runs[0] / "best.safetensors")  # trained again
        with pytest.raises(FileExistsError, match="holds another network.*--overwrite"):
            integrate(runs, tmp_path / "both")
        assert content(run.folder) == before
        integrate(runs, tmp_path / "both", overwrite=True)
        assert content(run.folder) != before
