"""How options read in --help: an option that may be left out shows what it takes, not None."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

_WORDS = {Path: "PATH", int: "INT", float: "NUMBER", str: "TEXT"}


def readable(command: Callable[..., Any]) -> None:
    """Give every option that may be left out a plain name for its value, and its text whole lines.

    Lines of the docstring end where the source is wide enough, not the terminal.
    """
    hints = _readable_hints(command, set())
    for name, parameter in inspect.signature(command).parameters.items():
        if get_origin(hints[name]) is Annotated and tyro.conf.Positional in get_args(hints[name]):
            hints[name] = _positional(name, hints[name])
        elif parameter.default == () and get_origin(hints[name]) is tuple:
            hints[name] = _plainly(hints[name])
    command.__annotations__ = hints
    command.__doc__ = _unwrapped(inspect.cleandoc(command.__doc__ or ""))


def _unwrapped(text: str) -> str:
    """Return a docstring with every argument on one line."""
    start, section, arguments = text.partition("Args:\n")
    return start + section + re.sub(r"\n {8,}", " ", arguments)


def _readable_hints(owner: Any, seen: set[type]) -> dict[str, Any]:
    hints = get_type_hints(owner, include_extras=True)
    for hint in hints.values():
        for part in _dataclasses_in(hint):
            if part not in seen:
                seen.add(part)
                part.__annotations__ = _readable_hints(part, seen)
    return {name: _readable(hint) for name, hint in hints.items()}


def _dataclasses_in(hint: Any) -> list[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [found for part in get_args(hint) for found in _dataclasses_in(part)]


def _readable(hint: Any) -> Any:
    if get_origin(hint) not in (types.UnionType, Union) or type(None) not in get_args(hint):
        return hint
    return _plainly(hint)


def _positional(name: str, hint: Any) -> Any:
    """Call a positional argument what it is, and not required where there may be none or many."""
    word = name.upper()
    if get_origin(get_args(hint)[0]) is tuple:
        word = word.removesuffix("S")
        return Annotated[hint, tyro.conf.arg(metavar=f"{word} ...", help_behavior_hint="")]
    return Annotated[hint, tyro.conf.arg(metavar=word)]


def _plainly(hint: Any) -> Any:
    kind = hint
    if get_origin(hint) in (types.UnionType, Union):
        (kind,) = (part for part in get_args(hint) if part is not type(None))
    return Annotated[hint, tyro.conf.arg(metavar=_word(kind), help_behavior_hint="")]


def _word(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"{_word(get_args(kind)[0])} ..."
    if get_origin(kind) is Annotated:
        return _word(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return _WORDS[kind]
