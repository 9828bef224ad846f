"""Which runs of a network an accuracy is read from, and why others are not.

What a folder says is believed only if its parts agree: the scores of single images must be of the
images and of the number that the accuracy beside them states, and of the data that the network was
trained on. Runs that cannot be read are named and left out, and so are trainings that collapsed and
went on in another way than their recipe says; the others are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from enresnet.paper.claims import METRIC_WORDS, Side
from enresnet.paper.measurement import Measurement, score_key
from enresnet.paper.published import Metric
from enresnet.paper.run_index import RunIndex
from enresnet.training import Run


@dataclass(frozen=True)
class UsableRuns:
    """The runs of a network that have a metric measured.

    Attributes:
        runs: The runs that count, by seed.
        left_out: A sentence on each run that does not, although it is measured.
        conflict: Why runs cannot be taken together; "" if they can. Of two that hold the same
            weights the first counts; of runs on different images none does.
    """

    runs: dict[int, Run]
    left_out: tuple[str, ...] = ()
    conflict: str = ""

    @property
    def remarks(self) -> list[str]:
        """All that a reader must know, a sentence each."""
        return [*self.left_out, *([f"{self.conflict}."] if self.conflict else [])]


def usable_runs(index: RunIndex, side: Side, metric: Metric) -> UsableRuns:
    """Return the runs of a network that a metric can be read from.

    Args:
        index: Where the runs are.
        side: The network, and the one that blind attacks see.
        metric: What was measured.
    """
    runs: dict[int, Run] = {}
    left_out, images, weights = [], {}, {}
    for seed in index.seeds(side.network):
        run, source = index.find(side.network, seed), None
        if side.source is not None:
            source = index.find(side.source, seed)
            if source is None:
                continue
        assert run is not None
        if collapsed := index.collapsed(run):
            left_out.append(f"{run.folder} is left out: {collapsed}.")
            continue
        measurement = Measurement(index.setup, run, side.source, source)
        try:
            if not measurement.has_scores(metric):
                continue
            about = _about_scores(measurement, metric)
            weights[seed] = run.results.sections()[measurement.section].get("weights")
        except ValueError as error:
            left_out.append(f"{run.folder} is left out: {str(error).splitlines()[0]}.")
            continue
        runs[seed], images[seed] = run, about["data"]
    if len(set(images.values())) > 1:
        folders = ", ".join(str(run.folder) for run in runs.values())
        what = f"the {METRIC_WORDS[metric]} of {side} was measured on different images"
        return UsableRuns({}, tuple(left_out), f"{what} ({folders}): measure them again")
    kept: dict[int, Run] = {}
    owner: dict[Any, Run] = {}
    conflict = ""
    for seed, run in runs.items():
        first = owner.setdefault(weights[seed], run)
        if first is run:
            kept[seed] = run
        else:
            same = f"{first.folder} and {run.folder} hold the same weights"
            conflict = f"{same}: they are one training, and count once"
    return UsableRuns(kept, tuple(left_out), conflict)


def _about_scores(measurement: Measurement, metric: Metric) -> dict[str, Any]:
    """Return what the scores of a metric depend on; raise if an accuracy and they disagree."""
    run = measurement.run
    key = score_key(measurement.setup, run, measurement.source, metric)
    counts, known = run.results.scores()
    entry, about = measurement.entry(metric) or {}, dict(known[key])
    what = METRIC_WORDS[metric]
    if entry.get("images") != len(counts[key]):
        raise ValueError(
            f"its {what} is of {entry.get('images')} images, its scores are of "
            f"{len(counts[key])}: measure it again"
        )
    if entry.get("data") != about["data"]:
        raise ValueError(f"its {what} and its scores are of different images: measure it again")
    if conflict := run.results.disagreement(*key.rsplit("/", 1)):
        raise ValueError(conflict)
    data = (entry.get("circumstances") or {}).get("data_name")
    if data is not None and data != run.config.data:
        raise ValueError(f"its {what} is on {data}, it was trained on {run.config.data}")
    return about
