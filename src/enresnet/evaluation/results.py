"""All sections of an evaluation.json as one object, read without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enresnet.common.tables import as_html, as_text
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.results_folder import EVALUATION, ResultsFolder, Section
from enresnet.evaluation.rows import Row


@dataclass(frozen=True, repr=False)
class Results:
    """Everything that was measured of a model, by section of its evaluation.json.

    It prints as the tables of ``enresnet results``, also in a notebook. ``results["best"]`` is the
    :class:`Evaluation` of one section; iterating gives the names.

    Attributes:
        folder: Where the results are.
        sections: By name, each with its ``evaluation`` and, under ``about``, the model, the digest
            of its weights, the data, the checkpoint and epsilon.
        outdated: A sentence on each section that was measured with other weights than the run
            holds now.

    Example::

        enresnet.evaluate(model, (images, labels), draws=2).save("evaluation.json", overwrite=True)
        results = enresnet.load_results("evaluation.json")
        print(results, results["best"].natural.interval)
    """

    folder: Path
    sections: dict[str, Section]
    outdated: tuple[str, ...] = ()

    caption = "In %, with 95 % intervals."

    def __getitem__(self, section: str) -> Evaluation:
        return self.sections[section].evaluation

    def __iter__(self) -> Iterator[str]:
        return iter(self.sections)

    def __len__(self) -> int:
        return len(self.sections)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of plain numbers for each accuracy of each section, for a data frame.

        Returns:
            The rows of :meth:`Evaluation.rows`, each with its ``section``, ``model`` and ``data``.
            Clean images, and attacks without an epsilon, have the ``epsilon`` of their section.
        """
        return [
            {
                "section": name,
                "model": section.about["model"],
                "data": section.about["data_name"],
                **row,
                "epsilon": section.about["epsilon"] if row["epsilon"] is None else row["epsilon"],
            }
            for name, section in self.sections.items()
            for row in section.evaluation.rows()
        ]

    def tables(self) -> dict[str, list[Row]]:
        """Return the accuracies of each section as rows of words, by title."""
        return {
            f"{self.folder} ({name}): {section.title}": section.evaluation.table()
            for name, section in self.sections.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, by section."""
        return {
            name: {**section.about, **section.evaluation.to_json()}
            for name, section in self.sections.items()
        }

    def __str__(self) -> str:
        tables = [
            as_text(rows, title=title, caption=self.caption)
            for title, rows in self.tables().items()
        ]
        return "\n".join([*tables, *self.outdated])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        caption = " ".join([self.caption, *self.outdated])
        return "".join(as_html(r, title=t, caption=caption) for t, r in self.tables().items())


def load_results(path: str | os.PathLike[str], *, section: str | None = None) -> Results:
    """Return everything that was measured of a model, by however many evaluations.

    Args:
        path: The folder of a run or of another evaluation, or the evaluation.json in it.
        section: The only section to read, such as "best" or "last"; by default all of them.

    Returns:
        The results. They print as the tables of ``enresnet results``.

    Raises:
        FileNotFoundError: There is no evaluation, or no such section.
        ValueError: The file is damaged.

    Example::

        enresnet.evaluate(model, (images, labels), draws=2).save("evaluation.json", overwrite=True)
        print(enresnet.load_results("evaluation.json"))
    """
    target = Path(path)
    if target.is_file() and target.name != EVALUATION:
        raise ValueError(
            f"results are read from a folder's {EVALUATION}, found the file {target}; "
            "Evaluation.load reads one of another name"
        )
    record = ResultsFolder(
        target.parent if target.name == EVALUATION and not target.is_dir() else target
    )
    names = record.names() if section is None else [section]
    sections = {name: record.section(name) for name in names}
    outdated = tuple(filter(None, map(record.outdated, names)))
    return Results(record.folder, sections, outdated)
