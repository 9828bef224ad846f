"""Files that others may have written, read within bounds.

A name says nothing of what stands behind it: a FIFO never ends, a few lines of YAML can describe
more than any memory holds. What is refused is refused in a sentence.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

LARGEST_HEADER = 1 << 24  # bytes, of a safetensors file
LARGEST_YAML = 1 << 16  # bytes; ours have two thousand
MOST_NODES = 10_000  # values with all aliases written out; ours have a hundred
MOST_DIGITS = 1000  # of an integer; Python refuses 4300, with advice for programmers
DEEPEST = 16  # levels of nesting; ours have three


def regular_file(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if it is a plain file, or a link to one: only those are sure to end."""
    found = Path(path)
    if not found.exists():
        raise FileNotFoundError(f"{found} does not exist")
    if not found.is_file():
        kind = "a folder" if found.is_dir() else "a pipe, a socket or a device"
        raise ValueError(f"{found} must be a plain file, found {kind}: remove it")
    return found


def safetensors_digest(path: str | os.PathLike[str]) -> str | None:
    """Return the digest that a safetensors file of ours carries, without reading its tensors.

    None where there is no such file, or it carries none.
    """
    try:
        with regular_file(path).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= LARGEST_HEADER else {}
        found = header["__metadata__"]["sha256"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a folder; what no path can be, as a text too long, is none."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def read_yaml(path: str | os.PathLike[str], *, name: str | None = None) -> Any:
    """Return what a YAML file holds, as plain values; ``name`` is what errors call the file."""
    where = name or str(path)
    with regular_file(path).open("rb") as file:
        content = file.read(LARGEST_YAML + 1)
    if len(content) > LARGEST_YAML:
        raise ValueError(f"{where} must be at most {LARGEST_YAML} bytes of YAML, found more")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text: {error}") from error
    return parse_yaml(text, name=where)


def parse_yaml(text: str, *, name: str) -> Any:
    """Return what a YAML text holds, as plain values.

    Raises:
        ValueError: It is not YAML, names a field twice, or is larger or deeper than a recipe or the
            configuration of a run can be.
    """
    try:
        return yaml.load(text, _Loader)
    except _RefusedError as error:
        raise ValueError(f"{name} is refused: {_in_a_line(error)}") from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # For impossible numbers and dates Python raises the error, not the YAML reader.
        raise ValueError(f"{name} is not YAML: {_in_a_line(error)}") from error


def _in_a_line(error: Exception) -> str:
    """Return what is wrong and where, without the excerpt that YAML draws."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        return error.problem + where
    return " ".join(str(error).split())


class _RefusedError(yaml.MarkedYAMLError):
    """YAML that we do not take."""


class _Loader(yaml.SafeLoader):
    """A SafeLoader with bounds, to which a field named twice is an error."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}  # of finished nodes, all aliases written out

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        alias = event if isinstance(event, yaml.AliasEvent) else None
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._refusal(f"nested more than {DEEPEST} deep", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if alias is not None and id(node) not in self._sizes:
            raise self._refusal(f"*{alias.anchor} holds itself", alias)
        if node is not None and alias is None:
            self._sizes[id(node)] = self._size(node)
            if self._sizes[id(node)] > MOST_NODES:
                raise self._refusal(f"more than {MOST_NODES} values, aliases written out", node)
        return node

    def _size(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.MappingNode):
            inside = [part for pair in node.value for part in pair]
        else:
            inside = node.value if isinstance(node, yaml.SequenceNode) else []
        return 1 + sum(self._sizes[id(part)] for part in inside)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):  # the constructor says what is wrong with others
            seen: set[Hashable] = set()
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:merge":  # what it brings may be overridden
                    continue
                field = self.construct_object(key, deep=True)
                if isinstance(field, Hashable):
                    if field in seen:
                        raise self._refusal(f"{reprlib.repr(field)} is there twice", key)
                    seen.add(field)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MOST_DIGITS:
            raise self._refusal(f"an integer of {len(node.value)} digits", node)
        return int(super().construct_yaml_int(node))

    @staticmethod
    def _refusal(problem: str, at: Any) -> _RefusedError:
        return _RefusedError(None, None, problem, at.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
