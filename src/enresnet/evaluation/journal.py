"""Results of a long evaluation, kept as they come, so that it goes on where it was killed.

A folder: ``header.json`` says what is evaluated, and each process appends a line for every piece
of work done to a file of its own. A line cut short by the end of its process is left out.

:class:`Journals` keeps those of several evaluations side by side, so that one that was abandoned
stands in nobody's way.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enresnet import native
from enresnet.common.files import (
    atomic_write,
    is_leftover,
    is_temporary,
    locked,
    remove,
    temporary_path,
    try_lock,
)
from enresnet.common.reading import regular_file

HEADER = "header.json"
LOOPS = "native_loops"
BUSY = "holds this evaluation, which is being made"


class Journal:
    """The results that are there already, and a place for more.

    To what the header says of the evaluation it adds whether the loops in C draw the noise: torch
    draws otherwise from the same seed, and the two do not mix. ``anew`` throws away what is there.
    """

    def __init__(
        self, folder: str | os.PathLike[str], header: dict[str, Any], *, anew: bool = False
    ) -> None:
        self.folder = Path(folder)
        self._anew = anew
        self._header = json.loads(json.dumps({**header, LOOPS: native.library() is not None}))

    def check(self) -> None:
        """Raise if the folder holds the journal of another evaluation."""
        path = self.folder / HEADER
        if not self.folder.exists():
            return
        if not path.is_file():
            if not self.folder.is_dir() or not all(map(is_temporary, self.folder.iterdir())):
                raise FileExistsError(f"{self.folder} is no journal of an evaluation; remove it")
            return
        try:
            there = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is not JSON ({error}); remove {self.folder}") from error
        if not isinstance(there, dict):
            raise ValueError(
                f"{path} must say what is evaluated, found {_brief(there)}; remove {self.folder}"
            )
        begun = there.setdefault(LOOPS, self._header[LOOPS])  # earlier versions do not say
        if reason := native.other_loops(bool(begun)):
            raise FileExistsError(
                f"{self.folder} holds an evaluation that is not finished: {reason}, or remove the "
                "folder to start anew"
            )
        differing = _differing(there, self._header)
        if differing:
            raise FileExistsError(
                f"{self.folder} holds the journal of another evaluation, not finished "
                f"({'; '.join(differing)}): finish that one with its own command, or remove the "
                "folder"
            )

    def start(self) -> None:
        """Make the folder, with its header."""
        if self._anew and self.folder.is_dir():
            if _is_written(self.folder):
                raise FileExistsError(f"{self.folder} {BUSY} by another process")
            remove_journal(self.folder)
        self.check()
        if not (self.folder / HEADER).is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.folder / HEADER) as temporary:
                temporary.write_text(json.dumps(self._header, indent=2) + "\n")

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return what every process has written, by the name of the piece of work."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in regular_file(path).read_bytes().splitlines():
                digest, _, content = line.partition(b" ")
                if digest == _digest(content):
                    entry = json.loads(content)
                    found[entry["unit"]] = entry
        return found

    @contextmanager
    def writer(self, rank: int) -> Iterator[Any]:
        """Yield a function that appends an entry; one process at a time may have it."""
        path = self.folder / f"{rank}.jsonl"
        if path.exists():
            regular_file(path)  # opening a pipe would wait for a reader
        with path.open("ab") as file, locked(file, f"{self.folder} {BUSY}"):
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write(b"\n")  # what was cut short stays alone on its line

            def append(unit: str, values: dict[str, Any]) -> None:
                content = json.dumps({"unit": unit, **values}).encode()
                file.write(_digest(content) + b" " + content + b"\n")
                file.flush()
                os.fsync(file.fileno())

            yield append


class Journals:
    """Journals of several evaluations in one folder, each named after what it is of.

    Args:
        folder: Where they are kept, each in a folder of its own; it need not be there yet.
        restart: Whether to throw away what was kept of the evaluation that is asked for, and of no
            other; False by default.

    Example::

        from enresnet.evaluation import Journals

        journals = Journals("evaluation.journal")
        result = enresnet.evaluate(model, (images, labels), draws=2, seed=0, journal=journals)
        journals.remove()  # once the result is kept elsewhere
    """

    def __init__(self, folder: str | os.PathLike[str], *, restart: bool = False) -> None:
        self.folder = Path(folder)
        self._restart = restart
        self._own: dict[Path, Journal] = {}
        self._place = ""

    def within(self, place: str) -> Journals:
        """Return the same journals for a part of the work, which no header tells from another."""
        part = copy(self)  # what it opens counts as opened here
        part._place = place
        return part

    def open(self, header: dict[str, Any]) -> Journal:
        """Return the journal of the evaluation that a header describes."""
        text = self._place + json.dumps(header, sort_keys=True)
        folder = self.folder / hashlib.sha256(text.encode()).hexdigest()[:12]
        if folder not in self._own:
            self._own[folder] = Journal(folder, header, anew=self._restart)
        return self._own[folder]

    def others(self) -> list[str]:
        """Return a sentence about each evaluation here that is not one of these."""
        found = []
        if (self.folder / HEADER).is_file():
            found.append(
                f"{self.folder} holds an evaluation begun by an earlier version, which this one "
                "does not go on with"
            )
        for path in sorted(self.folder.iterdir() if self.folder.is_dir() else ()):
            if path in self._own or is_temporary(path) or not path.is_dir():
                continue
            if _is_written(path):
                found.append(f"another evaluation{_about(path)} runs beside this one")
            else:
                found.append(
                    f"another evaluation{_about(path)} is not finished: its own command goes on "
                    f"with it, or remove {path}"
                )
        return found

    def kept(self) -> int:
        """Return how many pieces of work these journals hold."""
        return sum(len(journal.entries()) for journal in self._own.values())

    def remove(self, recorded: dict[str, Any] | None = None) -> None:
        """Remove the journals that were opened, and the folder if no other is in it.

        Those of earlier calls go too where nothing is left to do with them: what a dead process was
        removing, and those of evaluations that ``recorded``, the header of all that is recorded
        now, covers.
        """
        for folder in self._own:
            remove_journal(folder)
        recorded = json.loads(json.dumps(recorded))  # as the headers that are stored
        for folder in list(self.folder.iterdir() if self.folder.is_dir() else ()):
            if is_temporary(folder):
                if is_leftover(folder):
                    remove(folder)
            elif recorded and _is_covered(folder, recorded) and not _is_written(folder):
                remove_journal(folder)
        with suppress(OSError):
            self.folder.rmdir()

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Let Ctrl-C say how to go on."""
        try:
            yield
        except KeyboardInterrupt as stop:
            kept = self.kept()
            if not kept:
                raise KeyboardInterrupt("interrupted before the first batch was done") from stop
            raise KeyboardInterrupt(
                f"interrupted; {kept} finished batch{'es' * (kept > 1)} kept in {self.folder}: the "
                "same command goes on from there, with --restart it begins anew"
            ) from stop


def _is_covered(folder: Path, recorded: dict[str, Any]) -> bool:
    """Return whether an evaluation is part of the one that a header describes."""
    try:
        there = json.loads((folder / HEADER).read_text())
        attacks, all_attacks = there["attacks"].items(), recorded["attacks"].items()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    parts = ("attacks", "eot", "natural", LOOPS)
    same = (there.get(key) == value for key, value in recorded.items() if key not in parts)
    return all(same) and all(pair in all_attacks for pair in attacks)


def _about(folder: Path) -> str:
    """Return what a journal's header says of the attacks, for a sentence."""
    try:
        attacks = json.loads((folder / HEADER).read_text())["attacks"]
        return f" ({', '.join(map(str, attacks)) or 'clean images'})"
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _is_written(folder: Path) -> bool:
    """Return whether a living process has one of a journal's files."""
    for path in folder.glob("*.jsonl"):
        with suppress(OSError, ValueError), regular_file(path).open("ab") as file:
            if not try_lock(file):
                return True
    return False


def remove_journal(folder: Path) -> None:
    """Remove a finished journal, and what is left of one whose removal was cut short.

    It is renamed first: half a journal would neither be gone nor be of use.
    """
    if folder.exists():
        remove(folder.rename(temporary_path(folder)))
    for path in list(folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp")):
        if is_leftover(path) and path.is_dir():
            remove(path)


def packed(bits: Tensor) -> dict[str, Any]:
    """Return a tensor of bools as plain JSON."""
    content = np.packbits(bits.flatten().numpy(), bitorder="little").tobytes()
    return {"shape": list(bits.shape), "bits": base64.b64encode(content).decode()}


def unpacked(values: dict[str, Any]) -> Tensor:
    """Return the bools that :func:`packed` packed."""
    shape = torch.Size(values["shape"])
    content = np.frombuffer(base64.b64decode(values["bits"]), np.uint8)
    bits = torch.from_numpy(np.unpackbits(content, bitorder="little")).bool()
    return bits[: shape.numel()].view(shape)


def _digest(content: bytes) -> bytes:
    return f"{zlib.crc32(content):08x}".encode()


def _differing(there: dict[str, Any], here: dict[str, Any], path: str = "") -> list[str]:
    """Return where two headers differ, and how."""
    found = []
    for name in sorted({*there, *here}):
        one, two = there.get(name), here.get(name)
        if isinstance(one, dict) and isinstance(two, dict):
            found += _differing(one, two, f"{path}{name} ")
        elif one != two:
            found.append(f"{path}{name} {_brief(one)} there, {_brief(two)} here")
    return found


def _brief(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
