"""``enresnet results``."""

from __future__ import annotations

from pathlib import Path

import tyro

from enresnet.cli.output import check_outputs, say, write_json, write_text
from enresnet.common.tables import as_latex, as_markdown, print_table
from enresnet.evaluation import Results, load_results


def command(
    folders: tyro.conf.Positional[tuple[Path, ...]],
    *,
    section: str | None = None,
    json: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
) -> int:
    """Show all results of one or more models, from any number of evaluations.

    A folder that cannot be read does not keep the others from being shown; the exit code is then 2.

    Args:
        folders: Folders of runs, or of other evaluations.
        section: A section of evaluation.json, such as best or last; by default all.
        json: Also write the results to this file.
        markdown: Also write the tables to this file.
        latex: Also write the tables to this file.
    """
    check_outputs(json, markdown, latex)
    if not folders:
        raise ValueError("name the folder of a run, or several")
    found: dict[str, Results] = {}
    errors: list[str] = []
    for folder in folders:
        try:
            found[str(folder)] = load_results(folder, section=section)
        except (ValueError, OSError) as error:  # the others are shown all the same
            errors.append(f"enresnet: {error}")
    if found:
        tables = {title: rows for one in found.values() for title, rows in one.tables().items()}
        write_json(json, {folder: one.to_json() for folder, one in found.items()})
        for path, written in ((markdown, as_markdown), (latex, as_latex)):
            texts = [
                written(rows, caption=f"{title}. {Results.caption}")
                for title, rows in tables.items()
            ]
            write_text(path, "\n".join(texts))
        for title, rows in tables.items():
            print_table(rows, title=title, caption=Results.caption)
    for sentence in [*(word for one in found.values() for word in one.outdated), *errors]:
        say(sentence, error=True)
    return 2 if errors else 0
