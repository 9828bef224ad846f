"""Mathematics as MathML, which browsers draw themselves: no script, no network, no LaTeX.

The pages bring a font with them, STIX Two Math (SIL Open Font License), for readers who have no
font for mathematics; the package ziamath ships it.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from typing import Any
from xml.sax.saxutils import escape

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging

UPRIGHT = r'<mi mathvariant="normal">\1</mi>'
CLOSE = r'<mo lspace="0" rspace="0"\1>\2</mo>'
FONT = "STIXTwoMath-Regular.ttf"
logger = logging.getLogger(__name__)


def mathml(latex: str, *, display: bool, where: nodes.Node | None = None) -> str:
    """Return a formula as MathML, with its LaTeX as the text that is copied."""
    latex = latex.strip()
    if display and "\\\\" in latex and "\\begin" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    known = latex.replace("{aligned}", "{split}")  # the converter knows the one, not the other
    try:
        drawn = convert(known, display="block" if display else "inline")
    except Exception as error:
        logger.warning("mathematics cannot be read: %s (%r)", latex, error, location=where)
        return f"<code>{escape(latex)}</code>"
    if left := re.findall(r"<m[io]>(\\[a-zA-Z]+|&amp;|&#x00026;)</m[io]>", drawn):
        logger.warning("mathematics with unknown commands: %s in %s", left, latex, location=where)
    # Browsers slant single letters; capital Greek ones are upright; slash and bar need no room.
    drawn = re.sub(r"<mi>([\u0391-\u03a9]|&#x0039[1-9A-F];|&#x003A[0-9];)</mi>", UPRIGHT, drawn)
    drawn = re.sub(r"<mo(| stretchy=\"false\")>(&#x0002F;|&#x0007C;)</mo>", CLOSE, drawn)
    inside = re.fullmatch(r"(<math[^>]*>)(.*)</math>", drawn, re.DOTALL)
    assert inside, drawn
    note = f'<annotation encoding="application/x-tex">{escape(latex)}</annotation>'
    return f"{inside[1]}<semantics>{inside[2]}{note}</semantics></math>"


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(mathml(node.astext(), display=False, where=node))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    formulas = re.split(r"\n\s*\n", node.astext().strip())
    drawn = "\n".join(mathml(one, display=True, where=node) for one in formulas)
    writer.body.append(f'<div class="formula">{drawn}</div>\n')
    raise nodes.SkipNode


def _copy_font(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    found = find_spec("ziamath")
    font = Path(found.origin).parent / "fonts" / FONT if found and found.origin else None
    if font is None or not font.is_file():
        raise ExtensionError(f"no {FONT} in the package ziamath; install the extra docs")
    copyfile(font, Path(app.outdir, "_static", FONT))


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("build-finished", _copy_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
