"""The gate at every public entry: what is wrong with an argument, what was found, what to do.

Each function returns its value so that a constructor reads as a list of its arguments.
"""

from __future__ import annotations

import difflib
import math
import numbers
import reprlib
from collections.abc import Collection
from typing import TypeVar

Word = TypeVar("Word", bound=str)


def boolean(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, found {brief(value)}")
    return value


def number(name: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Return ``value`` as a finite float in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, found {_show(value)}")
    try:
        result = float(value)
    except OverflowError:  # an integer beyond all floats
        result = math.inf
    if not (math.isfinite(result) and low <= result <= high):
        raise ValueError(f"{name} must be {_range(low, high)}, found {brief(value)}")
    return result


def integer(name: str, value: object, *, low: int) -> int:
    """Return ``value`` as an int of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, found {_show(value)}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, found {brief(value)}")
    return int(value)


def choice(name: str, value: object, known: Collection[Word]) -> Word:
    """Return ``value`` if it is one of the known words."""
    for word in known:
        if isinstance(value, str) and value == word:
            return word
    raise ValueError(
        f"{name} must be one of {', '.join(sorted(known))}; found {brief(value)}"
        + did_you_mean(value, known)
    )


def did_you_mean(value: object, known: Collection[str], *, most: int = 3) -> str:
    """Return a closing sentence that names near matches, or nothing when there are none."""
    near = difflib.get_close_matches(str(value).lower(), known, n=most, cutoff=0.6)
    return f". Did you mean {' or '.join(near)}?" if near else ""


def brief(value: object) -> str:
    """Return what an error shows of a value: its ``repr``, cut short, however much it holds."""
    return _short.repr(value)


_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother, _short.maxlong = 3, 80, 80, 80


def _show(value: object) -> str:
    return f"{brief(value)} of type {type(value).__name__}"


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return "finite"
    if math.isinf(high):
        return f"finite and at least {low:g}"
    return f"between {low:g} and {high:g}"
