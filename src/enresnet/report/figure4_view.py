"""Figure 4 on the page: the picture and the numbers that ``enresnet pde figure4`` writes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enresnet.report.run_facts import LARGEST_JSON, is_number, read_json

if TYPE_CHECKING:
    from enresnet.report.findings import Figure4

PNG = b"\x89PNG\r\n\x1a\n"
COLUMNS = {
    "gradient": "root mean square |∇u|",
    "total_variation": "total variation",
    "mean_wave": "mean wave number",
    "fine_share": "power in fine waves, %",
    "distance": "mean distance to the level set",
}


@dataclass(frozen=True)
class Figure4View:
    """The picture, if there is one, and the numbers of each panel, if they are known.

    Attributes:
        picture: A PNG as a data address; "" if there is none.
        rows: A row of words for each panel, by column; empty if the numbers are not known.
        size: Grid points along each side; None if not known.

    Example::

        from enresnet.paper import study_figure4
        from enresnet.report import Figure4View

        result = study_figure4(size=16, steps=40, sigmas=(0.0, 0.1), points=100)
        print(Figure4View.of(result).rows[0])
    """

    picture: str = ""
    rows: tuple[dict[str, str], ...] = ()
    size: int | None = None

    @classmethod
    def of(cls, result: Figure4) -> Figure4View:
        """Return the view of what :func:`enresnet.paper.study_figure4` found."""
        from enresnet.common.plotting import as_png
        from enresnet.report.theory_figures import figure4_panels

        values = result.to_json()
        return cls(_address(as_png(figure4_panels(result))), _rows(values), values["size"])

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Figure4View:
        """Return the view of files: a PNG picture, the numbers as JSON, or both.

        Raises:
            ValueError: A file is neither, or not whole.
            OSError: A file cannot be read.
        """
        found = cls()
        for path in paths:
            if path.suffix.lower() == ".json":
                values = read_json(path)
                try:
                    found = cls(found.picture, _rows(values), int(values["size"]))
                except (LookupError, TypeError, AttributeError) as error:
                    raise ValueError(
                        f"{path} does not hold the numbers of enresnet pde figure4"
                    ) from error
            else:
                found = cls(read_png(path), found.rows, found.size)
        return found


def read_png(path: Path) -> str:
    """Return a PNG picture as a data address.

    Raises:
        ValueError: It is no PNG, or too large for a page.
        OSError: It cannot be read.
    """
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{path} is larger than {LARGEST_JSON >> 20} MB")
    content = path.read_bytes()
    if not content.startswith(PNG):
        raise ValueError(f"{path} must be a PNG picture, or numbers as .json")
    return _address(content)


def _address(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _rows(values: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    rows = []
    for row in (values["terminal"], *values["rows"]):
        numbers = {name: row[name] for name in ("lowest", "highest", *COLUMNS)}
        if not all(map(is_number, numbers.values())):
            raise TypeError("not a number")
        sigma = row["sigma"]
        rows.append(
            {
                "": "u(x, 1) = f" if sigma is None else f"u(x, 0), σ = {float(sigma):g}",
                "range": f"{numbers['lowest']:.2f} to {numbers['highest']:.2f}",
                **{
                    word: f"{100 * numbers[name]:.2g}"
                    if name == "fine_share"
                    else f"{numbers[name]:.3g}"
                    for name, word in COLUMNS.items()
                },
            }
        )
    return tuple(rows)
