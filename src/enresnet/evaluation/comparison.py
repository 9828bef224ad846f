"""Kept results of two models, or of several runs of two methods, compared image by image.

Only like is compared with like: the same images, the same attack to the last digit of its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from torch import Tensor

from enresnet.evaluation.accuracy import NATURAL
from enresnet.evaluation.groups import compare_groups
from enresnet.evaluation.results import Record
from enresnet.evaluation.statistics import Comparison, SharedNoise, compare_scores
from enresnet.evaluation.summary import lost_in


@dataclass(frozen=True)
class _Kept:
    """How often each image was right, and what that depends on."""

    counts: Tensor
    about: dict[str, Any]

    @property
    def deterministic(self) -> bool:
        return bool(self.about.get("deterministic"))

    def standing(self, tries: int, images: int) -> Tensor:
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


def compare_records(
    first: Record,
    second: Record,
    *,
    section: str = "best",
    other_section: str | None = None,
    tries: int = 1,
) -> tuple[dict[str, Comparison], dict[str, str]]:
    """Compare two models under every attack that both were evaluated under.

    Where one was measured on more images, the first ones that both have are compared. Also return
    why attacks that both have are not compared. With more ``tries`` than one, an image stands only
    if so many draws all get it right. The verdict is on these two models. ``other_section`` is
    that of the second, where it is another one.
    """
    found: dict[str, Comparison] = {}
    rows, skipped = _rows([(first, section), (second, other_section or section)], tries)
    for name, (mine, other) in rows.items():
        images = min(len(mine.counts), len(other.counts))
        found[name] = compare_scores(
            mine.standing(tries, images),
            other.standing(tries, images),
            shared=mine.shared.and_of(other.shared),
        )
    return found, skipped


def compare_record_groups(
    first: Mapping[str, Record],
    second: Mapping[str, Record],
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
    places = [(record, section) for record in first.values()]
    places += [(record, other_section or section) for record in second.values()]
    rows, skipped = _rows(places, tries)
    for name, kept in rows.items():
        images = min(len(value.counts) for value in kept)
        scores = [value.standing(tries, images) for value in kept]
        found[name] = compare_groups(
            dict(zip(first, scores[: len(first)], strict=True)),
            dict(zip(second, scores[len(first) :], strict=True)),
            paired=paired,
        )
    return found, skipped


def _rows(
    places: Sequence[tuple[Record, str]], tries: int
) -> tuple[dict[str, list[_Kept]], dict[str, str]]:
    """Return what all records have, natural first, and why some of it cannot be compared."""
    entries = [_entries(record, section) for record, section in places]
    common = set.intersection(*(set(entry) for entry in entries))
    rows: dict[str, list[_Kept]] = {}
    skipped: dict[str, str] = {}
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


def _entries(record: Record, section: str) -> dict[str, _Kept]:
    counts, about = record.scores()
    found = {}
    for key, value in counts.items():
        place, _, name = key.rpartition("/")
        if place == section:
            found[name] = _Kept(value, about[key])
    return found


def _differing(mine: _Kept, other: _Kept, *, attacked: bool) -> str:
    """Return what two results differ in so that they cannot be compared; "" if in nothing.

    A model that answers always the same needs neither draws nor EOT.
    """
    if mine.about["data"] != other.about["data"]:
        return "measured on other images"
    if attacked and not (mine.about.get("settings") and other.about.get("settings")):
        return "measured before the settings of attacks were kept; evaluate again"
    mine_all, other_all = (
        {"draws": kept.about["draws"], **(kept.about.get("settings") or {})}
        for kept in (mine, other)
    )
    free = {"draws", "eot"} if mine.deterministic or other.deterministic else set()
    parts = [
        f"{name} {mine_all.get(name)} and {other_all.get(name)}"
        for name in sorted({*mine_all, *other_all} - free)
        if mine_all.get(name) != other_all.get(name)
    ]
    return ", ".join(parts)
