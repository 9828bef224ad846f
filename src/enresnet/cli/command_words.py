"""What can be typed after ``enresnet``: commands, their options, and the words these take.

Read from the signatures of the commands, as tyro reads them. ``tests/test_completion.py`` compares
the options with those that every command's ``--help`` lists.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from enresnet.cli import COMMANDS
from enresnet.cli.options import flattened

MOST_TEXT = 70  # characters of a description


@dataclass(frozen=True)
class Values:
    """What an option or a command takes: one of some words, a path, either, or something else.

    Args:
        words: The words.
        paths: Whether it may be the path of a file or folder.
        many: Whether there may be several.
    """

    words: tuple[str, ...] = ()
    paths: bool = False
    many: bool = False


@dataclass(frozen=True)
class Option:
    """An option, its description, and its values; None if it takes none."""

    name: str
    text: str
    values: Values | None


@dataclass(frozen=True)
class CommandWords:
    """A command, as ("pde", "figure4"); () is ``enresnet`` itself.

    Args:
        name: The words that name it.
        text: Its description.
        options: Its options.
        values: What it takes besides; None if nothing.
        branches: Whether ``values`` are the names of commands inside it.
    """

    name: tuple[str, ...]
    text: str
    options: tuple[Option, ...]
    values: Values | None = None
    branches: bool = False


def read_commands() -> list[CommandWords]:
    """Return all commands, ``enresnet`` itself first, and those inside others behind them."""
    known = _known_values()
    found = [_root(), CommandWords(("help",), "Show a command's options.", (), _commands())]
    for name, text in COMMANDS.items():
        command = flattened(importlib.import_module(f"enresnet.cli.{name}").command)
        found += _read((name,), text, _Parameters.of_function(command), known)
    return found


def _root() -> CommandWords:
    version = Option("--version", "Show the version.", None)
    names = Values((*COMMANDS, "help"))
    options = (Option("-V", "Show the version.", None), version)
    return CommandWords((), "", (*_HELP, *options), names, branches=True)


_HELP = (Option("-h", "Show the options.", None), Option("--help", "Show the options.", None))


def _commands() -> Values:
    return Values(tuple(COMMANDS))


@dataclass(frozen=True)
class _Parameters:
    """What a function or a dataclass takes, by name: types, defaults, descriptions."""

    hints: dict[str, Any]
    defaults: dict[str, Any]
    texts: dict[str, str]

    @classmethod
    def of_function(cls, command: Any) -> _Parameters:
        parameters = inspect.signature(command).parameters
        described = inspect.cleandoc(command.__doc__ or "").partition("Args:\n")[2]
        texts = re.findall(r"^ {4}(\w+): ([^\n]*(?:\n {8}[^\n]*)*)", described, re.MULTILINE)
        return cls(
            {name: one.annotation for name, one in parameters.items()},
            {name: one.default for name, one in parameters.items()},
            {name: " ".join(text.split()) for name, text in texts},
        )

    @classmethod
    def of_class(cls, kind: type) -> _Parameters:
        hints = get_type_hints(kind, include_extras=True)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        return cls(
            {name: hints[name] for name in fields},
            {name: field.default for name, field in fields.items()},
            {},
        )


def _read(
    name: tuple[str, ...], text: str, parameters: _Parameters, known: dict[str, Values]
) -> Iterator[CommandWords]:
    """Yield a command, and those inside it."""
    options: list[Option] = [*_HELP]
    values: Values | None = None
    inside: dict[str, type] = {}
    for parameter, hint in parameters.hints.items():
        kind, notes = _without_notes(hint)
        parts = [part for part in get_args(kind) if _is_dataclass(part)]
        if parts:
            inside = {_dashed(part.__name__): part for part in parts}
        elif _is_dataclass(kind):
            (group,) = _read(name, "", _Parameters.of_class(kind), known)
            options += group.options[len(_HELP) :]
        elif tyro.conf.Positional in notes:
            values = _values_of(name, parameter, kind, known)
        else:
            help_text = next((note.help for note in notes if getattr(note, "help", None)), "")
            help_text = _short(help_text or parameters.texts.get(parameter, ""))
            default = parameters.defaults[parameter]
            options.append(_option(name, parameter, kind, default, help_text, known))
    if not inside:
        yield CommandWords(name, text, tuple(options), values)
        return
    yield CommandWords(name, text, tuple(options), Values(tuple(inside)), branches=True)
    for word, part in inside.items():
        summary = (inspect.getdoc(part) or "").partition("\n")[0]
        yield from _read((*name, word), summary, _Parameters.of_class(part), known)


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _without_notes(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its annotations, and these; what tyro builds it by is its type."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    kind, *notes = get_args(hint)
    for note in notes:
        if (made_by := getattr(note, "constructor_factory", None)) is not None:
            kind = made_by()
    return kind, tuple(notes)


def _option(
    name: tuple[str, ...],
    parameter: str,
    kind: Any,
    default: Any,
    text: str,
    known: dict[str, Values],
) -> Option:
    word = parameter.replace("_", "-")
    if kind is bool:
        return Option(f"--no-{word}" if default is True else f"--{word}", text, None)
    return Option(f"--{word}", text, _values_of(name, parameter, kind, known))


def _values_of(
    name: tuple[str, ...], parameter: str, kind: Any, known: dict[str, Values]
) -> Values:
    by_type = _values(kind)
    for key in (" ".join((*name, parameter)), parameter):
        if key in known:
            return dataclasses.replace(known[key], many=by_type.many)
    return by_type


def _values(kind: Any) -> Values:
    """Return what the values of a type can be."""
    kind, _ = _without_notes(kind)
    if get_origin(kind) is Literal:
        return Values(tuple(word for word in map(str, get_args(kind)) if word != "as-recipe"))
    if kind is bool:
        return Values(("True", "False"))
    if kind is Path:
        return Values(paths=True)
    if get_origin(kind) is tuple:
        return dataclasses.replace(_values(get_args(kind)[0]), many=True)
    if get_origin(kind) in (types.UnionType, Union):
        parts = [_values(part) for part in get_args(kind) if part is not type(None)]
        return Values(
            tuple(word for part in parts for word in part.words),
            paths=any(part.paths for part in parts),
            many=any(part.many for part in parts),
        )
    return Values()


def _known_values() -> dict[str, Values]:
    """Return the known words of options whose type is str, by "option" or by "command option"."""
    from enresnet.attacks import list_attacks
    from enresnet.common.precision import TRAINING_PRECISIONS
    from enresnet.data.registry import NAMES
    from enresnet.models import list_models, list_pretrained
    from enresnet.paper.plan import ALL, targets
    from enresnet.pde.flow import DATA
    from enresnet.training import Recipe, list_recipes
    from enresnet.training.engine import ACCELERATORS

    models = Values(tuple(card.name for card in list_pretrained()), paths=True)
    data = Values(tuple(NAMES), paths=True)
    fields = {name: _values(hint) for name, hint in get_type_hints(Recipe).items()}
    return {
        **{f"train {name}": values for name, values in fields.items() if values.words},
        **dict.fromkeys(
            ("model", "oracle", "target", "matrix", "natural", "train teacher"), models
        ),
        "train model": Values(tuple(list_models())),
        "data": data,
        "data name": data,
        "recipe": Values(tuple(list_recipes()), paths=True),
        "natural_recipe": Values(tuple(list_recipes()), paths=True),
        "reproduce recipe": Values((*list_recipes(), "smoke"), paths=True),
        "reproduce targets": Values((*targets(), ALL)),
        "reproduce data": Values(("cifar10", "cifar100")),
        "attacks": Values(tuple(list_attacks())),
        "checkpoint": Values(("best", "last")),
        "precision": Values(TRAINING_PRECISIONS),
        "accelerator": Values(tuple(ACCELERATORS)),
        "pde classifier data": Values(tuple(DATA)),
        "pde figure4 device": Values(("cpu", "cuda")),
    }


def _dashed(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def _short(text: str) -> str:
    """Return the first sentence of a description, or as much of it as fits on a line."""
    sentence = re.split(r"[.;] |[.;]$", text)[0]
    if len(sentence) <= MOST_TEXT:
        return sentence
    return sentence[: MOST_TEXT - 3].rpartition(" ")[0] + " ..."
