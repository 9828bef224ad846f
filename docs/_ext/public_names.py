"""The reference: every public name of a subpackage, from its docstring.

``public-names`` documents the names in a package's ``__all__``; where they are another package's,
as those of ``enresnet`` itself are, an entry only leads there. When all pages are written, the
inventory must hold every public name.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

PACKAGES = [
    "enresnet",
    "enresnet.data",
    "enresnet.models",
    "enresnet.models.frozen",
    "enresnet.attacks",
    "enresnet.evaluation",
    "enresnet.training",
    "enresnet.pde",
    "enresnet.report",
    "enresnet.publish",
    "enresnet.paper",
    "enresnet.demo",
]
ROLES = {"class": "class", "exception": "exc", "function": "func", "data": "data"}
logger = logging.getLogger(__name__)


def public_names(package: str) -> list[str]:
    """Return the public names of a package, classes last, as Python sorts them."""
    return list(importlib.import_module(package).__all__)


def home_of(package: str, name: str) -> str:
    """Return the package in whose reference a name is described."""
    thing = getattr(importlib.import_module(package), name)
    others = [one for one in PACKAGES if one.startswith(f"{package}.") and package == "enresnet"]
    for other in others:
        module = importlib.import_module(other)
        if name in module.__all__ and getattr(module, name) is thing:
            return other
    return package


def kind_of(thing: Any) -> str:
    """Return the word for a thing in Sphinx's Python domain."""
    if inspect.isclass(thing):
        return "exception" if issubclass(thing, BaseException) else "class"
    return "function" if inspect.isroutine(thing) else "data"


def summary_of(thing: Any) -> str:
    """Return the first paragraph of a docstring, without its links to methods."""
    text = (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")
    return re.sub(r":(?:meth|attr):`~?\.?([^`]*)`", r"``\1``", text)


class PublicNames(SphinxDirective):
    """Describe the public names of a package: a table first, then each, by file."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table and the entries."""
        package = self.arguments[0]
        files: dict[str, list[str]] = {}
        for name in sorted(public_names(package), key=str.lower):
            files.setdefault(file_of(package, name), []).append(name)
        text = [".. highlight:: python", "", _table(package), ""]
        for file, names in sorted(files.items()):
            if home_of(package, names[0]) == package:
                title = file.removeprefix(f"{package}.")
                about = inspect.getdoc(importlib.import_module(file)) or ""
                text += [title, "-" * len(title), "", about, ""]
            text += [_entry(package, name) for name in names]
        parsed = self.parse_text_to_nodes("\n".join(text), allow_section_headings=True)
        known = self.env.domains.python_domain.objects
        for name in public_names(package):  # where a reference leaves it open, the home is meant
            if home_of(package, name) != package:
                full = f"{package}.{name}"
                known[full] = known[full]._replace(aliased=True)
        return parsed


def file_of(package: str, name: str) -> str:
    """Return the module that defines a name."""
    module = importlib.import_module(package)
    homes = vars(module).get("_home_of", {})
    return str(homes[name] if name in homes else getattr(module, name).__module__)


def _table(package: str) -> str:
    """Return the names and what each is, as reStructuredText."""
    lines = [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for name in sorted(public_names(package), key=str.lower):
        thing = getattr(importlib.import_module(package), name)
        kind, link = kind_of(thing), f"`{name} <{home_of(package, name)}.{name}>`"
        summary = summary_of(thing) if kind != "data" else "A constant."
        lines += [f"   * - :{ROLES[kind]}:{link}", f"     - {summary}"]
    return "\n".join(lines)


def _entry(package: str, name: str) -> str:
    """Return the entry of a name as reStructuredText."""
    thing = getattr(importlib.import_module(package), name)
    kind, home = kind_of(thing), home_of(package, name)
    if home != package:
        same = f"   The same as :{ROLES[kind]}:`{home}.{name}`."
        lines = [f".. py:{kind}:: {package}.{name}", "   :no-contents-entry:", "", same]
    elif kind == "data":
        lines = [f".. py:data:: {package}.{name}", f"   :value: {thing!r}"]
    else:
        lines = [f".. auto{kind}:: {package}.{name}"]
        if kind != "function":
            lines += ["   :members:", "   :show-inheritance:"]
        if "__call__" in vars(thing):
            lines += ["   :special-members: __call__"]
    return "\n".join([*lines, ""])


def _resolve_bare(
    app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.reference | None:
    """Resolve a bare name that is public in another package than the one that speaks of it."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or (node.get("reftype") == "class" and "." in target):
        return None
    for package in PACKAGES[1:]:
        if target.partition(".")[0] in public_names(package):
            domain = env.domains.python_domain
            page, full = node.get("refdoc", ""), f"{package}.{target}"
            return domain.resolve_xref(env, page, app.builder, "obj", full, node, content)
    return None


def _check(app: Sphinx, error: Exception | None) -> None:
    """Warn of every public name that is missing from the inventory."""
    if error is not None or app.builder.name != "html":
        return
    known = set(app.env.domains.python_domain.objects)
    for package in PACKAGES:
        for name in public_names(package):
            if f"{package}.{name}" not in known:
                logger.warning("%s.%s is public, but not in the reference", package, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive ``public-names``."""
    app.add_directive("public-names", PublicNames)
    app.connect("missing-reference", _resolve_bare)
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
