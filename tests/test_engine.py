"""The engine: checkpoints, exact resume, faults, what a user sees of it."""

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import torch
from safetensors.torch import load_file

from enresnet import files as files_module
from enresnet.cli import main
from enresnet.data import DataSet, Images, load_data
from enresnet.models import create_model
from enresnet.training import Engine, Recipe, Run, RunConfig, Trainer, Watcher, load_recipe, train
from enresnet.training import memory as memory_module
from enresnet.training.batches import share_of, step_rows
from enresnet.training.checkpoint import checkpoints, newest_checkpoint, write_checkpoint
from enresnet.training.interruption import InterruptedTrainingError
from problems import seeded
from processes import LINE, finish, kill, newest, start, wait_for

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = Recipe(epochs=2, steps=2, epsilon=0.1, step_size=0.05, batch_size=32)


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=300)


def assert_same_weights(run, other):
    """Raise if the networks of two runs differ in any bit."""
    for name in ("best.safetensors", "last/model.safetensors"):
        torch.testing.assert_close(load_file(run / name), load_file(other / name), rtol=0, atol=0)


class StopError(Exception):
    """Ends a training as a crash would."""


RECIPES = {
    "pgd": QUICK,
    "ema and one cycle": replace(QUICK, ema=0.9, schedule="one_cycle", objective="trades"),
    "guard": replace(QUICK, objective="fgsm_rs", epochs=3, reset_momentum=True),
    "learned weights, awp": replace(QUICK, weight_step=0.1, awp=True, memory="lean"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_trainer_put_back_goes_on_bit_for_bit(name, digits):
    """Stop at every kind of place: within the first epoch, in the last, between epochs."""
    recipe = RECIPES[name]
    model = "en1_resnet8+resnet8" if recipe.weight_step else "en2_resnet8"
    kind = RunConfig(model=model, data="digits", recipe=recipe)
    whole = Trainer(kind.create_model(digits), digits, recipe)
    states = {}

    def remember(_):
        tensors = {name: tensor.clone() for name, tensor in whole.tensors().items()}
        states[whole.steps_done] = (tensors, json.loads(json.dumps(whole.facts())))

    epochs = list(whole.epochs(remember))
    for step in (3, whole.steps, whole.steps + 1, whole.steps * recipe.epochs):
        again = Trainer(kind.create_model(digits), digits, recipe)
        again.restore(*states[step])
        rest = list(again.epochs())
        for before, after in zip(epochs[-len(rest) :], rest, strict=True):
            assert replace(before, seconds=0, images_per_second=0) == replace(
                after, seconds=0, images_per_second=0
            )
        torch.testing.assert_close(again.tensors(), whole.tensors(), rtol=0, atol=0)
        torch.testing.assert_close(
            again.result.state_dict(), whole.result.state_dict(), rtol=0, atol=0
        )


def test_a_collapse_is_remembered(digits):
    recipe = RECIPES["guard"]
    trainer = Trainer(create_model("resnet8", in_channels=1), digits, recipe)
    trainer._go_on_with_pgd()
    again = Trainer(create_model("resnet8", in_channels=1), digits, recipe)
    again.restore({k: v.clone() for k, v in trainer.tensors().items()}, trainer.facts())
    assert again.objective.recipe.objective == "pgd"
    assert again.objective.recipe.steps == 2


TRAIN = "train --model en1_resnet8 --data digits --recipe fast --epsilon 0.1 --batch-size 32"


def wait_for_progress(process, run):
    """Wait until a training writes a checkpoint, or ends."""
    before = newest(run)
    wait_for(lambda: newest(run) not in (None, before) or process.poll() is not None)


def campaign(tmp_path, *, kills, epochs, every, log=None):
    """Kill a real training at random moments; return every resumed run's lines."""
    words = [*TRAIN.split(), "--epochs", epochs, "--checkpoint-every", every]
    finish(*words, "--out", tmp_path / "whole")
    run, moments, lines, killed = tmp_path / "killed", random.Random(0), [], None
    while True:
        process = start(*words, "--out", run)
        if len(lines) < kills:
            wait_for_progress(process, run)
            time.sleep(moments.uniform(0, 3 * every))
        else:
            process.wait(timeout=300)
        ended = process.poll() is not None
        out, err = process.communicate() if ended else kill(process)
        found = LINE.search(out)
        if killed is not None:
            assert found, (out, err)
            step, saved = int(found[1]), datetime.fromisoformat(found[2])
            assert step > 0
            assert killed - saved < timedelta(seconds=every + 5)
            lines.append(f"killed {killed:%H:%M:%S.%f}, {found[0]}")
        killed = datetime.now(UTC)
        if ended:
            break
    if log is not None:
        log.write_text("\n".join(lines) + "\n")
    assert len(lines) >= kills, "the training was over before the kills were"
    assert_same_weights(run, tmp_path / "whole")
    rows, expected = Run.open(run).metrics(), Run.open(tmp_path / "whole").metrics()
    timing = ("seconds", "images_per_second")
    assert [{k: v for k, v in row.items() if k not in timing} for row in rows] == [
        {k: v for k, v in row.items() if k not in timing} for row in expected
    ]
    return lines


def test_kill_and_go_on(tmp_path):
    campaign(tmp_path, kills=2, epochs=6, every=0.2)


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    lines = campaign(tmp_path, kills=20, epochs=60, every=0.3, log=tmp_path / "kills.log")
    print("\n".join(lines))


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
            train(config, tmp_path / "run", checkpoint_every=0, watchers=[StopAt(3)])
        for path in checkpoints(tmp_path / "run" / "last"):
            path.write_bytes(b"")
        with (
            pytest.warns(UserWarning, match="is damaged"),
            pytest.raises(ValueError, match="no checkpoint in .* is whole; remove the folder"),
        ):
            train(config, tmp_path / "run")

    def test_they_are_plain_tensors_and_json(self, tmp_path):
        config = RunConfig(model="en1_resnet8", data="digits", recipe=QUICK, limit=200)
        with pytest.raises(StopError):
            train(config, tmp_path / "run", checkpoint_every=0, watchers=[StopAt(3)])
        path = newest(tmp_path / "run")
        names = {name.partition("/")[0] for name in load_file(path)}
        assert names == {"model", "momentum"}


class StopAt(Watcher):
    """Ends a training as a crash would, without a last word."""

    def __init__(self, step, action=None):
        self.at, self.action = step, action

    def begin(self, run, trainer, epochs, resumed):  # noqa: ARG002
        self.trainer, self.resumed = trainer, resumed

    def step(self, step):  # noqa: ARG002
        if self.trainer.steps_done == self.at:
            if self.action is None:
                raise StopError
            self.action()


class TestRunFolder:
    config = RunConfig(model="en1_resnet8", data="digits", recipe=QUICK, limit=200)

    def test_a_damaged_checkpoint_costs_one_interval(self, tmp_path):
        whole = train(self.config, tmp_path / "whole")
        with pytest.raises(StopError):
            train(self.config, tmp_path / "run", checkpoint_every=0, watchers=[StopAt(5)])
        path = newest(tmp_path / "run")
        path.write_bytes(path.read_bytes()[:1000])
        seen = StopAt(0)
        with pytest.warns(UserWarning, match="is damaged"):
            run = train(self.config, tmp_path / "run", watchers=[seen])
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
            train(config, tmp_path / "run", checkpoint_every=0, watchers=[StopAt(1)])
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
        leftover = tmp_path / "run" / ".config.yaml.123.0a1b2c3d.tmp"
        leftover.write_text("half")
        run = train(self.config, tmp_path / "run")
        assert run.finished
        assert not leftover.exists()

    def test_a_run_is_finished_only_when_its_picture_is_drawn(self, tmp_path, monkeypatch):
        watcher = sys.modules["enresnet.training.watcher"]
        monkeypatch.setattr(watcher.Picture, "_draw", lambda _: 1 / 0)
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
            train(self.config, tmp_path / "run", watchers=[StopAt(2, second)])
        assert not Run.open(tmp_path / "run").running

    def test_checkpoints_are_as_seldom_as_they_are_dear(self, tmp_path, monkeypatch):
        written = []

        def slow(*arguments):
            written.append(arguments[1])
            time.sleep(0.3)
            return write_checkpoint(*arguments)

        module = sys.modules["enresnet.training.train"]  # the package's name is the function
        monkeypatch.setattr(module, "write_checkpoint", slow)
        monkeypatch.setattr(module, "SHORTEST", 0.0)
        train(self.config, tmp_path / "run")
        assert len(written) == 1  # a second would have had to wait for thirty seconds


class TestFaults:
    config = RunConfig(model="resnet8", data="digits", recipe=QUICK, limit=200)

    def test_a_full_disk(self, tmp_path, monkeypatch):
        real, calls = files_module.os.fsync, []

        def full(number):
            calls.append(number)
            if len(calls) > 3:  # the configuration and two checkpoints
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(number)

        monkeypatch.setattr(files_module.os, "fsync", full)
        message = (
            "cannot write to .*: No space left on device; the state of step 2 is kept.*; "
            "once that is mended, run the same command again"
        )
        with pytest.raises(OSError, match=message):
            train(self.config, tmp_path / "run", checkpoint_every=0)
        monkeypatch.setattr(files_module.os, "fsync", real)
        assert not list((tmp_path / "run").rglob("*.tmp"))
        seen = StopAt(0)
        train(self.config, tmp_path / "run", watchers=[seen])
        assert seen.resumed.startswith("resuming from step 2 ")

    def test_a_file_that_may_not_grow(self, tmp_path):
        """The system's own refusal, wherever it comes: here in writing the networks."""
        limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000,) * 2);"
        code = f"{limit} from enresnet.cli import main; sys.exit(main(sys.argv[1:]))"
        words = "train --model resnet14 --data digits --recipe natural --limit 200 --epochs 2"
        done = subprocess.run(
            [sys.executable, "-c", code, *words.split(), "--out", str(tmp_path / "run")],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 2, done.stderr
        assert "cannot write to" in done.stderr
        assert "File too large; nothing was stored yet" in done.stderr
        assert "Traceback" not in done.stderr
        assert not list((tmp_path / "run").rglob("*.tmp"))

    @pytest.mark.parametrize("recipe", ["paper", "fast", "natural"])
    def test_a_rate_that_ruins_the_network(self, recipe, tmp_path, capsys):
        words = f"train --model en1_resnet8 --data digits --recipe {recipe} --limit 300 --epochs 2"
        more = ["--learning-rate", "1e30", "--batch-size", "32", "--out", str(tmp_path / "run")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of gradients that are not finite
            assert main([*words.split(), *more]) == 2
        shown = capsys.readouterr().err
        assert re.search(r"the loss became (nan|inf) in epoch 1, step \d+; start another", shown)
        assert "nothing was stored yet" in shown

    def test_a_loss_that_is_not_finite(self, tmp_path):
        def spoil():
            with torch.no_grad():
                watcher.trainer.model.classifier.weight.fill_(torch.nan)

        watcher = StopAt(3, spoil)
        with pytest.raises(FloatingPointError, match="no longer finite after step 3.*step 2 is"):
            train(self.config, tmp_path / "run", checkpoint_every=0, watchers=[watcher])
        _, facts, _ = newest_checkpoint(tmp_path / "run" / "last")
        assert facts["progress"]["step"] == 2
        watcher = StopAt(3, spoil)
        with (
            pytest.warns(UserWarning, match="gradient was not finite"),
            pytest.raises(
                FloatingPointError, match="the loss became nan in epoch 1, step 4; .*step 2 is kept"
            ),
        ):
            train(self.config, tmp_path / "run", checkpoint_every=60, watchers=[watcher])

    def test_a_class_without_images(self, tmp_path):
        config = replace(self.config, limit=8)
        with pytest.raises(ValueError, match="digits has no training image of . of its 10 classes"):
            train(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_less_memory_than_needed(self, digits, monkeypatch):
        model = create_model("en3_resnet8", in_channels=1)
        few, _ = digits.train.batch(slice(2))
        parts = memory_module.networks_of(model)
        plain = sum(memory_module.activation_bytes(part, few) for part in parts) / 2
        monkeypatch.setattr(memory_module, "free_memory", lambda: 100 * plain)
        assert not memory_module.choose_memory(model, few, 50, "auto")
        assert memory_module.choose_memory(model, few, 51, "auto")
        message = r"batch_size=128 takes .* GiB of activations.*memory=lean would take .* GiB"
        with pytest.raises(MemoryError, match=message) as raised:
            memory_module.choose_memory(model, few, 128, "plain")
        assert "batch_size=80 would fit" in str(raised.value)
        with pytest.raises(MemoryError, match="free: batch_size=") as raised:
            memory_module.choose_memory(model, few, 1000, "auto")
        assert "memory=lean would" not in str(raised.value)

    def test_memory_that_runs_out_later(self, tmp_path):
        def burst():
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you ...")

        with pytest.raises(MemoryError, match="try batch_size=16 in another run; .*step 1 is kept"):
            train(
                self.config,
                tmp_path / "run",
                checkpoint_every=0,
                watchers=[StopAt(2, burst)],
            )

    def test_hardware_that_is_not_there(self):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        for words, message in (
            ({"accelerator": "gpu"}, "accelerator=gpu, devices=1 cannot be had here"),
            ({"precision": "16-mixed"}, "16-mixed needs a GPU; on a CPU take bf16-mixed"),
            ({"sync_batchnorm": True}, "sync_batchnorm needs GPUs"),
            ({"accelerator": "tpu"}, "accelerator must be one of"),
            ({"precision": "8"}, "precision must be one of"),
            ({"devices": 0}, "devices must be at least 1"),
        ):
            with pytest.raises(ValueError, match=message):
                Engine(**words)


class TestInterruption:
    config = RunConfig(model="resnet8", data="digits", recipe=QUICK, limit=200)

    @pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
    def test_a_signal_saves_and_says_how_to_go_on(self, name, tmp_path):
        number = getattr(signal, name)
        before = signal.getsignal(number)
        ask = StopAt(3, lambda: os.kill(os.getpid(), number))
        with pytest.raises(
            InterruptedTrainingError, match="step [34] is kept.*enresnet resume"
        ) as e:
            train(self.config, tmp_path / "run", watchers=[ask])
        assert e.value.exit_code == 128 + number
        assert signal.getsignal(number) is before
        _, facts, _ = newest_checkpoint(tmp_path / "run" / "last")
        assert facts["progress"]["step"] in (3, 4)

    def test_validation_does_not_keep_anyone_waiting(self, tmp_path, monkeypatch):
        from enresnet.training import validation as validation_module

        def long(*_, **__):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
            raise AssertionError("went on")

        monkeypatch.setattr(validation_module, "evaluate", long)
        with pytest.raises(InterruptedTrainingError):
            train(self.config, tmp_path / "run", checkpoint_every=0)
        monkeypatch.undo()
        seen = StopAt(0)
        train(self.config, tmp_path / "run", watchers=[seen])
        assert "(epoch 1, step 6 of 6)" in seen.resumed

    def test_the_command_line(self, tmp_path):
        words = [*TRAIN.split(), "--epochs", "200", "--out", tmp_path / "run"]
        process = start(*words, "--checkpoint-every", "0.1")
        wait_for(lambda: newest(tmp_path / "run") is not None)
        _, err = kill(process, signal.SIGTERM)
        assert process.returncode == 143
        assert "enresnet: interrupted: the state of step" in err
        assert f"enresnet resume {tmp_path / 'run'}" in err
        assert "Traceback" not in err


class TestWatching:
    def test_pictures_and_tables(self, tmp_path, capsys):
        config = RunConfig(model="resnet8", data="digits", recipe=QUICK, limit=200)
        run = train(config, tmp_path / "runs" / "a")
        assert (run.folder / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert list((run.folder / "tensorboard").iterdir())
        assert {"train_natural", "train_robust"} <= set(run.metrics()[0])
        with pytest.raises(StopError):
            train(config, tmp_path / "runs" / "b", watchers=[StopAt(7)], checkpoint_every=0)
        (tmp_path / "runs" / "c").mkdir()
        (tmp_path / "runs" / "c" / "config.yaml").write_text("modle: x")
        (tmp_path / "runs" / "d").mkdir()
        words = "model: resnet8\ndata: digits\nrecipe: {epochs: 1.5}\n"
        (tmp_path / "runs" / "d" / "config.yaml").write_text(words)
        target = tmp_path / "list.json"
        assert main(["runs", str(tmp_path / "runs"), "--json", str(target)]) == 0
        shown = capsys.readouterr().out
        a, b, c, d = json.loads(target.read_text())
        assert (a["state"], b["state"]) == ("finished", "stopped")
        assert c["state"] == d["state"] == "unreadable"
        assert (a["epochs_done"], b["epochs_done"]) == (2, 1)
        assert a["resume"] is None
        assert b["resume"] == f"enresnet resume {tmp_path / 'runs' / 'b'}"
        assert "enresnet resume" in shown
        assert main(["resume", str(tmp_path / "runs" / "b")]) == 0
        shown = capsys.readouterr().out
        assert "resuming from step 6 " in shown
        assert "epoch 2/2: loss" in shown
        assert main(["resume", str(tmp_path / "runs" / "b")]) == 0
        assert "finished already; best on validation" in capsys.readouterr().out
        assert main(["runs", str(tmp_path / "none")]) == 2

    def test_plain_lines(self, tmp_path, capsys, monkeypatch):
        from enresnet.cli import watching

        monkeypatch.setattr(watching, "PATIENCE", 0.0)
        words = f"{TRAIN} --limit 200 --epochs 2 --out {tmp_path / 'run'}".split()
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "epoch 2/2, step 3/6: loss" in shown
        assert " images/s, 0:0" in shown
        assert " left" in shown
        assert "\x1b" not in shown


def test_every_image_once_an_epoch_whatever_the_number_of_processes():
    for count, size, processes in ((10, 4, 1), (100, 32, 3), (97, 32, 4), (5, 2, 2), (7, 8, 7)):
        seen = []
        for rows in step_rows(count, size * processes, processes):
            here = list(range(count))[rows]
            for rank in range(processes):
                engine = type("Two", (), {"processes": processes, "rank": rank})
                own = here[share_of(len(here), engine)]
                assert own
                seen += own
        assert seen == list(range(count))


def test_reduced_precision_trains_to_the_same():
    data = load_data("digits")
    recipe = load_recipe("fast", epochs=4, epsilon=0.1, batch_size=64)
    accuracies = {}
    for precision in ("32", "bf16-mixed"):
        model = create_model("en1_resnet8", in_channels=1, generator=seeded())
        engine = Engine(accelerator="cpu", precision=precision)
        *_, last = Trainer(model, data, recipe, engine=engine).epochs()
        accuracies[precision] = last.validation_natural
        assert next(model.parameters()).dtype == torch.float32
    assert min(accuracies.values()) > 0.8
    assert abs(accuracies["32"] - accuracies["bf16-mixed"]) < 0.1


def test_more_processes_than_images_are_refused(digits):
    few = Images(digits.train.pixels[:3], digits.train.labels[:3], digits.classes, 16)
    data = DataSet.of(few, few)
    engine = Engine(accelerator="cpu")
    engine.processes = 3
    with pytest.raises(ValueError, match="3 processes for 2 images"):
        Trainer(create_model("resnet8", in_channels=1), data, QUICK, engine=engine)


def test_another_number_of_processes_is_refused(digits):
    trainer = Trainer(create_model("resnet8", in_channels=1), digits, QUICK)
    facts = {**trainer.facts(), "processes": 2}
    with pytest.raises(ValueError, match="trained by 2 processes and cannot go on with 1"):
        trainer.restore(trainer.tensors(), facts)
