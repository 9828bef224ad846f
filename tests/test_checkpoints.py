"""What a run folder holds, and going on from it."""

import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from enresnet.training import Run, RunConfig, train
from enresnet.training.checkpoint import (
    checkpoints,
    facts_of,
    newest_checkpoint,
    write_checkpoint,
)
from enresnet.training.events import Progress
from enresnet.training.state import GuardState, Kept, NetworkState, SelectionState, TrainerState
from processes import dead_process, newest
from trainings import QUICK, StopAt, StopError, assert_same_weights


class TestCheckpoints:
    def test_only_two_are_kept_and_what_is_read_is_what_was_written(self, tmp_path):
        tensors = {"a": torch.rand(3, 4), "b": torch.tensor(7), "c": torch.rand(2).bfloat16()}
        for step in (1, 2, 10):
            write_checkpoint(tmp_path, step, tensors, {"step": step})
        assert [path.name for path in checkpoints(tmp_path)] == [
            "step-0000000002.safetensors",
            "step-0000000010.safetensors",
        ]
        read, facts, damaged = newest_checkpoint(tmp_path)
        assert not damaged
        assert facts == {"step": 10}
        torch.testing.assert_close(read, tensors, rtol=0, atol=0)
        assert newest_checkpoint(tmp_path / "none") is None

    @pytest.mark.parametrize("damage", ["cut", "emptied", "a bit of the weights", "header"])
    def test_a_damaged_one_is_noticed(self, damage, tmp_path):
        for step in (1, 2):
            write_checkpoint(tmp_path, step, {"a": torch.arange(100.0)}, {"step": step})
        path = checkpoints(tmp_path)[-1]
        content = bytearray(path.read_bytes())
        if damage == "cut":
            content = content[:-10]
        elif damage == "emptied":
            content = bytearray()
        elif damage == "header":
            content = bytearray(bytes(content).replace(b'step\\": 2', b'step\\": 3'))
        else:
            content[-5] ^= 1
        assert bytes(content) != path.read_bytes()
        path.write_bytes(content)
        with pytest.warns(UserWarning, match="is damaged .*; looking at the one before"):
            _, facts, damaged = newest_checkpoint(tmp_path)
        assert facts == {"step": 1}
        assert damaged == [path]

    def test_the_one_just_written_is_never_removed(self, tmp_path):
        for step in (40, 50, 56):
            (tmp_path / f"step-{step:010d}.safetensors").write_bytes(b"")
        path = write_checkpoint(tmp_path, 45, {"a": torch.zeros(1)}, {})
        assert path in checkpoints(tmp_path)

    def test_a_folder_of_damaged_ones_is_not_overwritten(self, tmp_path):
        config = RunConfig(model="resnet8", data="digits", recipe=QUICK, limit=200)
        with pytest.raises(StopError):
            train(config, tmp_path / "run", checkpoint_every=0, callbacks=[StopAt(3)])
        for path in checkpoints(tmp_path / "run" / "last"):
            path.write_bytes(b"")
        with (
            pytest.warns(UserWarning, match="is damaged"),
            pytest.raises(ValueError, match="no checkpoint in .* is whole; remove the folder"),
        ):
            train(config, tmp_path / "run")

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"progress": {"step": []}}, r"does not fit resnet8 .*step must be of type int"),
            ({"progress": {"step": 2**40}}, r"does not fit resnet8 .*stands at step"),
            ({"progress": {"epoch": 2**40}}, r"does not fit resnet8 .*stands after"),
            ({"progress": {"epoch": 1}}, r"does not fit resnet8 .*after 1 epochs and tells of 0"),
            ({"natural": "x"}, r"does not fit resnet8 .*the natural accuracy is 'x'"),
            ({"epochs": [{"epoch": 1}]}, r"does not fit resnet8 "),
            ({"selection": {"kept": None, "best": None, "validated": "x"}}, "the selection is"),
            ({"processes": "x" * 5000}, "was trained by 'xxx"),
            ({"native_loops": "x" * 5000}, "cannot go on as it began: 'xxx"),
            ({"run": {"fingerprint": "x" * 5000}}, "checkpoint of another run"),
        ],
    )
    def test_a_whole_one_that_says_nonsense_is_refused(self, changes, words, tmp_path):
        config = RunConfig("resnet8", "digits", replace(QUICK, objective="natural"), limit=64)
        with pytest.raises(StopError):
            train(config, tmp_path, checkpoint_every=0, callbacks=[StopAt(2)])
        tensors, facts, _ = newest_checkpoint(tmp_path / "last")
        for name, value in changes.items():
            facts[name] = {**facts[name], **value} if isinstance(value, dict) else value
        write_checkpoint(tmp_path / "last", 1, tensors, facts)
        with pytest.raises(ValueError, match=words) as caught:
            train(config, tmp_path)
        assert len(str(caught.value)) < 1000

    def test_they_are_plain_tensors_and_json(self, tmp_path):
        config = RunConfig(model="en1_resnet8", data="digits", recipe=QUICK, limit=200)
        with pytest.raises(StopError):
            train(config, tmp_path / "run", checkpoint_every=0, callbacks=[StopAt(3)])
        path = newest(tmp_path / "run")
        names = {name.partition("/")[0] for name in load_file(path)}
        assert names == {"model", "momentum"}
        known = "progress natural guard precision processes teacher epochs selection options run"
        assert [*facts_of(path)] == [*known.split(), "native_loops", "saved"]

    def test_their_names_on_disk_stay(self):
        """A training that began with an earlier version goes on."""
        one = torch.ones(1)
        network = NetworkState({"a": one}, {"a": one}, {"a": one})
        state = TrainerState(network, GuardState(0.5, network), one, Progress(), None, {}, 1, None)
        selection = SelectionState(Kept(1, "why"), 1, one, 1)
        parts = ["average/a", "model/a", "momentum/a"]
        guarded = [f"guard/{name}" for name in parts]
        assert sorted(state.tensors()) == sorted([*parts, *guarded, "weights"])
        assert [*selection.tensors()] == ["selection/scores"]
        assert selection.facts() == {"kept": [1, "why"], "best": 1, "validated": 1}
        assert TrainerState.unpack(state.tensors(), state.facts()) == state
        assert SelectionState.unpack(selection.tensors(), selection.facts()) == selection


class TestRunFolder:
    config = RunConfig(model="en1_resnet8", data="digits", recipe=QUICK, limit=200)

    def test_a_damaged_checkpoint_costs_one_interval(self, tmp_path):
        whole = train(self.config, tmp_path / "whole")
        with pytest.raises(StopError):
            train(self.config, tmp_path / "run", checkpoint_every=0, callbacks=[StopAt(5)])
        path = newest(tmp_path / "run")
        path.write_bytes(path.read_bytes()[:1000])
        seen = StopAt(0)
        with pytest.warns(UserWarning, match="is damaged"):
            run = train(self.config, tmp_path / "run", callbacks=[seen])
        assert seen.resumed.startswith("resuming from step 3 ")
        assert_same_weights(run.folder, whole.folder)
        assert run.finished
        assert not checkpoints(run.last)

    def test_another_configuration_is_refused(self, tmp_path):
        run = train(self.config, tmp_path / "run")
        before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
        other = replace(self.config, recipe=replace(QUICK, epochs=3), seed=1)
        with pytest.raises(
            FileExistsError, match=r"recipe.epochs 2 there, 3 here; seed 0 there, 1 here"
        ):
            train(other, tmp_path / "run")
        assert before == {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}

    def test_other_images_under_the_same_name_are_refused(self, tmp_path):
        from PIL import Image

        for part in ("train", "test"):
            for name in ("cat", "dog"):
                folder = tmp_path / "images" / part / name
                folder.mkdir(parents=True)
                for number in range(6):
                    Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
        config = RunConfig(model="resnet8", data=str(tmp_path / "images"), recipe=QUICK, size=8)
        with pytest.raises(StopError):
            train(config, tmp_path / "run", checkpoint_every=0, callbacks=[StopAt(1)])
        Image.new("RGB", (8, 8), (0, 9, 0)).save(tmp_path / "images" / "train" / "cat" / "0.png")
        with pytest.raises(FileExistsError, match="is a run on other images than those now in"):
            train(config, tmp_path / "run")

    def test_a_folder_that_is_no_run_is_left_alone(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(FileExistsError, match="exists already"):
            train(self.config, tmp_path)
        (tmp_path / "file").write_text("mine")
        with pytest.raises(FileExistsError, match="exists already"):
            train(self.config, tmp_path / "file")

    def test_a_start_cut_short_does_not_block(self, tmp_path):
        (tmp_path / "run").mkdir()
        leftover = tmp_path / "run" / f".config.yaml.{dead_process()}.0a1b2c3d.tmp"
        leftover.write_text("half")
        run = train(self.config, tmp_path / "run")
        assert run.finished
        assert not leftover.exists()

    def test_a_run_is_finished_only_when_its_picture_is_drawn(self, tmp_path, monkeypatch):
        monkeypatch.setattr("enresnet.training.callbacks.Picture._draw", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(self.config, tmp_path / "run", checkpoint_every=0)
        monkeypatch.undo()
        assert not Run.open(tmp_path / "run").finished
        assert (train(self.config, tmp_path / "run").folder / "curves.png").is_file()

    def test_one_process_at_a_time(self, tmp_path):
        def second():
            with pytest.raises(FileExistsError, match="is being trained by another process"):
                train(self.config, tmp_path / "run")
            assert Run.open(tmp_path / "run").running
            raise StopError

        with pytest.raises(StopError):
            train(self.config, tmp_path / "run", callbacks=[StopAt(2, second)])
        assert not Run.open(tmp_path / "run").running

    def test_checkpoints_are_as_seldom_as_they_are_dear(self, tmp_path, monkeypatch):
        written = []

        def slow(*arguments):
            written.append(arguments[1])
            time.sleep(0.3)
            return write_checkpoint(*arguments)

        monkeypatch.setattr("enresnet.training.state.write_checkpoint", slow)
        monkeypatch.setattr("enresnet.training.keeper.SHORTEST", 0.0)
        train(self.config, tmp_path / "run")
        assert len(written) == 1  # a second would have had to wait for thirty seconds
