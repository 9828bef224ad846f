"""``enresnet results``."""

from __future__ import annotations

from pathlib import Path

import tyro

from enresnet.cli.output import check_outputs, say, write_json, write_text
from enresnet.common.tables import as_latex, as_markdown, print_table
from enresnet.common.text import brief
from enresnet.evaluation.results import Record


def command(
    folders: tyro.conf.Positional[tuple[Path, ...]],
    *,
    section: str | None = None,
    json: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
) -> None:
    """Show all that was measured of one model or several, by however many evaluations.

    Args:
        folders: Folders of runs, or of other evaluations.
        section: Of their evaluation.json, such as best or last; by default every one.
        json: Also write the results to this file.
        markdown: Also write the tables to this file.
        latex: Also write the tables to this file.
    """
    check_outputs(json, markdown, latex)
    if not folders:
        raise ValueError("name the folder of a run, or several")
    found = {}
    for folder in folders:
        record = Record(folder)
        names = record.names() if section is None else [section]
        found[str(folder)] = {name: record.section(name) for name in names}
    tables = {}
    for folder_name, sections in found.items():
        for name, kept in sections.items():
            model, data = kept.about["model"], kept.about["data_name"]
            radius = f"epsilon = {brief(kept.about['epsilon'])}"
            title = f"{folder_name} ({name}): {model} on {data}, {radius}"
            tables[title] = kept.evaluation.table()
    caption = "In %, with 95 % intervals."
    write_json(
        json,
        {
            folder_name: {
                name: {**kept.about, **kept.evaluation.to_json()} for name, kept in sections.items()
            }
            for folder_name, sections in found.items()
        },
    )
    for path, written in ((markdown, as_markdown), (latex, as_latex)):
        texts = [written(rows, caption=f"{title}. {caption}") for title, rows in tables.items()]
        write_text(path, "\n".join(texts))
    for title, rows in tables.items():
        print_table(rows, title=title, caption=caption)
    for folder in folders:
        for name in found[str(folder)]:
            if warning := Record(folder).outdated(name):
                say(warning, error=True)
