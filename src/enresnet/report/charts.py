"""Line charts as places in a picture: ``templates/charts.html`` draws them as inline SVG.

A line is told from others by the shape of its marks, not by its colour alone. Colours are named by
number and come from the style sheet, so that they follow the light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT = 440.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 12.0, 44.0
COLOURS = 6  # in the style sheet
MOST_ROWS = 40  # of the table of numbers below a chart
MOST_BANDS = 2  # more of them hide each other: then intervals are bars, side by side
BESIDE, MARGIN = 4.0, 6.0  # between such bars, and at the ends of the axis

# Paths about (0, 0), three or four units in size.
MARKS = (
    "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0",  # disc
    "M-2.7,-2.7h5.4v5.4h-5.4z",  # square
    "M0,-3.6L3.5,2.6H-3.5z",  # triangle
    "M0,-3.9L3.9,0L0,3.9L-3.9,0z",  # diamond
    "M0,3.6L3.5,-2.6H-3.5z",  # triangle on its tip
    "M-1.2,-3.6h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4v-2.4h2.4z",  # cross
    "M-3.6,-1.4h7.2v2.8h-7.2z",  # bar
)


def plain(value: float) -> str:
    """Return a number without needless digits."""
    return f"{value:.6g}"


@dataclass(frozen=True)
class Line:
    """One line: its name, a number for colour and mark, and its points.

    ``band`` has the ends of the interval at each x; ``dashed`` lines have no marks. ``column`` is
    what it is called in the table of numbers, if several lines have one name.
    """

    name: str
    slot: int
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    dashed: bool = False
    column: str = ""

    @property
    def colour(self) -> int:
        """The number of its colour."""
        return self.slot % COLOURS

    @property
    def mark(self) -> str:
        """The path of its mark."""
        return MARKS[self.slot % len(MARKS)]


@dataclass(frozen=True)
class Chart:
    """A chart and its words; ``places`` may name the ticks of x, otherwise they are round."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    zero: bool = False  # whether y starts at 0
    places: Sequence[tuple[float, str]] = ()
    guide: tuple[float, str] | None = None  # an upright line, and its word
    decimals: int = 1
    word: Callable[[float], str] = field(default=plain)  # how a value of x is written
    summary: str = field(default="")

    def drawing(self) -> dict[str, Any]:
        """Return the places of everything that is drawn."""
        across = _Scale.across(self)
        up = _Scale.up(self)
        several = sum(bool(line.band) for line in self.lines) > MOST_BANDS
        middle = (len(self.lines) - 1) / 2
        lines = [
            self._line(line, across, up, aside=BESIDE * (number - middle) if several else None)
            for number, line in enumerate(self.lines)
        ]
        ticks = self.places or [(v, plain(v)) for v in across.ticks()]
        return {
            "width": WIDTH,
            "height": HEIGHT,
            "left": LEFT,
            "right": WIDTH - RIGHT,
            "top": TOP,
            "bottom": HEIGHT - BOTTOM,
            "x_ticks": [(round(across(value), 1), word) for value, word in ticks],
            "y_ticks": [(round(up(value), 1), plain(value)) for value in up.ticks()],
            "guide": None
            if self.guide is None
            else (round(across(self.guide[0]), 1), self.guide[1]),
            "lines": lines,
        }

    def _line(
        self, line: Line, across: _Scale, up: _Scale, *, aside: float | None
    ) -> dict[str, Any]:
        """Return the places of a line; ``aside`` moves it beside others, with bars for a band."""
        places = [(across(x) + (aside or 0.0), up(y)) for x, y in line.points]
        bars = [
            f"M{across(x) + (aside or 0):.1f},{up(low):.1f}V{up(high):.1f}"
            for x, low, high in line.band
        ]
        upper = [(across(x), up(high)) for x, _, high in line.band]
        lower = [(across(x), up(low)) for x, low, _ in reversed(line.band)]
        marked = not line.dashed and len(places) <= 40
        return {
            "name": line.name,
            "colour": line.colour,
            "mark": line.mark,
            "dashed": line.dashed,
            "path": _path(places),
            "band": f"{_path([*upper, *lower])}z" if line.band and aside is None else "",
            "bars": "".join(bars) if aside is not None else "",
            "marks": [
                (round(x, 1), round(y, 1), self._hint(line.column or line.name, *point))
                for (x, y), point in zip(places, line.points, strict=True)
            ]
            if marked
            else [],
        }

    def _hint(self, name: str, x: float, y: float) -> str:
        words = dict(self.places).get(x) or self.word(x)
        return f"{name}: {y:.{self.decimals}f} at {self.x_label} {words}"

    def legend(self) -> list[dict[str, Any]]:
        """Return each name once, with how its line is drawn."""
        found = {
            line.name: {
                "name": line.name,
                "colour": line.colour,
                "mark": line.mark,
                "dashed": False,
            }
            for line in self.lines
            if not line.dashed
        }
        return list(found.values())

    def described(self) -> str:
        """Return what the chart shows, for readers who do not see it."""
        if self.summary:
            return self.summary
        ends = [
            f"{line.name} goes from {line.points[0][1]:.{self.decimals}f} to "
            f"{line.points[-1][1]:.{self.decimals}f}"
            for line in self.lines
            if line.points and not line.dashed
        ]
        return f"{self.y_label} against {self.x_label}. {'; '.join(ends)}."

    def numbers(self) -> tuple[list[str], list[list[str]]]:
        """Return the chart as a table: the heads of its columns, and its rows of words.

        Of very many rows only some are shown, evenly, with the last.
        """
        names = [line.column or line.name for line in self.lines]
        values = [dict(line.points) for line in self.lines]
        bands = [{x: (low, high) for x, low, high in line.band} for line in self.lines]
        places = sorted({x for line in self.lines for x, _ in line.points})
        step = max(1, math.ceil(len(places) / MOST_ROWS))
        shown = [x for n, x in enumerate(places) if n % step == 0 or n == len(places) - 1]
        words = dict(self.places)
        rows = [
            [
                words.get(x) or self.word(x),
                *(
                    self._cell(own.get(x), band.get(x))
                    for own, band in zip(values, bands, strict=True)
                ),
            ]
            for x in shown
        ]
        return [self.x_label, *names], rows

    def _cell(self, value: float | None, band: tuple[float, float] | None) -> str:
        if value is None:
            return ""
        word = f"{value:.{self.decimals}f}"
        return word if band is None else f"{word} ({band[0]:.1f}–{band[1]:.1f})"


@dataclass(frozen=True)
class _Scale:
    """From a value to its place along one side of the picture."""

    low: float
    high: float
    start: float
    end: float
    step: float  # between two ticks
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    @classmethod
    def across(cls, chart: Chart) -> _Scale:
        values = [x for line in chart.lines for x, _ in line.points]
        low, high = min(values), max(values)
        if low == high:
            low, high = low - 0.5, high + 0.5
        start, end = LEFT + 4 + MARGIN, WIDTH - RIGHT - 4 - MARGIN
        return cls(low, high, start, end, _round_step(high - low), chart.log_x)

    @classmethod
    def up(cls, chart: Chart) -> _Scale:
        values = [y for line in chart.lines for _, y in line.points]
        values += [end for line in chart.lines for _, *ends in line.band for end in ends]
        step = _round_step(max(values) - min(values, default=0.0))
        low = 0.0 if chart.zero else step * math.floor(min(values) / step)
        high = step * math.ceil(max(values) / step)
        return cls(low, max(high, low + step), HEIGHT - BOTTOM, TOP, step)

    def ticks(self) -> list[float]:
        """Return about five round values."""
        if self.log:
            first = math.ceil(math.log10(self.low) - 1e-9)
            return [10.0**n for n in range(first, math.floor(math.log10(self.high) + 1e-9) + 1)]
        first = math.ceil(self.low / self.step - 1e-9)
        last = math.floor(self.high / self.step + 1e-9)
        return [self.step * n for n in range(first, last + 1)]


def _round_step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten, about a fifth of the span."""
    rough = max(span, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(n for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places) if places else ""
