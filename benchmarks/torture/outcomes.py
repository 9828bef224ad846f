"""What became of an input: answered, held or lost; and how many different answers there were."""

from __future__ import annotations

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


@dataclass
class Tally:
    """The count of one generator."""

    tried: int = 0
    answered: int = 0  # refused with a sentence of ours
    held: int = 0  # taken, and what came out was right
    lost: list[dict[str, Any]] = field(default_factory=list)  # tracebacks, hangs, wrong results
    answers: Counter[str] = field(default_factory=Counter)

    def record(self, outcome: tuple[str, str], number: int) -> None:
        """Count what became of an input."""
        kind, text = outcome
        self.tried += 1
        if kind == "answered":
            self.answered += 1
            self.answers[_shape(text)] += 1
        elif kind == "held":
            self.held += 1
            self.answers[f"held: {_shape(text)}"] += 1
        else:
            self.lost.append({"number": number, "what": text})

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "tried": self.tried,
            "answered": self.answered,
            "held": self.held,
            "lost": len(self.lost),
            "distinct_outcomes": len(self.answers),
            "losses": self.lost[:20],
        }


def judge(error: BaseException) -> tuple[str, str]:
    """Return whether an error is an answer: one of ours, raised by us, in a sentence or few."""
    text = str(error)
    frames = traceback.extract_tb(error.__traceback__)
    raised_by_us = bool(frames) and frames[-1].filename.startswith(PACKAGE)
    if isinstance(error, ANSWERS) and raised_by_us and 0 < len(text) <= LONGEST:
        return "answered", f"{type(error).__name__}: {text}"
    last = "".join(traceback.format_exception(error)[-4:])
    return "lost", f"{type(error).__name__}: {text[:500]}\n{last[-1500:]}"


def _shape(text: str) -> str:
    """Return an answer without what differs from input to input."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "Q", text)
    text = re.sub(r"\S*/\S*", "P", text)
    return re.sub(r"[-+]?\d[\d.e+-]*", "N", text)[:120]
