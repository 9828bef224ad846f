"""Work that is killed, or meets a full disk or an error, at every change of its files in turn.

A command runs in a forked process. At its n-th write, sync, rename, removal or new file the process
ends by ``kill -9`` (a write is torn in the middle), or the disk is full from then on, or the call
fails once with EIO. Kills at random moments, dropped connections and two processes of which one is
killed come beside. The same command then runs again, to its end. Held is what came out as if
nothing had happened; lost is a traceback, a hang, a command that can no longer be run, a file left
behind, or one bit that differs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from torture import disk, sandbox, site
from torture.outcomes import Outcome, Tally
from torture.processes import Process, become_command, nothing

TRAIN = (
    "train --model en1_resnet8 --data digits --recipe fast --epsilon 0.1 --epochs 2 --limit 64 "
    "--batch-size 32 --checkpoint-every 0"
)
EVALUATE = "evaluate run0 --attacks fgsm ifgsm3 --limit 40 --batch-size 20 --draws 2 --out {out}"
SITE = "site"  # the folder that the site serves
ATTEMPTS = 5  # at a fault that a command may outrun
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Work:
    """A command, and what must be the same after it."""

    command: str  # {out} is its folder
    result: Callable[[Path], Any]
    makes_out: bool = False  # whether its folder must be there before
    environment: str | None = None  # the variable that tells it its folder, instead of an option
    starts_others: bool = False  # whether it starts processes by its own command line


def _networks(folder: Path) -> Any:
    """Return the bytes of both networks, and the accuracies of every epoch."""
    rows = [row.split(",") for row in (folder / "metrics.csv").read_text().splitlines()]
    kept = [n for n, name in enumerate(rows[0]) if name not in ("images_per_second", "seconds")]
    return {
        "best": (folder / "best.safetensors").read_bytes(),
        "last": (folder / "last" / "model.safetensors").read_bytes(),
        "metrics": [[row[n] for n in kept] for row in rows],
    }


def _figures(folder: Path) -> Any:
    """Return evaluation.json without times, and the scores of every image."""
    scores = load_file(folder / "scores.safetensors")
    return {
        "evaluation": json.loads((folder / "evaluation.json").read_text()),
        "scores": {name: value.tolist() for name, value in scores.items()},
    }


WORKS = {
    "train": Work(f"{TRAIN} --out {{out}}", _networks),
    "evaluate": Work(EVALUATE, _figures),
    "devices": Work(f"{EVALUATE} --devices 2", _figures, starts_others=True),
    "integrate": Work(
        "integrate run0 run1 --out {out}",
        lambda folder: (folder / "best.safetensors").read_bytes(),
    ),
    "transfer": Work(
        "transfer --matrix run0 run1 --attacks fgsm --limit 20 --batch-size 10 --draws 2 "
        "--journal {out}/journal --json {out}/matrix.json",
        lambda folder: json.loads((folder / "matrix.json").read_text()),
        makes_out=True,
    ),
    "download": Work(
        "data cifar10",
        lambda folder: (folder / "cifar10.safetensors").read_bytes(),
        environment="ENRESNET_DATA",
    ),
}
AT_EVERY_CHANGE = ("kill", "full", "error")
CAMPAIGNS = {
    f"{work}-{how}": (work, how)
    for work in ("train", "evaluate", "integrate", "transfer", "download")
    for how in (*AT_EVERY_CHANGE, "moment")
}
CAMPAIGNS |= {
    "download-drop": ("download", "drop"),
    "train-pair": ("train", "pair"),
    "evaluate-pair": ("evaluate", "pair"),
    "download-pair": ("download", "pair"),
    "evaluate-devices": ("devices", "devices"),
}

# How the kills are shared out. About as many as a command changes files, so that of the default
# every change has its turn; few where half a minute goes into starting processes.
_CHANGES = {"train": 122, "evaluate": 40, "integrate": 25, "transfer": 32, "download": 62}
WEIGHTS = {
    name: _CHANGES[work] if how in AT_EVERY_CHANGE else 8 if how == "devices" else 20
    for name, (work, how) in CAMPAIGNS.items()
}


def prepare(folder: Path) -> None:
    """Make, once, what the campaigns need: two networks, a site, every command's right result."""
    sandbox.enter(folder)
    Path(SITE).mkdir()
    site.write_archive(Path(SITE))
    for number in (0, 1):
        words = f"{TRAIN} --epochs 1 --seed {number} --out run{number}"
        _whole(words.split())
    Path("whole").mkdir()
    with site.serving(Path(SITE)) as port:
        facts = {name: _measured(work, Path("whole", name), port) for name, work in WORKS.items()}
    Path("facts.json").write_text(json.dumps(facts, indent=2))


def _measured(work: Work, out: Path, port: int) -> dict[str, Any]:
    """Run a command whole; return how often it changes files, what it imports, and its time."""
    out, measured = out.absolute(), Path("measured").absolute()
    words = _words(work, out)

    def before() -> None:
        _set_up(work, out, port)
        disk.arm(out, Path("told"), "count")
        if work.starts_others:
            become_command(words)

    def after() -> None:
        found = {"changes": disk.changes(), "modules": list(sys.modules)}
        measured.write_text(json.dumps(found))

    measured.write_text(json.dumps({"changes": 0, "modules": []}))
    started = time.monotonic()
    _whole(words, before, after)
    return {**json.loads(measured.read_text()), "seconds": time.monotonic() - started}


def _whole(
    words: list[str], before: Callable[[], None] = nothing, after: Callable[[], Any] = nothing
) -> None:
    process = Process.start(words, Path("said"), before, after)
    code = process.wait()
    assert code == 0, f"{' '.join(words)} ended with {code} before any fault\n{process.said()}"


def try_faults(name: str, first: int, last: int, seed: int, folder: Path, prepared: Path) -> Tally:
    """Let the faults ``first`` to ``last - 1`` of a campaign happen; count what became of them."""
    work_name, how = CAMPAIGNS[name]
    sandbox.enter(folder)
    for part in (SITE, "run0", "run1", "matplotlib", "cache"):
        shutil.copytree(prepared / part, part, dirs_exist_ok=True)
    facts = json.loads((prepared / "facts.json").read_text())[work_name]
    for module in facts["modules"]:  # imported once for all processes that are forked
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    trial = _Trial(WORKS[work_name], how, facts["changes"], facts["seconds"])
    trial.expect(prepared / "whole" / work_name, prepared)
    tally = Tally()
    with site.serving(Path(SITE)) as port:
        trial.port = port
        for number in range(first, last):
            draw = random.Random(f"{seed} {name} {number}")
            tally.record(trial.run(number, draw), number)
    return tally


class _Trial:
    """One command, tried with one kind of fault."""

    def __init__(self, work: Work, how: str, changes: int, seconds: float) -> None:
        self.work, self.how, self.changes, self.seconds = work, how, changes, seconds
        self.out, self.told, self.port = Path("out").absolute(), Path("told").absolute(), 0
        self.reached = False  # whether the last fault happened before the command was done

    def expect(self, whole: Path, prepared: Path) -> None:
        """Keep what comes out without a fault."""
        self.expected = _plain(self.work.result(whole), whole, prepared)
        self.files = _files(whole)

    def run(self, number: int, draw: random.Random) -> Outcome:
        """Let the fault happen, repeat the command, and judge what came out."""
        for _ in range(ATTEMPTS):
            shutil.rmtree(self.out, ignore_errors=True)
            self.told.unlink(missing_ok=True)
            kind, words = self._meet(number, draw)
            if self.reached or kind == "lost":
                break
        if kind == "lost":
            return kind, words
        started, again = time.monotonic(), self._start()
        code, took = again.wait(), time.monotonic() - started
        self.seconds = (self.seconds + took) / 2  # random moments are to lie within the work
        if code != 0:
            return "lost", f"{words}: the same command then ended with {code}\n{again.said()}"
        try:
            found = _plain(self.work.result(self.out), self.out, Path.cwd())
        except Exception as error:
            return "lost", f"{words}: no result ({error})"
        if differing := _difference(self.expected, found):
            return "lost", f"{words}: the result differs\n{differing}"
        if odd := _files(self.out) ^ self.files:
            return "lost", f"{words}: files left or missing\n{', '.join(sorted(odd))}"
        return kind, words

    def _meet(self, number: int, draw: random.Random) -> Outcome:
        """Let the fault happen."""
        if self.how == "pair":
            return self._two(draw)
        if self.how == "devices":
            return self._one_of_several(draw)
        # Every change in turn, those far apart first; later rounds meet several in a row.
        step, outcome = _coprime(self.changes), ("lost", "nothing was tried")
        for further in range(1 + min(2, number // self.changes)):
            at = 1 + number * step % self.changes if further == 0 else draw.randint(1, self.changes)
            outcome = self._one(at, draw)
            if outcome[0] == "lost":
                break
        return outcome

    def _start(self, before: Callable[[], None] = nothing, said: str = "said") -> Process:
        def first() -> None:
            _set_up(self.work, self.out, self.port)
            before()
            if self.work.starts_others:
                become_command(words)

        words = _words(self.work, self.out)
        return Process.start(words, Path(said).absolute(), first)

    def _one(self, at: int, draw: random.Random) -> Outcome:
        """Run the command into one fault."""
        if self.how == "drop":
            size = (Path(SITE) / "cifar-10-binary.tar.gz").stat().st_size
            (Path(SITE) / "drop").write_text(str(draw.randrange(size)))
        armed = self.how in AT_EVERY_CHANGE
        process = self._start(
            (lambda: disk.arm(self.out, self.told, self.how, at)) if armed else nothing
        )
        if self.how == "moment":
            process.kill_after(draw.random() * self.seconds)
        code = process.wait()
        self.reached = code == -signal.SIGKILL if self.how == "moment" else True
        return self._judged(process, code, self._where() if armed else self.how)

    def _two(self, draw: random.Random) -> Outcome:
        """Run the command twice at the same time; one of the two is killed."""
        victim = draw.choice([0, 0, 1])  # the second may be refused before it changes much
        at = draw.randint(1, self.changes if victim == 0 else max(1, self.changes // 4))
        delay = draw.choice([0, 0, draw.random() * self.seconds])
        pair = []
        for number in range(2):
            before = (
                (lambda: disk.arm(self.out, self.told, "kill", at)) if number == victim else nothing
            )
            pair.append(self._start(before, f"said{number}"))
            time.sleep(delay if number == 0 else 0)
        outcomes = [self._judged(process, process.wait(), "two") for process in pair]
        lost = [outcome for outcome in outcomes if outcome[0] == "lost"]
        survivor = outcomes[1 - victim]
        self.reached = self.told.exists()
        return lost[0] if lost else (survivor[0], f"{self._where()}; {survivor[1]}")

    def _one_of_several(self, draw: random.Random) -> Outcome:
        """Kill one of the processes that share the work, at a random moment."""
        process = self._start()
        started, moment = time.monotonic(), draw.random() * self.seconds
        while not process.ended() and time.monotonic() - started < moment:
            time.sleep(0.01)
        others = process.others()
        victim = draw.choice([process.number, *others, *others])
        self.reached = not process.ended()
        if self.reached:
            os.kill(victim, signal.SIGKILL)
        whom = "the first" if victim == process.number else "another"
        return self._judged(process, process.wait(120), f"killed {whom}")

    def _where(self) -> str:
        """Return what met the fault, without what differs from run to run."""
        if not self.told.exists():
            return f"{self.how} not reached"
        what, _, path = self.told.read_text().strip().partition(" ")
        name = re.sub(r"\.\d+\.[0-9a-f]{8,16}\.tmp$", ".tmp", Path(path).name)
        return f"{self.how} at {what} of {name}"

    def _judged(self, process: Process, code: int | None, words: str) -> Outcome:
        if code is None:
            return "lost", f"{words}: no end\n{process.said()}"
        if code not in (0, 2, -signal.SIGKILL):
            return "lost", f"{words}: ended with {code}\n{process.said()}"
        if "Traceback" in process.said():
            return "lost", f"{words}: a traceback\n{process.said()}"
        if code == 2:
            last = [line for line in process.said().splitlines() if line.startswith("enresnet:")]
            if not last:
                return "lost", f"{words}: ended with 2 without a word\n{process.said()}"
            return "answered", f"{words}: {last[-1]}"
        return "held", f"{words}: {'killed' if code else 'done'}"


def _coprime(count: int) -> int:
    """Return a step that leads round so many places in large strides and leaves none out."""
    first = max(1, round(GOLDEN * count))
    return next(step for step in range(first, first + count) if math.gcd(step, count) == 1)


def _words(work: Work, out: Path) -> list[str]:
    if work.makes_out:
        out.mkdir(exist_ok=True)
    return work.command.format(out=out).split()


def _set_up(work: Work, out: Path, port: int) -> None:
    if work.environment is not None:
        os.environ[work.environment] = str(out)
        site.use(Path(SITE), port)


def _files(folder: Path) -> set[str]:
    """Return the names of all files; those for TensorBoard have one more for every start."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in found if not name.startswith("tensorboard")}


def _plain(values: Any, out: Path, here: Path) -> Any:
    """Return a result without times, and with paths that do not say which folder it is in."""
    if isinstance(values, dict):
        timeless = {name: value for name, value in values.items() if "second" not in str(name)}
        return {name: _plain(value, out, here) for name, value in timeless.items()}
    if isinstance(values, list):
        return [_plain(value, out, here) for value in values]
    if isinstance(values, str):
        return values.replace(str(out), "OUT").replace(str(here), "HERE")
    return values


def _difference(one: Any, two: Any, where: str = "") -> str:
    """Return where two results differ first, or nothing."""
    if type(one) is type(two) and isinstance(one, dict) and one.keys() == two.keys():
        found = (_difference(one[name], two[name], f"{where}/{name}") for name in one)
        return next(filter(None, found), "")
    if type(one) is type(two) and isinstance(one, list) and len(one) == len(two):
        found = (_difference(a, b, f"{where}/{n}") for n, (a, b) in enumerate(zip(one, two)))  # noqa: B905
        return next(filter(None, found), "")
    return "" if one == two else f"{where}: {str(one)[:200]} is now {str(two)[:200]}"
