"""The campaign as a whole: parts that are done by several processes, and kept as they are done.

A folder: ``campaign.json`` says of which seed and which code, ``code/`` is a copy of that code,
``parts/`` holds the count of every part. Stopped at any moment, the same command goes on with the
parts that are missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import enresnet
from torture import disk
from torture.faults import CAMPAIGNS
from torture.inputs import GENERATORS
from torture.outcomes import Tally

INPUTS_A_PART, FAULTS_A_PART = 1000, 20
_ROOTS = (Path(enresnet.__file__).resolve().parent, Path(__file__).resolve().parent)
NAMES = (*GENERATORS, *CAMPAIGNS)


@dataclass(frozen=True)
class Part:
    """The inputs or faults ``first`` to ``last - 1`` of one name."""

    name: str
    first: int
    last: int


class Campaign:
    """A campaign's folder; one process at a time may work in it."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.seed = folder.resolve(), seed
        self._lock = (self.folder / "lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            sys.exit(f"{folder} is in use by another campaign, or by what is left of one")
        path, about = self.folder / "campaign.json", {"seed": seed, "code": code_digest()}
        if path.exists() and json.loads(path.read_text()) != about:
            self._lock.close()
            sys.exit(
                f"{folder} holds a campaign of another seed or of other code, and figures of the "
                "two do not mix: choose another --folder, or remove it"
            )
        # Parts run a copy, so that nobody who works on the code disturbs them.
        self._code = self.folder / "code"
        if not path.exists():
            shutil.rmtree(self._code, ignore_errors=True)
            for root in _ROOTS:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(root, self._code / root.name, ignore=ignored)
        _write(path, about)
        (self.folder / "parts").mkdir(exist_ok=True)

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def run(self, wanted: dict[str, int], workers: int) -> Iterator[str]:
        """Do what is missing of so many tries of every name; yield a name whenever it is whole."""
        parts = [part for part in _parts(wanted) if not self._is_done(part)]
        if any(part.name in CAMPAIGNS for part in parts):
            self._prepare()
        left = {name: sum(part.name == name for part in parts) for name in wanted}
        yield from (name for name, count in left.items() if count == 0)
        running: dict[Part, subprocess.Popen[bytes]] = {}
        try:
            while parts or running:
                while parts and len(running) < workers:
                    part = parts.pop(0)
                    running[part] = self._start(part.name, part.first, part.last, self.seed)
                time.sleep(0.05)
                for part in [part for part in running if running[part].poll() is not None]:
                    self._finish(part, running.pop(part).returncode)
                    left[part.name] -= 1
                    if left[part.name] == 0:
                        yield part.name
        finally:
            for process in running.values():  # each has a group of its own
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def again(self, name: str, number: int) -> Tally:
        """Try one input or fault again, counted nowhere."""
        if name in CAMPAIGNS:
            self._prepare()
        part = Part(name, number, number + 1)
        code = self._start(name, number, number + 1, self.seed).wait()
        return self._printed(part, code)

    def tally(self, name: str, tries: int) -> Tally:
        """Return the count of all parts of a name that are done."""
        whole = Tally()
        for part in _parts({name: tries}):
            if self._is_done(part):
                whole.add(Tally.from_json(json.loads(self._path(part).read_text())["tally"]))
        return whole

    def _prepare(self) -> None:
        if not (self.folder / "disk.so").exists():
            disk.build(self.folder)
        ready = (self.folder / "prepared" / "facts.json").exists()
        if not ready and self._start("prepare").wait() != 0:
            sys.exit(f"what the faults need cannot be prepared; see {self.folder / 'log'}")

    def _start(self, *words: object) -> subprocess.Popen[bytes]:
        """Start a part, or the preparations, in a process group of its own."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(self._code)}
        if words[0] in CAMPAIGNS or words[0] == "prepare":
            environment["LD_PRELOAD"] = str(self.folder / "disk.so")
        self._output(*words).parent.mkdir(exist_ok=True)
        with self._output(*words).open("wb") as output, (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "torture.part", str(self.folder), *map(str, words)],
                cwd=self._code,
                stdout=output,
                stderr=log,
                env=environment,
                start_new_session=True,
                pass_fds=[self._lock.fileno()],  # locked for as long as any of them lives
            )

    def _output(self, name: object, first: object = 0, *_: object) -> Path:
        return self.folder / "work" / f"{name}-{first}.json"

    def _printed(self, part: Part, code: int) -> Tally:
        """Return the count that a part printed."""
        path = self._output(part.name, part.first)
        text = path.read_text()
        path.unlink()
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)  # where it worked
        if code == 0:
            return Tally.from_json(json.loads(text))
        tally = Tally()
        tally.record(("lost", f"the part ended with {code}; see {self.folder / 'log'}"), part.first)
        return tally

    def _finish(self, part: Part, code: int) -> None:
        _write(self._path(part), {"last": part.last, "tally": self._printed(part, code).to_json()})

    def _path(self, part: Part) -> Path:
        return self.folder / "parts" / f"{part.name}-{part.first:06d}.json"

    def _is_done(self, part: Part) -> bool:
        path = self._path(part)
        return path.exists() and json.loads(path.read_text())["last"] == part.last


def _parts(wanted: dict[str, int]) -> list[Part]:
    """Return all parts, the first of every name first: trouble shows early."""
    sizes = {name: FAULTS_A_PART if name in CAMPAIGNS else INPUTS_A_PART for name in wanted}
    found = [
        Part(name, first, min(first + sizes[name], tries))
        for name, tries in wanted.items()
        for first in range(0, tries, sizes[name])
    ]
    return sorted(found, key=lambda part: part.first // sizes[part.name])


def code_digest() -> str:
    """Return what tells one version of the package and of the campaign from another."""
    digest = hashlib.sha256()
    for root in _ROOTS:
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".c", ".h", ".yaml"):
                digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _write(path: Path, values: Any) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(values, indent=2) + "\n")
    unfinished.replace(path)
