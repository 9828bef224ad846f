"""What runs say of the paper: the accuracy behind each cell, and the verdict on each claim.

A claim is decided over pairs of seeds: the interval of the effect is over seeds and images, as
``enresnet compare RUN... --against RUN...`` computes it. One pair says what two networks do, and
nothing of two ways of training: such a claim stays undecided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from enresnet.evaluation import Comparison, ComparisonTable, compare_groups, group_accuracy
from enresnet.evaluation.results_folder import SCORES
from enresnet.paper.claims import METRIC_WORDS, Claim, Side
from enresnet.paper.evidence_words import (
    images_words,
    networks_in,
    networks_of,
    precision_notes,
    trained_otherwise_words,
)
from enresnet.paper.measurement import Measurement, score_key, section_of
from enresnet.paper.published import Metric, PublishedTable, load_paper
from enresnet.paper.run_index import RunIndex
from enresnet.paper.usable_runs import UsableRuns, usable_runs
from enresnet.report.contents import Cell, Contents, Drawing, Measured, Row, Table, Verdict
from enresnet.training import Run, compare
from enresnet.training.run_groups import RunGroup, precision_words

ONE_SEED = "Fewer than two pairs of seeds: this is said of these weights, not of the training."
NO_PAIR = "No seed was run of both networks: this is said of these weights, not of the training."


class Evidence:
    """Reads runs; trains and measures nothing.

    Args:
        index: Where the runs are.
    """

    def __init__(self, index: RunIndex) -> None:
        self.index, self.setup = index, index.setup
        self._known: dict[tuple[Side, Metric], UsableRuns] = {}
        self._compared: dict[tuple[object, ...], ComparisonTable | str] = {}

    def contents(
        self,
        tables: Sequence[PublishedTable],
        claims: Sequence[Claim],
        drawings: Sequence[Drawing] = (),
    ) -> Contents:
        """Return what the runs say of tables and claims, and what a reader must know of them."""
        shown = tuple(map(self.table, tables))
        verdicts = tuple(map(self.verdict, claims))
        networks = [n for table in tables for n in networks_in(table)]
        networks += [n for claim in claims for side in claim.sides for n in networks_of(side)]
        remarks = [*self.index.skipped, *map(str, self.index.choices(networks))]
        remarks += dict.fromkeys(r for one in self._known.values() for r in one.remarks)
        for way, runs in self.index.trained_otherwise(networks).items():
            remarks.append(trained_otherwise_words(self.setup.name, way, runs))
        return Contents(shown, verdicts, tuple(drawings), tuple(remarks))

    def table(self, published: PublishedTable) -> Table:
        """Return a table of the paper with what was measured beside it."""
        metrics = self._metrics(published)
        rows = []
        for row in published.rows:
            known = {cell.metric: cell for cell in row.cells}
            cells = [
                Cell(
                    metric,
                    known[metric].value if metric in known else None,
                    self.measured(Side(row.network, row.source), metric),
                    known[metric].note if metric in known else "",
                )
                for metric in metrics
            ]
            rows.append(Row(row.title, row.network.model, tuple(cells)))
        notes = [f"{published.where} of the paper. {self.setup.caption}"]
        notes += filter(None, [images_words(rows)])
        notes += map(str, self.index.choices(networks_in(published)))
        notes += precision_notes(rows)
        sides = [Side(row.network, row.source) for row in published.rows]
        found = [r for side in sides for m in metrics for r in self._usable(side, m).remarks]
        notes += dict.fromkeys(found)
        caption = " ".join(notes)
        comparable = not self.setup.smoke
        return Table(
            published.key, published.title, published.data, tuple(rows), caption, comparable
        )

    def _metrics(self, published: PublishedTable) -> tuple[Metric, ...]:
        """Return the columns of a table: also the strongest attack, if it is asked for or there."""
        metrics = self.setup.metrics(published.metrics, white_box=published.white_box)
        rows = published.rows if published.white_box and "strongest" not in metrics else ()
        if any(self._runs(Side(row.network, row.source), "strongest") for row in rows):
            return (*metrics, "strongest")
        return metrics

    def measured(self, side: Side, metric: Metric) -> Measured | None:
        """Return the accuracy of a network over its seeds, in percent; None if it was not run."""
        runs = self._runs(side, metric)
        if not runs:
            return None
        scores = self._scores(runs, side, metric)
        mean, low, high = (100 * share for share in group_accuracy(scores))
        images = len(next(iter(scores.values())))
        seeds = tuple(runs)
        return Measured(mean, low, high, seeds, images, tuple(run.folder for run in runs.values()))

    def verdict(self, claim: Claim) -> Verdict:
        """Return what the runs say of a claim."""
        sides = [self._runs(side, claim.metric) for side in claim.sides]
        notes = ["Of a smoke run: it means nothing."] if self.setup.smoke else []
        notes += map(str, self.index.choices(n for s in claim.sides for n in networks_of(s)))
        for runs in sides:
            notes += filter(None, [precision_words(list(runs.values()))])
        if not all(sides):
            return _verdict(claim, self._unusable(claim), notes)
        usable = [self._usable(side, claim.metric) for side in claim.sides]
        notes += dict.fromkeys(sentence for one in usable for sentence in one.left_out)
        if conflict := next((one.conflict for one in usable if one.conflict), ""):
            folders = tuple(run.folder for runs in sides for run in runs.values())
            seeds = tuple(dict.fromkeys(seed for runs in sides for seed in runs))
            words = f"Not comparable: {conflict}."
            return _verdict(claim, _Found(None, None, None, None, seeds, folders, words), notes)
        if claim.second is None:
            return _verdict(claim, self._alone(claim, sides[0]), notes)
        common = [seed for seed in sides[0] if seed in sides[1]]
        chosen = [common or list(side)[:1] for side in sides]  # one network each without a pair
        sides = [{s: side[s] for s in some} for side, some in zip(sides, chosen, strict=True)]
        return _verdict(claim, self._two(claim, sides[0], sides[1]), notes)

    def _usable(self, side: Side, metric: Metric) -> UsableRuns:
        """Return the runs of a network that have a metric measured, and why others do not count."""
        key = (side, metric)
        if key not in self._known:
            self._known[key] = usable_runs(self.index, side, metric)
        return self._known[key]

    def _runs(self, side: Side, metric: Metric) -> dict[int, Run]:
        """Return the runs by seed that have a metric measured."""
        return self._usable(side, metric).runs

    def _scores(self, runs: Mapping[int, Run], side: Side, metric: Metric) -> dict[str, Tensor]:
        """Return the scores of the images that all runs have, by seed."""
        found: dict[str, Tensor] = {}
        for seed, run in runs.items():
            counts, about = run.results.scores()
            key = score_key(self.setup, run, side.source, metric)
            found[str(seed)] = counts[key].double() / about[key]["draws"]
        images = min(map(len, found.values()))
        return {seed: scores[:images] for seed, scores in found.items()}

    def _unusable(self, claim: Claim) -> _Found | None:
        """Return why runs of all sides decide nothing; None if a side has no run."""
        reasons, runs, seeds = [], [], []
        for side in claim.sides:
            trained = [
                (seed, run)
                for seed in self.index.seeds(side.network)
                if side.source is None or self.index.find(side.source, seed) is not None
                if (run := self.index.find(side.network, seed)) is not None
            ]
            if not trained:
                return None
            runs += [run.folder for _, run in trained]
            seeds += [seed for seed, _ in trained]
            if not self._runs(side, claim.metric):
                reasons.append(self._why(side, claim.metric, trained))
        return _Found(None, None, None, None, tuple(dict.fromkeys(seeds)), tuple(runs), reasons[0])

    def _why(self, side: Side, metric: Metric, trained: Sequence[tuple[int, Run]]) -> str:
        """Return why a network has no accuracy, although it is trained."""
        what = f"the {METRIC_WORDS[metric]} of {side}"
        if remarks := self._usable(side, metric).remarks:
            return f"Not comparable: {' '.join(remarks)}"
        for seed, run in trained:
            source = None if side.source is None else self.index.find(side.source, seed)
            if Measurement(self.setup, run, side.source, source).entry(metric) is not None:
                return (
                    f"Not comparable: {what} was measured, but the scores of the images are not "
                    f"there ({run.folder / SCORES}); measure it again."
                )
        return f"Not comparable: {what} was not measured, or not by this attack."

    def _alone(self, claim: Claim, runs: Mapping[int, Run]) -> _Found:
        """Return the accuracy of one network, as an effect."""
        scores = self._scores(runs, claim.first, claim.metric)
        folders = tuple(run.folder for run in runs.values())
        effect, low, high = group_accuracy(scores)
        note, p_value = ONE_SEED, None
        if len(runs) > 1:
            try:
                section = section_of(self.setup, next(iter(runs.values())), claim.first.source)
                RunGroup.of(folders, section=section)
            except ValueError as error:  # one claim is not decided, the others are
                reason = f"Not comparable: {str(error).splitlines()[0]}."
                return _Found(None, None, None, None, tuple(runs), folders, reason)
            nothing = {seed: 0 * one for seed, one in scores.items()}
            note, p_value = "", _p_value(claim, scores, nothing)
        return _Found(effect, low, high, p_value, tuple(runs), folders, note)

    def _two(self, claim: Claim, first: Mapping[int, Run], second: Mapping[int, Run]) -> _Found:
        """Return the effect of one network over another."""
        assert claim.second is not None
        folders = [[run.folder for run in side.values()] for side in (first, second)]
        firsts = [next(iter(runs.values())) for runs in (first, second)]  # all of a side are alike
        sections = [
            section_of(self.setup, run, side.source)
            for run, side in zip(firsts, claim.sides, strict=True)
        ]
        found = self._comparison(folders, sections)
        runs, name = (*folders[0], *folders[1]), self.setup.attack(claim.metric)
        seeds = tuple(seed for seed in first if seed in second) or tuple({**first, **second})
        if isinstance(found, str) or name not in found.compared:
            reason = found if isinstance(found, str) else found.skipped[name]
            return _Found(None, None, None, None, seeds, runs, f"Not comparable: {reason}.")
        one: Comparison = found.compared[name]
        note, p_value = ONE_SEED if set(first) == set(second) else NO_PAIR, None
        if len(folders[0]) > 1:
            note = ""
            scores = self._scores(first, claim.first, claim.metric)
            others = self._scores(second, claim.second, claim.metric)
            p_value = _p_value(claim, scores, others)
        low, high = one.interval
        return _Found(one.difference, low, high, p_value, seeds, runs, note)

    def _comparison(
        self, folders: Sequence[Sequence[Path]], sections: Sequence[str]
    ) -> ComparisonTable | str:
        """Return the comparison of two sides under all attacks, or why there is none."""
        key = (*map(tuple, folders), *sections)
        if key not in self._compared:
            try:
                self._compared[key] = compare(
                    folders[0], folders[1], section=sections[0], against_section=sections[1]
                )
            except ValueError as error:
                self._compared[key] = str(error).splitlines()[0]
        return self._compared[key]


@dataclass(frozen=True)
class _Found:
    """An effect that was measured, as a share."""

    effect: float | None
    low: float | None
    high: float | None
    p_value: float | None
    seeds: tuple[int, ...]
    runs: tuple[Path, ...]
    note: str


def _p_value(claim: Claim, scores: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """Return the p-value of an effect at the edge of what is claimed; of two edges, the larger."""
    images = min(len(one) for one in (*scores.values(), *others.values()))
    values = []
    for edge in claim.edges:
        moved = {seed: one[:images] - edge / 100 for seed, one in scores.items()}
        kept = {seed: one[:images] for seed, one in others.items()}
        values.append(compare_groups(moved, kept, paired=True).p_value)
    return max(values)


def _verdict(claim: Claim, found: _Found | None, known: Sequence[str]) -> Verdict:
    notes = [*known, claim.contradicted]
    if load_paper().find(claim.first.network, claim.metric, claim.first.source) is None:
        notes.append("The paper does not use this attack.")
    if found is None or found.effect is None or found.low is None or found.high is None:
        note = " ".join(filter(None, [*notes, "" if found is None else found.note]))
        return Verdict(
            claim.key,
            claim.statement,
            claim.where,
            "not run" if found is None else "not comparable",
            claim.paper_effect,
            seeds=() if found is None else found.seeds,
            runs=() if found is None else found.runs,
            note=note,
        )
    low, high = 100 * found.low, 100 * found.high
    decided = found.note not in (ONE_SEED, NO_PAIR)
    return Verdict(
        claim.key,
        claim.statement,
        claim.where,
        claim.decide(low=low, high=high) if decided else "undecided",
        claim.paper_effect,
        100 * found.effect,
        low,
        high,
        found.p_value,
        found.seeds,
        found.runs,
        " ".join(filter(None, [*notes, found.note])),
    )
