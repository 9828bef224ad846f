"""Kept results of two models, or of several runs of two methods, compared image by image.

Only like is compared with like: the same images, the same attack to the last digit of its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from torch import Tensor

from enresnet.common.tables import as_html, as_text
from enresnet.common.text import brief
from enresnet.evaluation.accuracy import NATURAL, Accuracy
from enresnet.evaluation.aggregation import lost_in
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.groups import GroupComparison, compare_groups
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.evaluation.rows import Row
from enresnet.evaluation.score_file import about_scores
from enresnet.evaluation.statistics import Comparison, SharedNoise, compare_scores


@dataclass(frozen=True)
class _Kept:
    """How often each image was right, and what that depends on."""

    counts: Tensor
    about: dict[str, Any]

    @property
    def deterministic(self) -> bool:
        return bool(self.about.get("deterministic"))

    @classmethod
    def of(cls, value: Accuracy) -> _Kept | None:
        """Return what an accuracy knows of single images; None if it was read from a file."""
        if value.scored is None:
            return None
        return cls(value.scored.counts, about_scores(value, value.data))

    def survival(self, tries: int, images: int) -> Tensor:
        """Return the chance of each of the first images to be right in so many draws."""
        draws: int = self.about["draws"]
        if self.deterministic or tries == 1:
            return self.counts[:images] / draws
        return 1 - lost_in(self.counts[:images].long(), tries, draws)

    def unknown(self, tries: int) -> str:
        """Return why nothing is known of so many tries; "" if something is."""
        if self.deterministic or tries == 1:
            return ""
        if self.about["draws"] < tries:
            return f"{self.about['draws']} draws tell nothing of {tries} tries"
        if self.about.get("shared_variance", 0.0) > 0:
            return "its images may share their noise, and how far several tries do is not known"
        return ""

    @property
    def shared(self) -> SharedNoise:
        return SharedNoise(self.about.get("shared_variance", 0.0), self.about["draws"] - 1)


@dataclass(frozen=True, repr=False)
class ComparisonTable:
    """Whether one model, or one way of training, is more accurate than another, by attack.

    It prints as the table of ``enresnet compare``, also in a notebook.

    Attributes:
        title: What is compared, as the first less the second.
        how: Over what the intervals are: images, or seeds and images.
        compared: What was found, by the attack's name; "natural" is that of clean images.
        skipped: Why attacks that all have are not compared, by name.
        notes: What else there is to say, in sentences.
        tries: How often an attacker may submit the same image.
        first: The folders of the first side.
        second: The folders of the second side.
        section: The section of the first side's results.
        against_section: That of the second side's.

    Example::

        one, two = (enresnet.evaluate(model, (images, labels), draws=n) for n in (2, 2))
        found = enresnet.compare(one, two)
        print(found, found.compared["natural"].verdict)
    """

    title: str
    how: str
    compared: dict[str, Comparison]
    skipped: dict[str, str]
    notes: tuple[str, ...]
    tries: int
    first: tuple[str, ...]
    second: tuple[str, ...]
    section: str
    against_section: str

    @property
    def caption(self) -> str:
        """What the columns of the table mean."""
        what = "Accuracy" if self.tries == 1 else f"Images that {self.tries} tries all get right,"
        tests = "; ".join(sorted({value.test for value in self.compared.values()}))
        return (
            f"{what} in points, {self.how}, with the 95 % interval; the verdict is on the first "
            f"side, at the 5 % level ({tests}). Each row is a separate test: one in twenty errs by "
            "chance."
        )

    @property
    def remarks(self) -> list[str]:
        """The notes, and a sentence on each attack that is not compared."""
        reasons = (f"{shown(n)} is not compared: {reason}" for n, reason in self.skipped.items())
        return [*self.notes, *reasons]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of plain numbers for each attack, clean images first, for a data frame.

        Returns:
            Rows with ``images`` ("clean" or the attack's name), the ``difference`` of accuracies
            with its interval from ``low`` to ``high``, ``p_value``, ``verdict``, ``test`` and the
            ``number`` of images; over seeds also the accuracies ``first`` and ``second``.
        """
        rows = []
        for name, value in self.compared.items():
            row: dict[str, Any] = {"images": shown(name)}
            if isinstance(value, GroupComparison):
                row |= {"first": value.first, "second": value.second}
            row |= {
                "difference": value.difference,
                "low": value.interval[0],
                "high": value.interval[1],
                "p_value": value.p_value,
                "verdict": value.verdict,
                "test": value.test,
                "number": value.images,
            }
            rows.append(row)
        return rows

    def table(self) -> list[Row]:
        """Return the differences as rows of words, in points, with intervals."""
        return [_words(name, value) for name, value in self.compared.items()]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "first": list(self.first),
            "second": list(self.second),
            "tries": self.tries,
            "section": self.section,
            "against_section": self.against_section,
            "notes": list(self.notes),
            "compared": {name: value.to_json() for name, value in self.compared.items()},
        }

    def __str__(self) -> str:
        text = as_text(self.table(), title=self.title, caption=self.caption)
        return "\n".join([text, *self.remarks])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        caption = " ".join([self.caption, *self.remarks])
        return as_html(self.table(), title=self.title, caption=caption)


def shown(name: str) -> str:
    """Return what images are called in a table."""
    return "clean" if name == NATURAL else name


def _words(name: str, value: Comparison) -> Row:
    low, high = value.interval
    row = {"images": shown(name)}
    if isinstance(value, GroupComparison):
        row |= {"first": f"{100 * value.first:.2f}", "second": f"{100 * value.second:.2f}"}
    row |= {
        "difference": f"{100 * value.difference:+.2f} ({100 * low:+.2f}, {100 * high:+.2f})",
        "p": f"{value.p_value:.2g}",
        "verdict": value.verdict,
    }
    if isinstance(value, GroupComparison) and value.by_seed:
        row["by seed"] = " ".join(f"{100 * found:+.1f}" for found in value.by_seed.values())
    return row | {"images compared": str(value.images)}


def compare_records(
    first: ResultsFolder | Evaluation,
    second: ResultsFolder | Evaluation,
    *,
    section: str = "best",
    other_section: str | None = None,
    tries: int = 1,
) -> tuple[dict[str, Comparison], dict[str, str]]:
    """Compare two models under every attack that both were evaluated under.

    Where one was measured on more images, the first ones that both have are compared. Also return
    why attacks that both have are not compared. With more ``tries`` than one, an image stands only
    if so many draws all get it right. The verdict is on these two models. ``other_section`` is
    that of the second, where it is another one. Evaluations in memory have no sections.
    """
    found: dict[str, Comparison] = {}
    rows, skipped = _rows([(first, section), (second, other_section or section)], tries)
    for name, (mine, other) in rows.items():
        images = min(len(mine.counts), len(other.counts))
        found[name] = compare_scores(
            mine.survival(tries, images),
            other.survival(tries, images),
            shared=mine.shared.and_of(other.shared),
        )
    return found, skipped


def compare_record_groups(
    first: Mapping[str, ResultsFolder | Evaluation],
    second: Mapping[str, ResultsFolder | Evaluation],
    *,
    paired: bool,
    section: str = "best",
    other_section: str | None = None,
    tries: int = 1,
) -> tuple[dict[str, Comparison], dict[str, str]]:
    """Compare several runs, by their seed, of each of two methods: the verdict is on the methods.

    As :func:`compare_records`, under every attack that all of the runs were evaluated under, on
    the first images that all have.
    """
    found: dict[str, Comparison] = {}
    places: list[tuple[ResultsFolder | Evaluation, str]]
    places = [(record, section) for record in first.values()]
    places += [(record, other_section or section) for record in second.values()]
    rows, skipped = _rows(places, tries)
    for name, kept in rows.items():
        images = min(len(value.counts) for value in kept)
        scores = [value.survival(tries, images) for value in kept]
        found[name] = compare_groups(
            dict(zip(first, scores[: len(first)], strict=True)),
            dict(zip(second, scores[len(first) :], strict=True)),
            paired=paired,
        )
    return found, skipped


def _rows(
    places: Sequence[tuple[ResultsFolder | Evaluation, str]], tries: int
) -> tuple[dict[str, list[_Kept]], dict[str, str]]:
    """Return what all records have, natural first, and why some of it cannot be compared."""
    entries = [_entries(record, section) for record, section in places]
    common = set.intersection(*(set(entry) for entry in entries))
    rows: dict[str, list[_Kept]] = {}
    every = sorted(set.union(*(set(entry) for entry in entries)) - common)
    skipped = {name: _lacking(name, places, entries) for name in every}
    for name in sorted(common, key=lambda name: (name != NATURAL, name)):
        kept = [entry[name] for entry in entries]
        reasons = [
            _differing(one, other, attacked=name != NATURAL) for one, other in combinations(kept, 2)
        ]
        reasons += [value.unknown(tries) for value in kept]
        if reason := next(filter(None, reasons), ""):
            skipped[name] = reason
        else:
            rows[name] = kept
    return rows, skipped


def _lacking(
    name: str,
    places: Sequence[tuple[ResultsFolder | Evaluation, str]],
    entries: Sequence[Mapping[str, _Kept]],
) -> str:
    """Return which of the results have no such attack."""
    without = [where for where, entry in zip(places, entries, strict=True) if name not in entry]
    names = [str(r.folder) if isinstance(r, ResultsFolder) else "a result" for r, _ in without]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"it was not measured for {names[0]}{more}"


def _entries(record: ResultsFolder | Evaluation, section: str) -> dict[str, _Kept]:
    if isinstance(record, Evaluation):
        values = {NATURAL: record.natural, **record.robust}
        kept = {name: _Kept.of(value) for name, value in values.items()}
        return {name: value for name, value in kept.items() if value is not None}
    counts, about = record.scores()
    found = {}
    for key, value in counts.items():
        place, _, name = key.rpartition("/")
        if place == section:
            if conflict := record.disagreement(section, name):
                raise ValueError(conflict)
            found[name] = _Kept(value, about[key])
    return found


def _differing(mine: _Kept, other: _Kept, *, attacked: bool) -> str:
    """Return the difference that makes two results incomparable; "" if there is none.

    For a deterministic model neither draws nor EOT matter.
    """
    if mine.about["data"] != other.about["data"] and not _same_images(mine, other):
        return (
            "measured on other images (a run trained with --limit is tested on so many images; "
            "where these limits differ, evaluate all runs with one --limit, the smallest of them)"
        )
    if attacked and not (mine.about.get("settings") and other.about.get("settings")):
        return "measured before the settings of attacks were kept; evaluate again"
    mine_all, other_all = (
        {"draws": kept.about["draws"], **(kept.about.get("settings") or {})}
        for kept in (mine, other)
    )
    free = {"draws", "eot"} if mine.deterministic or other.deterministic else set()
    parts = [
        f"{name} {_both(mine_all.get(name), other_all.get(name))}"
        for name in sorted({*mine_all, *other_all} - free)
        if mine_all.get(name) != other_all.get(name)
    ]
    return ", ".join(parts)


def _same_images(mine: _Kept, other: _Kept) -> bool:
    """Return whether the measured images are the same, out of whatever larger sets they are."""
    used = mine.about.get("used")
    return used is not None and used == other.about.get("used")


def _both(one: Any, two: Any) -> str:
    """Return two values as briefly as they still differ."""
    short = [brief(value) for value in (one, two)]
    return " and ".join(short if short[0] != short[1] else map(str, (one, two)))
