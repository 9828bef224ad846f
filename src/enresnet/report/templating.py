"""Pages from templates: what is not marked as safe is escaped, control characters spelled out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from enresnet.common.text import for_terminal


def render(
    template: str, values: Mapping[str, Any], filters: Mapping[str, Callable[..., Any]]
) -> str:
    """Return a page.

    Args:
        template: The name of a file in ``templates``.
        values: What the template names; a name that it has and ``values`` has not is an error.
        filters: How the template prints numbers.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("enresnet.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    environment.filters |= filters
    return environment.get_template(template).render(values)


def template_file(name: str) -> str:
    """Return the text of a file in ``templates``, such as a style sheet."""
    return (files("enresnet.report") / "templates" / name).read_text(encoding="utf-8")


def _harmless(value: Any) -> Any:
    """Return what a template prints, without characters that turn or control the text."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else for_terminal(value)
