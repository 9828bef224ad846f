"""Options of commands: shared ones, and how all of them read in --help."""

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


class Flat:
    """Marks a dataclass whose fields become options of the command, in the same place."""


def flattened(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the fields of its flat dataclasses as options, in their places.

    Tyro can leave out their prefix too, but shows them behind all other options. What the command's
    docstring says of a field counts before what the dataclass's says.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: get_args(hint)[0] for name, hint in hints.items() if Flat in get_args(hint)}
    text, parameters = inspect.cleandoc(command.__doc__ or ""), []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        own = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(f.name, parameter.kind, default=f.default, annotation=own[f.name])
            for f in dataclasses.fields(groups[name])
        ]
        entries = _unwrapped(inspect.cleandoc(groups[name].__doc__)).partition("Args:\n")[2]
        for entry in entries.splitlines():
            known = f"\n{entry.partition(':')[0]}:" in text
            text += "" if known else f"\n{entry}"

    def flat(*values: Any, **named: Any) -> Any:
        for name, kind in groups.items():
            fields = [field.name for field in dataclasses.fields(kind)]
            named[name] = kind(**{field: named.pop(field) for field in fields})
        return command(*values, **named)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    flat.__doc__ = text
    return flat


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
        if get_origin(kind) is Literal:
            hint = Annotated[hint, _one_of(get_args(kind))]
    return Annotated[hint, tyro.conf.arg(metavar=_word(kind), help_behavior_hint="")]


def _one_of(words: tuple[str, ...]) -> Any:
    """Return how one of some words is read; None stands for the option left out, and is no word."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(words),
        choices=words,
        instance_from_str=lambda typed: typed[0],
        is_instance=lambda value: value is None or value in words,
        str_from_instance=lambda value: [str(value)],
    )


def _word(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"{_word(get_args(kind)[0])} ..."
    if get_origin(kind) is Annotated:
        return _word(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return _WORDS[kind]
