"""What goes wrong in a training, who interrupts it and who watches."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from enresnet.cli import main
from enresnet.common import files as files_module
from enresnet.data import load_data
from enresnet.models import create_model
from enresnet.training import Engine, RunConfig, train
from enresnet.training import memory as memory_module
from enresnet.training.callbacks import TensorBoard
from enresnet.training.checkpoint import newest_checkpoint
from enresnet.training.events import Step
from enresnet.training.interruption import InterruptedTrainingError
from processes import kill, newest, start, wait_for
from trainings import QUICK, TRAIN, StopAt, StopError


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=300)


class TestFaults:
    config = RunConfig(model="resnet8", data="digits", recipe=QUICK, limit=200)

    def test_a_full_disk(self, tmp_path, monkeypatch):
        real, calls = files_module.os.fsync, []

        def full(number):
            calls.append(number)
            if len(calls) > 4:  # the configuration, the environment and two checkpoints
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
        train(self.config, tmp_path / "run", callbacks=[seen])
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
                callback.trainer.model.classifier.weight.fill_(torch.nan)

        callback = StopAt(3, spoil)
        with pytest.raises(FloatingPointError, match="no longer finite after step 3.*step 2 is"):
            train(self.config, tmp_path / "run", checkpoint_every=0, callbacks=[callback])
        _, facts, _ = newest_checkpoint(tmp_path / "run" / "last")
        assert facts["progress"]["step"] == 2
        callback = StopAt(3, spoil)
        with (
            pytest.warns(UserWarning, match="gradient was not finite"),
            pytest.raises(
                FloatingPointError, match="the loss became nan in epoch 1, step 4; .*step 2 is kept"
            ),
        ):
            train(self.config, tmp_path / "run", checkpoint_every=60, callbacks=[callback])

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
                callbacks=[StopAt(2, burst)],
            )

    def test_hardware_that_is_not_there(self):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        for words, message in (
            ({"accelerator": "gpu"}, "accelerator=gpu, devices=1 is not available here"),
            ({"precision": "16-mixed"}, "precision 16 needs a GPU; on a CPU take bf16"),
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
            train(self.config, tmp_path / "run", callbacks=[ask])
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
        train(self.config, tmp_path / "run", callbacks=[seen])
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


class TestTensorBoard:
    step = Step(1, 20, 40, 32, loss=0.5, learning_rate=0.1, natural=0.25, robust=None)

    def begun(self, tmp_path):
        run = SimpleNamespace(folder=tmp_path)
        callback = TensorBoard()
        callback.begin(run, SimpleNamespace(steps_done=20), [], "")
        return callback

    def test_what_it_reads(self, tmp_path):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        callback = self.begun(tmp_path)
        callback.step(self.step)
        (path,) = (tmp_path / "tensorboard").iterdir()
        first, start, *events = EventFileLoader(str(path)).Load()  # while it is written
        assert first.file_version == "brain.Event:2"
        assert (start.step, start.session_log.status) == (20, start.session_log.START)
        assert {event.summary.value[0].tag for event in events} == {
            "loss",
            "natural",
            "learning_rate",
        }
        callback.end()

    def test_what_it_cannot_write_ends_nothing(self, tmp_path):
        (tmp_path / "tensorboard").write_text("in the way")
        with pytest.warns(UserWarning, match="nothing more is written for TensorBoard"):
            callback = self.begun(tmp_path)
        callback.step(self.step)
        callback.end()

    def test_a_disk_that_fails(self, tmp_path, monkeypatch):
        callback = self.begun(tmp_path)
        broken = SimpleNamespace(write=self.fail, close=lambda: None)
        callback._file.close()
        monkeypatch.setattr(callback, "_file", broken)
        with pytest.warns(UserWarning, match="Input/output error"):
            callback.step(self.step)
        callback.step(self.step)
        callback.end()

    @staticmethod
    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class TestWatching:
    def test_pictures_and_tables(self, tmp_path, capsys):
        config = RunConfig(model="resnet8", data="digits", recipe=QUICK, limit=200)
        run = train(config, tmp_path / "runs" / "a")
        assert (run.folder / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert list((run.folder / "tensorboard").iterdir())
        assert {"train_natural", "train_robust"} <= set(run.metrics()[0])
        with pytest.raises(StopError):
            train(config, tmp_path / "runs" / "b", callbacks=[StopAt(7)], checkpoint_every=0)
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
        assert "finished already; kept as the best" in capsys.readouterr().out
        assert main(["runs", str(tmp_path / "none")]) == 2

    def test_plain_lines(self, tmp_path, capsys, monkeypatch):
        from enresnet.cli import terminal

        monkeypatch.setattr(terminal, "PATIENCE", 0.0)
        words = f"{TRAIN} --limit 200 --epochs 2 --out {tmp_path / 'run'}".split()
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "epoch 2/2, step 3/6: loss" in shown
        assert " images/s, 0:0" in shown
        assert " left" in shown
        assert "\x1b" not in shown
