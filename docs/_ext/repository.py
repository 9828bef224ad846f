"""Links that lead out of the documentation, into the repository.

The pages are read on a forge, too, so they link to files as they lie in the repository. Here such a
link leads to the page that shows the file: its text, highlighted, or the page it is part of. The
entries of the reference get a link to their source in the same way.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Files elsewhere that are pages of the site, in place of the stub that the page is on a forge.
PAGES = {
    "results-cifar10": ROOT / "results" / "cifar10" / "README.md",
    "contributing": ROOT / "CONTRIBUTING.md",
}
HOMES = {path: page for page, path in PAGES.items()} | {
    ROOT / "README.md": "index",
    ROOT / "results" / "README.md": "reproduction",  # which has the same tables
}
SHOWN = {".py", ".c", ".h", ".md", ".yaml", ".cff", ".toml", ".json", ".txt", ".csv"}
LONGEST = 400_000  # characters of a file that is shown
logger = logging.getLogger(__name__)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a file of the repository in the place of its stub; let links lead to pages of ours."""
    path = PAGES.get(page)
    if path is not None:
        app.env.note_dependency(str(path))
        source[0] = path.read_text()
    page_folder = (DOCS / page).parent
    start = page_folder if path is None else path.parent

    def moved(link: re.Match[str]) -> str:
        target, hash_, anchor = link[1].partition("#")
        if "://" in target or not target:
            return link[0]
        place = Path(os.path.normpath(start / target))
        if place in HOMES:
            place = DOCS / f"{HOMES[place]}.md"
        return f"]({os.path.relpath(place, page_folder)}{hash_}{anchor})"

    source[0] = re.sub(r"\]\(([^)\s]+)\)", moved, source[0])


def _place(node: nodes.Element, page: str) -> Path | None:
    """Return the file or folder outside the documentation that a link of a page leads to."""
    target = node.get("reftarget", "").partition("#")[0]
    if not target or "://" in target:
        return None
    start = DOCS if target.startswith("/") else (DOCS / f"{page}.md").parent
    path = Path(os.path.normpath(start / target.lstrip("/")))
    outside = path.is_relative_to(ROOT) and not path.is_relative_to(DOCS)
    return path if outside and path.exists() else None


def _reference(app: Sphinx, page: str, path: Path, line: int = 0) -> nodes.reference:
    """Return a link to the page that shows a file."""
    home = HOMES.get(path)
    if home is None:
        home = f"source/{path.relative_to(ROOT).as_posix()}"
        app.env.source_files.add(path)
    anchor = f"#L-{line}" if line else ""
    link = nodes.reference("", "", internal=True)
    link["refuri"] = app.builder.get_relative_uri(page, home) + anchor
    return link


def _resolve(app: Sphinx, doctree: nodes.document) -> None:
    """Let links to files and folders lead to their pages, rather than to downloads."""
    page = app.env.current_document.docname
    files = list(doctree.findall(addnodes.download_reference))
    others = [x for x in doctree.findall(addnodes.pending_xref) if x.get("reftype") == "myst"]
    for node in [*files, *others]:
        if path := _place(node, page):
            link = _reference(app, page, path)
            link += node.children
            node.replace_self(link)
    for signature in doctree.findall(addnodes.desc_signature):
        found = source_of(signature.get("module", ""), signature.get("fullname", ""))
        if found is not None:
            link = _reference(app, page, *found)
            link["classes"] = ["source-link"]
            link += nodes.inline("", "source")
            signature += link


def _resolve_missing(
    app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.reference | None:
    """Let the names of ours that are not public lead to their source."""
    del env
    module, _, name = node.get("reftarget", "").rpartition(".")
    if node.get("refdomain") != "py" or not module.startswith("enresnet"):
        return None
    if (found := source_of(module, name)) is None:
        return None
    link = _reference(app, node.get("refdoc", ""), *found)
    link += content
    return link


def source_of(module: str, name: str) -> tuple[Path, int] | None:
    """Return the file and the line where a class or function of ours begins."""
    try:
        thing: Any = importlib.import_module(module)
        for part in name.split("."):
            thing = inspect.getattr_static(thing, part, None) or getattr(thing, part)
        thing = inspect.unwrap(getattr(thing, "__func__", getattr(thing, "fget", thing)))
        path = Path(inspect.getsourcefile(thing) or "").resolve()
        line = inspect.getsourcelines(thing)[1]
    except (ImportError, AttributeError, TypeError, OSError, ValueError):
        return None  # a constant or an attribute
    return (path, line) if path.is_relative_to(ROOT / "src") else None


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for every file that something links to."""
    for path in sorted(app.env.source_files):
        name = path.relative_to(ROOT).as_posix()
        body = _listing(app, path) if path.is_dir() else _text(path)
        title = f"<h1><code>{escape(name)}</code></h1>"
        yield f"source/{name}", {"title": name, "body": f"{title}\n{body}"}, "page.html"


def _listing(app: Sphinx, folder: Path) -> str:
    page = f"source/{folder.relative_to(ROOT).as_posix()}"
    items = []
    for path in sorted(folder.iterdir()):
        if path.name[0] in "._" and path.name != "__init__.py":
            continue
        text = f"<code>{escape(path.name)}{'/' if path.is_dir() else ''}</code>"
        if path in app.env.source_files:
            uri = app.builder.get_relative_uri(page, f"source/{path.relative_to(ROOT).as_posix()}")
            text = f'<a class="reference internal" href="{uri}">{text}</a>'
        items.append(f"<li>{text}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _text(path: Path) -> str:
    if path.suffix not in SHOWN or path.stat().st_size > LONGEST:
        return f"<p>A file of {path.stat().st_size:,} bytes in the repository.</p>"
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return str(highlight(path.read_text(), lexer, HtmlFormatter(lineanchors="L")))


def _start(app: Sphinx) -> None:
    if not hasattr(app.env, "source_files"):
        app.env.source_files = set()


def setup(app: Sphinx) -> dict[str, bool]:
    """Resolve links into the repository."""
    app.connect("builder-inited", _start)
    app.connect("source-read", _read)
    app.connect("doctree-read", _resolve, priority=100)
    app.connect("missing-reference", _resolve_missing)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
