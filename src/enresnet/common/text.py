"""What we print: numbers as one would type them, and words from outside made safe.

Words from outside are paths, class names, errors; what is safe depends on where they are shown.
"""

from __future__ import annotations

import unicodedata

_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|"}
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
# Turn the direction of what follows, so that a line can read otherwise than it is.
_DIRECTION = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def brief(value: object) -> str:
    """Return ``value`` as one would type it: 8/255 rather than 0.03137254901960784."""
    if not isinstance(value, float):
        return repr(value)
    levels = round(255 * value)
    short = value == round(value, 4) or value != levels / 255
    return f"{value:.4g}" if short else f"{levels}/255"


def for_terminal(text: str) -> str:
    """Return text that does nothing to a terminal but stand there: controls are spelled out."""
    return "".join(
        c if c in "\n\t" or not _is_control(c) else c.encode("unicode_escape").decode()
        for c in str(text)
    )


def for_markdown(text: str) -> str:
    """Return text that stands in a Markdown cell as it is: no tags, no columns, no line ends."""
    words = " ".join(for_terminal(text).split("\n"))
    return "".join(_MARKDOWN.get(c, c) for c in words)


def for_latex(text: str) -> str:
    """Return text that stands in a LaTeX document as it is."""
    words = for_terminal(text)
    return "".join(_LATEX.get(c, "\\" + c if c in "&%$#_{}" else c) for c in words)


def for_picture(text: str) -> str:
    """Return text that matplotlib draws as it is: between two dollars it would read formulas."""
    return for_terminal(text).replace("$", r"\$")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _DIRECTION
