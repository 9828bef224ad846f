"""Two real processes over gloo: what they do together, and one without the other."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from enresnet.training import engine
from processes import LINE, finish, newest, start, wait_for


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return what one process and two processes tell of the same work."""
    script = Path(__file__).with_name("two_processes.py")
    told = {}
    for devices in (1, 2):
        out = tmp_path_factory.mktemp(f"told{devices}")
        subprocess.run(
            [sys.executable, str(script), str(out), str(devices)],
            check=True,
            timeout=300,
        )
        told[devices] = [
            (json.loads((out / f"{rank}.json").read_text()), load_file(out / f"{rank}.t"))
            for rank in range(devices)
        ]
    return told


def test_every_image_is_seen_once_and_the_split_is_the_same(told):
    (one, _), (two, _) = told[2]
    assert (one["rank"], two["rank"]) == (0, 1)
    assert sorted(one["rows"] + two["rows"]) == list(range(99))
    assert abs(len(one["rows"]) - len(two["rows"])) <= 1
    assert one["data"] == two["data"] == told[1][0][0]["data"]


def test_a_step_is_that_of_one_process_with_the_doubled_batch(told):
    (_, alone), (_, together) = told[1][0], told[2][0]
    same = [key for key in alone if not key.startswith("noisy")]
    assert any("first" in key for key in same)
    for key in same:
        torch.testing.assert_close(together[key], alone[key], rtol=1e-4, atol=1e-6)


def test_processes_stay_alike(told):
    """Weights, averages, momenta and BatchNorm statistics, bit for bit."""
    (one, first), (two, second) = told[2]
    assert any("running_mean" in key for key in first)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert (one["score"], one["loss"]) == (two["score"], two["loss"])


def test_noise_and_random_starts_differ(told):
    (one, _), (two, _) = told[2]
    assert one["noise"] != two["noise"]
    assert one["starts"] != two["starts"]


WORDS = (
    "train --model en1_resnet8 --data digits --recipe fast --epsilon 0.1 --batch-size 16 "
    "--devices 2 --accelerator cpu --checkpoint-every 0.2 --epochs"
).split()


def children(process):
    """Return the processes that a process started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process.pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find the other process")
@pytest.mark.parametrize("victim", ["second", "first"])
def test_one_process_killed(victim, tmp_path):
    run = tmp_path / "run"
    process = start(*WORDS, 5, "--out", run)
    wait_for(lambda: newest(run) is not None or process.poll() is not None)
    (child,) = children(process)
    time.sleep(0.5)
    os.kill(child if victim == "second" else process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert "another process of this training ended" in err
    assert "to go on, run the same command again" in err
    assert "Traceback" not in err
    assert process.returncode != 0
    wait_for(lambda: not Path(f"/proc/{child}").exists(), seconds=30)
    if victim == "second":
        shown = finish(*WORDS, 5, "--out", run)
        assert int(LINE.search(shown)[1]) > 0
        assert shown.count("epoch 5/5: loss") == 1  # one process speaks
        finish(*WORDS, 5, "--out", tmp_path / "whole")
        for name in ("best.safetensors", "last/model.safetensors"):
            torch.testing.assert_close(
                load_file(run / name), load_file(tmp_path / "whole" / name), rtol=0, atol=0
            )


def test_the_launcher_lets_a_process_speak_before_it_kills(monkeypatch):
    from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver

    class Ended:
        pid, returncode = 1, -9

        def poll(self):
            return self.returncode

    happened, woken = [], threading.Event()
    monkeypatch.setattr(_ChildProcessObserver, "_terminate_all", lambda _: happened.append("kill"))
    monkeypatch.setattr(engine, "GRACE", 0.5)
    observer = _ChildProcessObserver(os.getpid(), [Ended()], sleep_period=0.1)
    monkeypatch.setattr(observer, "run", lambda: (woken.wait(), observer._run()))
    observer.start()
    engine._give_time_to_speak()
    woken.set()
    time.sleep(0.2)
    happened.append("speak")
    observer.join()
    assert happened == ["speak", "kill"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find the other process")
def test_a_process_left_alone_before_they_met_does_not_wait(tmp_path):
    process = start(*WORDS, 50, "--out", tmp_path / "run")
    wait_for(lambda: children(process) or process.poll() is not None)
    os.kill(process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)  # it returns when the second has ended too
    assert "the first process of this training is gone" in err


@pytest.mark.parametrize("to", ["first", "second"])
def test_a_signal_to_one_ends_both(to, tmp_path):
    process = start(*WORDS, 200, "--out", tmp_path / "run")
    wait_for(lambda: newest(tmp_path / "run") is not None)
    (child,) = children(process)
    os.kill(process.pid if to == "first" else child, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.count("enresnet: interrupted: the state of step") == 1
    assert f"enresnet resume {tmp_path / 'run'} --devices 2 --accelerator cpu" in err
    assert "deprecated" not in err
    wait_for(lambda: not Path(f"/proc/{child}").exists(), seconds=30)
