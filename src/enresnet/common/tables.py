"""Tables of words, rows with the same keys: for a terminal, Markdown, LaTeX and HTML."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from enresnet.common.text import for_latex, for_markdown, for_terminal

Row = dict[str, Any]


def print_table(rows: Sequence[Row], *, title: str | None = None, caption: str = "") -> None:
    """Print rows: as a table, or where no word fits as one block a row."""
    _print(_Terminal(), rows, title, caption)


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command line what it means that nobody reads any more."""
        raise BrokenPipeError


def as_text(
    rows: Sequence[Row], *, title: str | None = None, caption: str = "", width: int | None = None
) -> str:
    """Return what :func:`print_table` prints; ``width`` is by default the terminal's."""
    file = io.StringIO()
    # In a notebook rich would show the table at once, and write nothing to the file.
    console = Console(file=file, width=width, color_system=None, force_jupyter=False)
    _print(console, rows, title, caption)
    return file.getvalue().rstrip("\n")


def _print(console: Console, rows: Sequence[Row], title: str | None, caption: str) -> None:
    names = [for_terminal(name) for name in rows[0]]
    lines = [[for_terminal(str(value)) for value in row.values()] for row in rows]
    for padding in (1, 0):  # rather a narrow table than a broken word
        widths = _widths([names, *lines], console.width - 1 - (2 * padding + 1) * len(names))
        if widths is not None:
            break
    else:
        _print_blocks(console, names, lines, title, caption)
        return
    table = Table(padding=(0, padding))
    for name, width in zip(names, widths, strict=True):
        table.add_column(Text(name), width=width)
    for line in lines:
        table.add_row(*map(Text, line))
    # A table may be narrow, and its title would be as narrow.
    for part in (Text(for_terminal(title or ""), "italic"), table, Text(for_terminal(caption))):
        if part:
            console.print(part)


def _widths(lines: list[list[str]], room: int) -> list[int] | None:
    """Return the columns' widths in which no word is broken, or None if there are none."""
    columns = list(zip(*lines, strict=True))
    least = [max(cell_len(word) for cell in c for word in cell.split() or [""]) for c in columns]
    widths = [max(cell_len(line) for cell in c for line in cell.split("\n")) for c in columns]
    if sum(least) > room:
        return None
    while sum(widths) > room:  # the widest that can give way does
        widest = max(range(len(widths)), key=lambda n: (widths[n] > least[n], widths[n]))
        widths[widest] -= 1
    return widths


def _print_blocks(
    console: Console, names: list[str], lines: list[list[str]], title: str | None, caption: str
) -> None:
    """Print every row as lines of name and value, which a narrow terminal wraps by itself."""
    blocks = [
        "\n".join(f"{name}: {value}" for name, value in zip(names, line, strict=True))
        for line in lines
    ]
    around = [for_terminal(title or ""), *blocks, for_terminal(caption)]
    console.print(Text("\n\n".join(filter(None, around))), soft_wrap=True)


def as_markdown(rows: Sequence[Row], *, caption: str = "") -> str:
    """Return the rows as a Markdown table."""
    names = list(rows[0])
    lines = [_line(map(for_markdown, names)), _line(["---"] * len(names))]
    lines += [_line(for_markdown(row[name]) for name in names) for row in rows]
    return "\n".join(lines) + "\n" + (f"\n{for_markdown(caption)}\n" if caption else "")


def _line(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def as_latex(rows: Sequence[Row], *, caption: str = "") -> str:
    """Return the rows as a LaTeX table; it needs the package booktabs."""
    names = list(rows[0])
    lines = [
        r"\begin{table}",
        r"\centering",
        r"\begin{tabular}{l" + "r" * (len(names) - 1) + "}",
        r"\toprule",
        " & ".join(map(for_latex, names)) + r" \\",
        r"\midrule",
        *(" & ".join(for_latex(row[name]) for name in names) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\caption{{{for_latex(caption)}}}"] if caption else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def as_html(rows: Sequence[Row], *, title: str = "", caption: str = "") -> str:
    """Return the rows as an HTML table."""

    def cells(tag: str, words: Iterable[object]) -> str:
        return "".join(f"<{tag}>{escape(for_terminal(str(word)))}</{tag}>" for word in words)

    lines = [
        "<table>",
        *([f"<caption>{escape(for_terminal(title))}</caption>"] if title else []),
        f"<thead><tr>{cells('th', rows[0])}</tr></thead>",
        "<tbody>",
        *(f"<tr>{cells('td', row.values())}</tr>" for row in rows),
        "</tbody>",
        "</table>",
        *([f"<p>{escape(for_terminal(caption))}</p>"] if caption else []),
    ]
    return "\n".join(lines) + "\n"
