"""The blind matrix (Tables 3 and 6) as a heat map: an HTML table whose cells are coloured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enresnet.evaluation import Accuracy, TransferMatrix
from enresnet.evaluation.captions import transfer_titles
from enresnet.report.run_facts import check_accuracy, is_number, read_json

# From dark blue over grey to yellow; lightness grows evenly, and so it is read without hues too.
CIVIDIS = ((0, 34, 78), (67, 78, 108), (125, 124, 120), (188, 175, 111), (254, 232, 56))


@dataclass(frozen=True)
class HeatCell:
    """One accuracy in %, with its interval and colours; ``own`` where a network attacked itself."""

    value: float
    low: float
    high: float
    background: str
    text: str
    own: bool = False


@dataclass(frozen=True)
class HeatMap:
    """One attack: a row for each network that it saw, a column for each that classified."""

    title: str
    file: str
    targets: tuple[str, ...]
    clean: tuple[HeatCell, ...]
    rows: tuple[tuple[str, tuple[HeatCell, ...]], ...]
    low: float  # where the colours start, in %
    high: float  # and where they end


def read_heat_maps(path: Path) -> list[HeatMap]:
    """Return the matrices of a file that ``enresnet transfer --json`` wrote, one for each attack.

    Raises:
        ValueError: It is no such file, or not whole.
        OSError: It cannot be read.
    """
    values = read_json(path)
    try:
        matrix = TransferMatrix.from_json(values)
        radii = values["epsilon"] if isinstance(values["epsilon"], list) else [values["epsilon"]]
        if not all(map(is_number, radii)):
            raise ValueError(f"{path} is damaged: its epsilon is no number")
        titles = transfer_titles(matrix, radii=radii, data=str(values["data"]))
        for row in (
            *matrix.natural.values(),
            *(v for c in matrix.robust.values() for v in c.values()),
        ):
            check_accuracy(str(path), row)
        return [_heat_map(matrix, attack, titles[attack], path) for attack in matrix.attacks]
    except (LookupError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"{path} is no whole result of enresnet transfer ({error!r})") from error


def _heat_map(matrix: TransferMatrix, attack: str, title: str, path: Path) -> HeatMap:
    cells = matrix.robust[attack]
    shown = [value.accuracy for value in cells.values()]  # clean images would take most colours
    low = 10 * (100 * min(shown) // 10)
    high = max(low + 10, -10 * (-100 * max(shown) // 10))

    def cell(value: Accuracy, *, own: bool = False) -> HeatCell:
        background, text = _colours((100 * value.accuracy - low) / (high - low))
        lower, upper = (100 * end for end in value.interval)
        return HeatCell(100 * value.accuracy, lower, upper, background, text, own)

    return HeatMap(
        title=title,
        file=str(path),
        targets=tuple(matrix.targets),
        clean=tuple(cell(matrix.natural[target]) for target in matrix.targets),
        rows=tuple(
            (s, tuple(cell(cells[s, t], own=s == t) for t in matrix.targets))
            for s in dict.fromkeys(source for source, _ in cells)
        ),
        low=low,
        high=high,
    )


def _colours(share: float) -> tuple[str, str]:
    """Return the colour for a share in [0, 1], and black or white for the text on it."""
    place = min(max(share, 0.0), 1.0) * (len(CIVIDIS) - 1)
    number = min(int(place), len(CIVIDIS) - 2)
    pairs = zip(CIVIDIS[number], CIVIDIS[number + 1], strict=True)
    rgb = [round(a + (b - a) * (place - number)) for a, b in pairs]
    return f"rgb({', '.join(map(str, rgb))})", "#fff" if _luminance(rgb) < 0.18 else "#000"


def _luminance(rgb: Sequence[int]) -> float:
    """Return the relative luminance of sRGB; at 0.18 black and white contrast equally."""
    linear: list[Any] = [
        (c / 255 + 0.055) ** 2.4 / 1.055**2.4 if c > 10 else c / 255 / 12.92 for c in rgb
    ]
    return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
