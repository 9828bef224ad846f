"""Tables of results: rows of words, for a terminal, for Markdown and for LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from enresnet.evaluation import Accuracy, Evaluation

Row = dict[str, str]


def evaluation_rows(result: Evaluation, *, clean: str = "clean") -> list[Row]:
    """Return a row for the clean images and one for each attack, in per cent."""
    rows = [_row(clean, result.natural)]
    rows += [_row(name, value) for name, value in result.robust.items()]
    if not any(value.draws > 1 for value in (result.natural, *result.robust.values())):
        for row in rows:  # they say the same of a model that answers always the same
            for name in ("averaged", "right in all draws", "lost in 1 tries"):
                row.pop(name)
    if not any(row["claimed"] for row in rows):
        for row in rows:
            del row["claimed"]
    return rows


def _row(name: str, value: Accuracy) -> Row:
    worst = min(value.per_class, key=lambda key: value.per_class[key])
    tries = max((k for k in value.broken_in if k <= 10), default=1)
    return {
        "images": name,
        "accuracy": with_interval(value.accuracy, value.interval),
        "averaged": with_interval(value.averaged, value.averaged_interval),
        "right in all draws": _percent(value.always),
        f"lost in {tries} tries": _percent(value.broken_in[tries]),
        "claimed": "" if value.claimed is None else _percent(value.claimed),
        "worst class": f"{worst} {_percent(value.per_class[worst])}",
        "calibration error": _percent(value.calibration_error),
        "gradients": f"{value.gradients:.0f}",
        "seconds": f"{value.seconds:.1f}",
    }


def with_interval(value: float, interval: tuple[float, float]) -> str:
    """Return a share with its interval, in per cent."""
    low, high = interval
    return f"{_percent(value)} ({_percent(low)} to {_percent(high)})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def as_markdown(rows: Sequence[Row], *, caption: str = "") -> str:
    """Return the rows as a Markdown table."""
    names = list(rows[0])
    lines = [_line(names), _line(["---"] * len(names))]
    lines += [_line([row[name].replace("|", "\\|") for name in names]) for row in rows]
    return "\n".join(lines) + "\n" + (f"\n{caption}\n" if caption else "")


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def as_latex(rows: Sequence[Row], *, caption: str = "") -> str:
    """Return the rows as a LaTeX table; it needs the package booktabs."""
    names = list(rows[0])
    lines = [
        r"\begin{table}",
        r"\centering",
        r"\begin{tabular}{l" + "r" * (len(names) - 1) + "}",
        r"\toprule",
        " & ".join(map(_escaped, names)) + r" \\",
        r"\midrule",
        *(" & ".join(_escaped(row[name]) for name in names) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\caption{{{_escaped(caption)}}}"] if caption else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, "\\" + c if c in "&%$#_{}" else c) for c in text)
