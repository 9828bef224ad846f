"""Work that is killed, or meets a full disk, at every write, sync, rename and removal in turn.

A command runs in a forked process. At its n-th event that touches the disk the process ends as by
``kill -9``, or the event fails as on a full disk. The same command then runs again, to its end.
Held is what came out as if nothing had happened; lost is a traceback, a hang, a command that can no
longer be run, or one bit that differs.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from enresnet.cli import main
from torture import sandbox
from torture.outcomes import Tally

PATIENCE = 300.0  # seconds that one command may take
KILLED = 137
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod")
TRAIN = (
    "train --model en1_resnet8 --data digits --recipe fast --epsilon 0.1 --epochs 2 --limit 120 "
    "--batch-size 32 --checkpoint-every 0"
)


@dataclass(frozen=True)
class Work:
    """A command, what it needs, and what must be the same after it."""

    command: str  # {out} is its folder
    result: Callable[[Path], Any]
    prepare: Callable[[Path], None] = lambda _: None  # once, before all


def _networks(folder: Path) -> Any:
    """Return the bytes of both networks, and the accuracies of every epoch."""
    rows = (folder / "metrics.csv").read_text().splitlines()
    timed = {"images_per_second", "seconds"}
    names = rows[0].split(",")
    kept = [n for n, name in enumerate(names) if name not in timed and name != "kept"]
    return (
        (folder / "best.safetensors").read_bytes(),
        (folder / "last" / "model.safetensors").read_bytes(),
        [[row.split(",")[n] for n in kept if n < len(row.split(","))] for row in rows],
    )


def _figures(folder: Path) -> Any:
    """Return evaluation.json without times, and the scores of every image."""
    scores = load_file(folder / "scores.safetensors")
    return _timeless(json.loads((folder / "evaluation.json").read_text())), {
        name: value.tolist() for name, value in scores.items()
    }


def _timeless(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _timeless(value) for name, value in values.items() if "second" not in name}
    return values


def _trained(folder: Path) -> None:
    """Train the two networks that other commands need."""
    for number in (0, 1):
        words = f"{TRAIN} --epochs 1 --seed {number} --out {folder}/run{number}"
        code = _in_child(words.split(), lambda: None)
        assert code == 0, f"the training for this campaign ended with {code}"


WORKS = {
    "train": Work(f"{TRAIN} --out {{out}}", _networks),
    "evaluate": Work(
        "evaluate run0 --attacks fgsm ifgsm3 --limit 40 --batch-size 20 --draws 2 --out {out}",
        _figures,
        _trained,
    ),
    "integrate": Work(
        "integrate run0 run1 --out {out}",
        lambda folder: (folder / "best.safetensors").read_bytes(),
        _trained,
    ),
    "transfer": Work(
        "transfer --matrix run0 run1 --attacks fgsm --limit 20 --batch-size 10 --draws 2 "
        "--journal {out}/journal --json {out}/matrix.json",
        lambda folder: _timeless(json.loads((folder / "matrix.json").read_text())),
        _trained,
    ),
}


def campaign(name: str, how: str) -> Callable[[int, int, Path], Tally]:
    """Return a campaign: ``how`` is kill, full (a full disk) or moment (kills at random times)."""

    def run(times: int, seed: int, folder: Path) -> Tally:
        return _forked(lambda: _campaign(WORKS[name], how, times, seed), folder)

    return run


CAMPAIGNS: dict[str, Callable[[int, int, Path], Tally]] = {
    f"{name}-{how}": campaign(name, how) for name in WORKS for how in ("kill", "full", "moment")
}


def _campaign(work: Work, how: str, times: int, seed: int) -> Tally:
    """Run the command whole, then with a fault at one event after the other."""
    tally, draw = Tally(), random.Random(f"{seed} {how} {work.command}")
    here = Path.cwd()
    work.prepare(here)
    counted = here / "events"
    started = time.monotonic()
    code = _run(work, here / "whole", lambda: _count_into(counted))
    seconds = time.monotonic() - started
    assert code == 0, f"{work.command} ended with {code} before any fault"
    expected, events = work.result(here / "whole"), int(counted.read_text())
    for number in range(times):
        out = here / "out"
        shutil.rmtree(out, ignore_errors=True)
        at = 1 + number % events if number < events else draw.randint(1, events)
        if how == "moment":
            code = _run(work, out, lambda: None, kill_after=draw.random() * seconds)
        else:
            code = _run(work, out, lambda at=at: _fail_at(at, full=how == "full"))  # type: ignore[misc]
        tally.record(_outcome(work, out, expected, code, how, at), number)
    return tally


def _outcome(
    work: Work, out: Path, expected: Any, code: int | None, how: str, at: int
) -> tuple[str, str]:
    where = f"{how} at event {at}"
    if code is None:
        return "lost", f"{where}: no end"
    if code not in (0, 1, 2, KILLED, -signal.SIGKILL):
        return "lost", f"{where}: ended with {code}\n{_said()}"
    if "Traceback" in _said():
        return "lost", f"{where}: a traceback\n{_said()}"
    answered = "answered" if code == 2 else "held"
    again = _run(work, out, lambda: None)
    if again != 0:
        return "lost", f"{where}: the same command then ended with {again}\n{_said()}"
    if work.result(out) != expected:
        return "lost", f"{where}: the result differs"
    leftovers = [str(path) for path in out.rglob("*.tmp")]
    if leftovers:
        return "lost", f"{where}: left {', '.join(leftovers[:3])}"
    return answered, f"{how}, code {code}"


def _run(
    work: Work, out: Path, before: Callable[[], None], kill_after: float | None = None
) -> int | None:
    if work.command.startswith("transfer"):
        out.mkdir(exist_ok=True)
    return _in_child(work.command.format(out=out).split(), before, kill_after)


def _said() -> str:
    return Path("said.txt").read_text(errors="replace")[-1500:]


def _in_child(
    words: list[str], before: Callable[[], None], kill_after: float | None = None
) -> int | None:
    """Run a command in a forked process; return its exit code, None if it did not end."""
    child = os.fork()
    if child == 0:
        _become(words, before)
    started, killed = time.monotonic(), False
    while time.monotonic() - started < PATIENCE:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if kill_after is not None and not killed and time.monotonic() - started > kill_after:
            os.kill(child, signal.SIGKILL)
            killed = True
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _become(words: list[str], before: Callable[[], None]) -> None:
    """Be the command: what it says goes to a file, and the process ends with its code."""
    code = 99
    with Path("said.txt").open("w") as said:
        try:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            sys.stdout = sys.stderr = io.TextIOWrapper(os.fdopen(1, "wb", 0), write_through=True)
            warnings.simplefilter("ignore")
            before()
            code = main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc(file=said)
            said.flush()
        finally:
            with contextlib.suppress(BaseException):
                _report()
            os._exit(code)


_report: Callable[[], Any] = lambda: None  # noqa: E731


def _on_every_event(action: Callable[[], None]) -> None:
    """Call ``action`` before everything that changes one of the command's own files."""
    own = tuple(f"{Path.cwd() / name}{os.sep}" for name in ("out", "whole"))

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS or (event == "open" and sandbox.is_write(arguments)):
            path = arguments[0]
            if isinstance(path, str | os.PathLike) and f"{Path(path).absolute()}/".startswith(own):
                action()

    sync = os.fsync

    def synced(number: int) -> None:
        action()
        sync(number)

    os.fsync = synced
    sys.addaudithook(heard)


def _count_into(path: Path) -> None:
    global _report
    count = 0

    def count_one() -> None:
        nonlocal count
        count += 1

    _on_every_event(count_one)
    _report = lambda: path.write_text(str(count))  # noqa: E731


def _fail_at(number: int, *, full: bool) -> None:
    count = 0

    def fail() -> None:
        nonlocal count
        count += 1
        if count != number:
            return
        if not full:
            os._exit(KILLED)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _on_every_event(fail)


def _forked(work: Callable[[], Tally], folder: Path) -> Tally:
    """Do work in a process of its own inside the sandbox, and return its tally."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            sandbox.enter(folder)
            tally = work()
            text = json.dumps({**vars(tally), "answers": dict(tally.answers)})
            with os.fdopen(writing, "w") as pipe:
                pipe.write(text)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    tally = Tally()
    if not text:
        tally.record(("lost", "the campaign itself ended"), 0)
        return tally
    values = json.loads(text)
    tally.answers.update(values.pop("answers"))
    for name, value in values.items():
        setattr(tally, name, value)
    return tally
