"""What became of an input: answered, held or lost; and how many different answers there were."""

from __future__ import annotations

import opcode
import re
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import enresnet

PACKAGE = str(Path(enresnet.__file__).parent)
ANSWERS = (ValueError, TypeError, OSError, FloatingPointError, MemoryError)
LONGEST = 2000  # characters of an answer that a person would still read
MOST_LOSSES = 20  # that are told in full
Outcome = tuple[str, str]  # answered, held or lost; and the words


@dataclass
class Tally:
    """The count of one generator, or of a part of it."""

    tried: int = 0
    answered: int = 0  # refused with a sentence of ours
    held: int = 0  # taken, and what came out was right
    lost: int = 0  # tracebacks, hangs, wrong results
    seconds: float = 0.0  # of one core
    outcomes: Counter[str] = field(default_factory=Counter)
    losses: list[dict[str, Any]] = field(default_factory=list)

    def record(self, outcome: Outcome, number: int) -> None:
        """Count what became of an input."""
        kind, text = outcome
        self.tried += 1
        if kind == "answered":
            self.answered += 1
        elif kind == "held":
            self.held += 1
        else:
            self.lost += 1
            self.losses.append({"number": number, "what": text})
        self.outcomes[f"{kind}: {_shape(text)}"] += 1

    def add(self, other: Tally) -> None:
        """Add the count of another part."""
        for name in ("tried", "answered", "held", "lost", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.outcomes += other.outcomes
        self.losses += other.losses

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; the losses beyond the first few are counted only."""
        return {
            **{name: getattr(self, name) for name in ("tried", "answered", "held", "lost")},
            "distinct_outcomes": len(self.outcomes),
            "seconds": round(self.seconds, 1),
            "losses": self.losses[:MOST_LOSSES],
            "outcomes": dict(self.outcomes.most_common()),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Tally:
        """Return what :meth:`to_json` stored."""
        kept = {name: value for name, value in values.items() if name != "distinct_outcomes"}
        return cls(**{**kept, "outcomes": Counter(values["outcomes"])})


class RefusedError(Exception):
    """A command refused its input; the text is what it printed."""


def judge(error: BaseException) -> Outcome:
    """Return whether an error is an answer: one of ours, raised by us, in a sentence or few."""
    text = str(error)
    if isinstance(error, RefusedError):
        return "answered", text
    if isinstance(error, ANSWERS) and _is_raised_by_us(error) and 0 < len(text) <= LONGEST:
        return "answered", f"{type(error).__name__}: {text}"
    last = "".join(traceback.format_exception(error)[-4:])
    return "lost", f"{type(error).__name__}: {text[:500]}\n{last[-1500:]}"


def _is_raised_by_us(error: BaseException) -> bool:
    """Return whether a ``raise`` of the package made the error.

    An error that a built-in function raises in a line of the package, as ``int("x")`` does, is
    none of ours: nobody thought of it.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or not place.tb_frame.f_code.co_filename.startswith(PACKAGE):
        return False
    return place.tb_frame.f_code.co_code[place.tb_lasti] == opcode.opmap["RAISE_VARARGS"]


def _shape(text: str) -> str:
    """Return the words of an outcome without what differs from input to input."""
    text = text.partition("\n")[0]
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "Q", text)
    text = re.sub(r"\S*/\S*", "P", text)
    text = re.sub(r"\b[0-9a-f]{8,}\b", "H", text)
    return re.sub(r"[-+]?\d[\d.e+-]*", "N", text)[:120]
