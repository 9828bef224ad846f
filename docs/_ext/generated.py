"""What pages take from the package when they are built: the help of commands, and results."""

from __future__ import annotations

import contextlib
import io
import os
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from enresnet.cli import COMMANDS, main


class CommandHelp(SphinxDirective):
    """Show what ``enresnet help COMMAND`` prints."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the help as a block of text."""
        words = self.arguments[0].split()
        if words[0] not in COMMANDS:
            raise self.error(f"no command {words[0]}")
        printed = io.StringIO()
        size = {"COLUMNS": "80", "LINES": "40", "NO_COLOR": "1", "TERM": "dumb"}
        quiet = contextlib.suppress(SystemExit)
        with patch.dict(os.environ, size), contextlib.redirect_stdout(printed), quiet:
            main([*words, "--help"])
        text = printed.getvalue().strip()
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive ``command-help``."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
