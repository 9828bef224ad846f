"""What commands share: options, tables, JSON files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from enresnet.common.files import atomic_write, writable
from enresnet.common.tables import as_latex, as_markdown
from enresnet.common.text import for_terminal
from enresnet.training.recipe import ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]

Ratio = Annotated[
    float,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="NUMBER",
        instance_from_str=lambda words: ratio(words[0]),
        is_instance=lambda value: isinstance(value, float | int),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A number that may be typed as 8/255."""


Targets = Literal["random", "least_likely", "runner_up", "all"]
"""How targeted attacks choose the classes that they aim at."""

PICTURES = (".png", ".svg", ".pdf")


def check_outputs(
    *files: Path | None, picture: Path | None = None, curve: Path | None = None
) -> None:
    """Raise, before any work, unless all files that are named can be written."""
    named = [path for path in (*files, picture, curve) if path is not None]
    for number, path in enumerate(named):
        writable(path)
        if path in named[:number] and not (path.exists() and not path.is_file()):
            raise ValueError(f"{path} is named for two outputs: give each a file of its own")
    for option, drawn in (("picture", picture), ("curve", curve)):
        if drawn is not None and drawn.suffix.lower() not in PICTURES:
            raise ValueError(f"--{option} must end in {', '.join(PICTURES)}, found {drawn}")


@dataclass(frozen=True)
class Tables:
    """Files that a command also writes its result to.

    Args:
        json: Also write the result to this file.
        markdown: Also write the table to this file.
        latex: Also write the table to this file.
    """

    json: Path | None = None
    markdown: Path | None = None
    latex: Path | None = None

    def check(self, picture: Path | None, curve: Path | None = None) -> None:
        """Raise, before any work, unless all files that are named can be written."""
        check_outputs(self.json, self.markdown, self.latex, picture=picture, curve=curve)

    def write(self, values: Any, tables: Mapping[str, Sequence[Row]]) -> None:
        """Write plain values as JSON, and tables by their captions."""
        write_json(self.json, values)
        for file, written in ((self.markdown, as_markdown), (self.latex, as_latex)):
            write_text(file, "\n".join(written(rows, caption=c) for c, rows in tables.items()))


def say(text: str, *, error: bool = False) -> None:
    """Print a line of words, some of which may come from outside."""
    print(for_terminal(text), file=sys.stderr if error else sys.stdout)


def write_json(path: Path | None, values: Any) -> None:
    """Write plain values to ``path``, if there is one; what is not finite becomes null."""
    if path is not None:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(_finite(values), indent=2, allow_nan=False) + "\n")


def _finite(values: Any) -> Any:
    """Return plain values as JSON knows them: it has no infinity and nothing that is no number."""
    if isinstance(values, dict):
        return {name: _finite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def write_picture(path: Path | None, figure: Figure, *, dpi: int = 150) -> None:
    """Write a figure to ``path``, if there is one, as its ending says."""
    if path is not None:
        with atomic_write(path) as temporary:
            figure.savefig(temporary, format=path.suffix.lower().removeprefix("."), dpi=dpi)


def write_text(path: Path | None, text: str) -> None:
    """Write text to ``path``, if there is one."""
    if path is not None:
        with atomic_write(path) as temporary:
            temporary.write_text(text)
