"""Seeded damage to bytes, text and plain values."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    10**30,
    10**400,
    0.5,
    -0.0,
    1e308,
    -1e308,
    math.inf,
    -math.inf,
    math.nan,
    "",
    " ",
    "8/255",
    "1/0",
    "nan",
    "1e400",
    "x" * 5000,
    "\x1b[31m",
    "[/b]",
    "${x}",
    "../up",
    "a/b",
    "\u202e",
    "é",
    [],
    {},
    [[]],
    [1, "a", None],
    {"a": {"b": [1]}},
    [0.5] * 200,
]


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return bytes with one or several kinds of damage."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 5, 20])):
        kind = draw.randrange(7)
        place = draw.randrange(len(data) + 1)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            data[place:place] = draw.randbytes(draw.choice([1, 4, 64]))
        elif kind == 3:
            end = min(len(data), place + draw.choice([1, 8, 512]))
            data[place:end] = bytes(end - place)
        elif kind == 4:
            del data[place : place + draw.choice([1, 8, 512])]
        elif kind == 5 and len(data) >= 8:
            start = place % (len(data) - 7)
            value = draw.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1])
            data[start : start + 8] = value.to_bytes(8, draw.choice(["little", "big"]))
        else:
            other = draw.randrange(len(data) + 1)
            first, last = sorted((place, other))
            data[place:place] = data[first : min(last, first + 256)]
    return bytes(data)


def damaged_values(values: Any, draw: random.Random) -> Any:
    """Return plain values with a leaf changed, a key removed, added or renamed, or all replaced."""
    values = copy.deepcopy(values)
    for _ in range(draw.choice([1, 1, 2, 4])):
        holder, key = _place(values, draw)
        if holder is None:
            return copy.deepcopy(draw.choice(ODD))
        kind = draw.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            name = draw.choice(["odd", "model", "", "epochs ", "x" * 300])
            holder[name] = copy.deepcopy(draw.choice(ODD))
        elif kind == 2 and isinstance(holder, dict):
            holder[f"{key}s"] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(draw.choice(ODD))  # or it would hold itself
    return values


def _place(values: Any, draw: random.Random) -> tuple[Any, Any]:
    """Return a container inside the values, and one of its keys."""
    holder = values
    while True:
        if isinstance(holder, dict) and holder:
            key: Any = draw.choice(list(holder))
        elif isinstance(holder, list) and holder:
            key = draw.randrange(len(holder))
        else:
            return None, None
        inner = holder[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.7:
            holder = inner
        else:
            return holder, key
