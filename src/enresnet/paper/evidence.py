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
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.paper.claims import Claim, Side
from enresnet.paper.measurement import Measurement, section_of
from enresnet.paper.published import Metric, PublishedTable, load_paper
from enresnet.paper.run_index import RunIndex
from enresnet.report.contents import Cell, Measured, Row, Table, Verdict
from enresnet.training import Run, compare
from enresnet.training.run_groups import RunGroup

ONE_SEED = "Fewer than two pairs of seeds: this is said of these weights, not of the training."


class Evidence:
    """Reads runs; trains and measures nothing.

    Args:
        index: Where the runs are.
    """

    def __init__(self, index: RunIndex) -> None:
        self.index, self.setup = index, index.setup
        self._compared: dict[tuple[object, ...], ComparisonTable | str] = {}

    def table(self, published: PublishedTable) -> Table:
        """Return a table of the paper with what was measured beside it."""
        metrics = self.setup.metrics(published.metrics, white_box=published.white_box)
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
        caption = f"{published.where} of the paper. {self.setup.caption}"
        return Table(published.key, published.title, published.data, tuple(rows), caption)

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
        smoke = "Of a smoke run: it means nothing." if self.setup.smoke else ""
        sides = [self._runs(side, claim.metric) for side in claim.sides]
        if not all(sides):
            return _verdict(claim, None, smoke)
        if claim.second is None:
            return _verdict(claim, self._alone(claim, sides[0]), smoke)
        common = [seed for seed in sides[0] if seed in sides[1]]
        chosen = [common or list(side)[:1] for side in sides]  # one network each without a pair
        sides = [{s: side[s] for s in some} for side, some in zip(sides, chosen, strict=True)]
        return _verdict(claim, self._two(claim, sides[0], sides[1]), smoke)

    def _runs(self, side: Side, metric: Metric) -> dict[int, Run]:
        """Return the runs by seed that have a metric measured."""
        found: dict[int, Run] = {}
        for seed in self.index.seeds(side.network):
            run, source = self.index.find(side.network, seed), None
            if side.source is not None:
                source = self.index.find(side.source, seed)
                if source is None:
                    continue
            assert run is not None
            measured = Measurement(self.setup, run, side.source, source).entry(metric) is not None
            if measured and self._key(side, metric) in ResultsFolder(run.folder).scores()[0]:
                found[seed] = run
        return found

    def _scores(self, runs: Mapping[int, Run], side: Side, metric: Metric) -> dict[str, Tensor]:
        """Return the scores of the images that all runs have, by seed."""
        found: dict[str, Tensor] = {}
        for seed, run in runs.items():
            counts, about = ResultsFolder(run.folder).scores()
            key = self._key(side, metric)
            found[str(seed)] = counts[key].double() / about[key]["draws"]
        images = min(map(len, found.values()))
        return {seed: scores[:images] for seed, scores in found.items()}

    def _key(self, side: Side, metric: Metric) -> str:
        """Return the name of a metric's scores in a run's folder."""
        return f"{section_of(side.source)}/{self.setup.attack(metric)}"

    def _alone(self, claim: Claim, runs: Mapping[int, Run]) -> _Found:
        """Return the accuracy of one network, as an effect."""
        scores = self._scores(runs, claim.first, claim.metric)
        folders = tuple(run.folder for run in runs.values())
        effect, low, high = group_accuracy(scores)
        note, p_value = ONE_SEED, None
        if len(runs) > 1:
            RunGroup.of(folders)  # raises if they differ in more than their seed
            nothing = {seed: 0 * one for seed, one in scores.items()}
            note, p_value = "", _p_value(claim, scores, nothing)
        return _Found(effect, low, high, p_value, tuple(runs), folders, note)

    def _two(self, claim: Claim, first: Mapping[int, Run], second: Mapping[int, Run]) -> _Found:
        """Return the effect of one network over another."""
        assert claim.second is not None
        folders = [[run.folder for run in side.values()] for side in (first, second)]
        found = self._comparison(folders, [section_of(s.source) for s in claim.sides])
        runs, name = (*folders[0], *folders[1]), self.setup.attack(claim.metric)
        seeds = tuple(seed for seed in first if seed in second) or tuple({**first, **second})
        if isinstance(found, str) or name not in found.compared:
            reason = found if isinstance(found, str) else found.skipped[name]
            return _Found(None, None, None, None, seeds, runs, f"Not comparable: {reason}.")
        one: Comparison = found.compared[name]
        note, p_value = ONE_SEED, one.p_value if claim.relation == "above" else None
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


def _verdict(claim: Claim, found: _Found | None, smoke: str) -> Verdict:
    notes = [smoke, claim.contradicted]
    if load_paper().find(claim.first.network, claim.metric, claim.first.source) is None:
        notes.append("The paper does not use this attack.")
    if found is None or found.effect is None or found.low is None or found.high is None:
        note = " ".join(filter(None, [*notes, "" if found is None else found.note]))
        return Verdict(
            claim.key, claim.statement, claim.where, "not run", claim.paper_effect, note=note
        )
    low, high = 100 * found.low, 100 * found.high
    decided = found.note != ONE_SEED
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
