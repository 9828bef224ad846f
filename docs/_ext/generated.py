"""What pages take from the package when they are built: the help of commands, and results."""

from __future__ import annotations

import contextlib
import io
import os
import textwrap
from unittest.mock import patch

from docutils import nodes
from results_tables import RESULTS, reproduction
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from enresnet.cli import COMMANDS, main


def help_of(*words: str) -> str:
    """Return what ``enresnet COMMAND --help`` prints on a terminal of 80 columns."""
    printed = io.StringIO()
    terminal = {"COLUMNS": "80", "LINES": "40", "NO_COLOR": "1", "TERM": "dumb"}
    quiet = contextlib.suppress(SystemExit)
    with patch.dict(os.environ, terminal), contextlib.redirect_stdout(printed), quiet:
        main([*words, "--help"])
    lines = [textwrap.fill(line, 80) for line in printed.getvalue().strip().splitlines()]
    return "\n".join(lines)


class AllCommands(SphinxDirective):
    """Show the help of every command, a section each."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return [self.section(name) for name in COMMANDS]

    def section(self, name: str) -> nodes.section:
        """Return the section of one command."""
        title = nodes.title("", f"enresnet {name}")
        text = help_of(name)
        section = nodes.section(ids=[f"enresnet-{name}"], names=[f"enresnet {name}"])
        section += [title, nodes.literal_block(text, text, language="text")]
        self.state.document.note_explicit_target(section)
        return section


class ResultsTables(SphinxDirective):
    """Show the tables of what was measured."""

    has_content = True  # what a forge shows in their place

    def run(self) -> list[nodes.Node]:
        """Return the tables."""
        for path in RESULTS.rglob("*.json"):
            self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(reproduction(), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives ``all-commands`` and ``results-tables``."""
    app.add_directive("all-commands", AllCommands)
    app.add_directive("results-tables", ResultsTables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
