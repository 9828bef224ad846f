"""Accuracies as the rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from enresnet.common.text import brief
from enresnet.evaluation.accuracy import Accuracy

Row = dict[str, str]


def accuracy_rows(values: Mapping[str, Accuracy]) -> list[Row]:
    """Return a row for each accuracy by the name of its images, in per cent."""
    draws = max(value.draws for value in values.values())
    claimed = any(value.claimed is not None for value in values.values())
    budgeted = any("budget" in (value.settings or {}) for value in values.values())
    counts = {value.images for value in values.values()}
    drawn = {value.draws for value in values.values() if not value.deterministic}
    # The largest number of submissions that all noisy ones can tell of.
    tries = min((max(_submissions(v)) for v in values.values() if v.draws > 1), default=1)
    hidden = _names_hide_radii(values)
    rows = []
    for name, value in values.items():
        row = {"images": _shown(name, value)}
        if hidden:
            row["epsilon"] = epsilon_words([value]).removeprefix("epsilon = ")
        if len(counts) > 1:
            row["number"] = str(value.images)
        if len(drawn) > 1:
            row["draws"] = str(value.draws)
        row |= {"accuracy": with_interval(value.accuracy, value.interval)}
        if draws > 1:  # of a model that answers always the same they say nothing new
            known = tries if tries in value.broken_in else 1  # one that never changes its answer
            row["averaged"] = with_interval(value.averaged, value.averaged_interval)
            row["always right"] = with_interval(value.always, value.always_interval)
            row[f"lost in {tries}"] = with_interval(
                value.broken_in[known], value.broken_in_intervals[known]
            )
        if budgeted:  # such a figure means nothing without it
            row["gradients"] = _spent(value)
        if claimed:
            row["claimed"] = "" if value.claimed is None else _percent(value.claimed)
        rows.append(row)
    return rows


def epsilon_words(values: Iterable[Accuracy]) -> str:
    """Return how far attacks went, as in "epsilon = 8/255 and 0.5 in l2"; "" where none did."""
    by_norm: dict[str, set[float]] = {"linf": set()}
    for epsilon, norm in map(radius_of, values):
        if epsilon is not None and norm is not None:
            by_norm.setdefault(norm, set()).add(epsilon)
    words = [
        ", ".join(map(brief, sorted(radii))) + (f" in {norm}" if norm != "linf" else "")
        for norm, radii in by_norm.items()
        if radii
    ]
    return f"epsilon = {' and '.join(words)}" if words else ""


def _names_hide_radii(values: Mapping[str, Accuracy]) -> bool:
    """Return whether attacks in one norm went differently far, and a name does not say how far."""
    radii = {name: radius_of(value) for name, value in values.items()}
    several = len(set(radii.values())) > len({norm for _, norm in radii.values()})
    return several and any(
        epsilon is not None and brief(epsilon) not in name for name, (epsilon, _) in radii.items()
    )


def radius_of(value: Accuracy) -> tuple[float, str] | tuple[None, None]:
    """Return an attack's epsilon and the norm that it is in; None where it has no epsilon."""
    settings = value.settings or {}
    epsilon = settings.get("epsilon", settings.get("max_epsilon"))
    if not isinstance(epsilon, int | float):
        return None, None
    return float(epsilon), str(settings.get("norm", "linf"))


def detail_rows(values: Mapping[str, Accuracy]) -> list[Row]:
    """Return a row for each accuracy with what stands beside it: classes, calibration, cost."""
    rows = []
    for name, value in values.items():
        worst = min(value.per_class, key=lambda key: value.per_class[key])
        rows.append(
            {
                "images": _shown(name, value),
                "worst class": f"{worst} {_percent(value.per_class[worst])}",
                "ECE": _percent(value.calibration_error),
                "ms a draw": f"{1000 * value.seconds_a_prediction:.2f}",
                "gradients": _spent(value),
                "passes": f"{value.evaluations:.0f}" if value.evaluations else "",
                "seconds": f"{value.seconds:.1f}",
            }
        )
    return rows


def _shown(name: str, value: Accuracy) -> str:
    """Return an attack's name, in l2 with the radius: that of the table is in linf."""
    settings = value.settings or {}
    if settings.get("norm") != "l2" or " at " in name:
        return name
    radius = settings.get("epsilon", settings.get("max_epsilon"))
    return name if radius is None else f"{name} at {brief(radius)}"


def _submissions(value: Accuracy) -> list[int]:
    return [number for number in value.broken_in if number <= 10]


def _spent(value: Accuracy) -> str:
    """Return the gradients that an image took, and how many it might have taken."""
    budget = (value.settings or {}).get("budget")
    spent = f"{value.gradients:.0f}" if value.gradients else ""
    return spent if budget is None else f"{spent or 0} of {budget}"


def with_interval(value: float, interval: tuple[float, float]) -> str:
    """Return a share with its interval, in per cent."""
    low, high = interval
    return f"{_percent(value)} ({_percent(low)}-{_percent(high)})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
