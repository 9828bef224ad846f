"""The accuracies that a reproduction needs of a run, measured into the run's folder.

They are kept in evaluation.json as ``enresnet evaluate`` keeps them: what one has measured the
other finds. Blind accuracies have a section of their own in the folder of the network that
classifies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

from enresnet.attacks import Attack, attack_at
from enresnet.common.reading import safetensors_digest
from enresnet.data import Images, load_data
from enresnet.evaluation import Accuracy, EvaluationOptions, Journals, Session
from enresnet.evaluation.accuracy import NATURAL
from enresnet.evaluation.matrix import OWN
from enresnet.evaluation.sections import ChosenAttack, Sections
from enresnet.models import is_noisy
from enresnet.paper.published import Metric, Network
from enresnet.paper.setup import Setup
from enresnet.training import Run, RunConfig

SECTION = "best"
JOURNAL = "evaluation.journal"  # as that of enresnet evaluate
EOT = 5
BUDGET = 1000  # gradients an image, of the strongest attack
SEED = 0  # of attacks and noise: the same images for all networks


def section_of(setup: Setup, run: Run, source: Network | None = None) -> str:
    """Return the section of evaluation.json that accuracies of a run belong to.

    A run that was trained at another epsilon than it is measured at has a section with that in its
    name, as ``enresnet evaluate RUN --epsilon`` calls it.
    """
    own = SECTION if source is None else f"{SECTION}, blind from {source.key}"
    usual = run.config.recipe.epsilon == setup.epsilon
    return own if usual else f"{own} at epsilon {setup.epsilon:.6g}"


def score_key(setup: Setup, run: Run, source: Network | None, metric: Metric) -> str:
    """Return the name of a metric's scores in a run's folder."""
    return f"{section_of(setup, run, source)}/{setup.attack(metric)}"


class Measurement:
    """The accuracies of one network, white-box or blind, that are there and that are missing.

    Args:
        setup: How accuracies are measured.
        run: The run of the network that classifies.
        source: The network that blind attacks see; None for white-box attacks.
        source_run: Its run.
    """

    def __init__(
        self,
        setup: Setup,
        run: Run,
        source: Network | None = None,
        source_run: Run | None = None,
    ) -> None:
        self.setup, self.run = setup, run
        self.source, self._attacked = source, source_run or run
        self.section = section_of(setup, run, source)

    def entry(self, metric: Metric) -> dict[str, Any] | None:
        """Return what is kept of a metric, if weights and attack are those that are wanted."""
        if self.run.results.outdated(self.section):
            return None
        section = self.run.results.sections().get(self.section, {})
        if metric == "natural":
            return section.get(NATURAL) or None
        found: dict[str, Any] | None = section.get("robust", {}).get(self.setup.attack(metric))
        if not found:
            return None
        how = found.get("circumstances") or {}
        settings = json.loads(json.dumps(self._attack(metric).settings()))
        if found.get("settings") != settings:
            return None
        if self.source and how.get("source", {}).get("sha256") != _digest(self._attacked):
            return None
        return found

    def has_scores(self, metric: Metric) -> bool:
        """Return whether a metric is measured, and the scores of the images are there."""
        key = score_key(self.setup, self.run, self.source, metric)
        return self.entry(metric) is not None and key in self.run.results.scores()[0]

    def missing(self, metrics: Iterable[Metric]) -> list[Metric]:
        """Return the metrics that are not measured yet, on as many images as are wanted."""
        return [metric for metric in metrics if not self._has(metric)]

    def _has(self, metric: Metric) -> bool:
        entry = self.entry(metric)
        if entry is None:
            return False
        there = len(_test_images(self.run.config.data, self.run.config.limit))
        return bool(entry["images"] >= min(self.setup.images(metric) or there, there))

    def measure(self, metrics: Sequence[Metric], *, progress: bool | None = None) -> None:
        """Measure what is missing of some metrics; killed, the same call goes on."""
        missing = self.missing(metrics)
        if not missing:
            return
        target = self.run.load("best").to(_device())
        source = target if self.source is None else self._attacked.load("best").to(_device())
        images = _test_images(self.run.config.data, self.run.config.limit)
        images = images.in_terms_of(self.run.config.classes or images.classes)
        for limit, some in self._by_number(missing).items():
            options = EvaluationOptions(
                draws=self.setup.predictions,
                limit=limit,
                seed=SEED,
                journal=Journals(self.run.folder / JOURNAL),
                warn=not self.setup.smoke,
                progress=progress,
            )
            session = Session.between({OWN: source}, {OWN: target}, images, options)
            self._measure(session, some)

    def _measure(self, session: Session, metrics: Sequence[Metric]) -> None:
        epsilon, options = self.setup.epsilon, session.options
        chosen = [
            ChosenAttack(name, self._attack(metric), epsilon, name)
            for metric in metrics
            if metric != "natural"
            for name in [self.setup.attack(metric)]
        ]
        weights = self.run.weights("best")
        facts = {
            "model": self.run.config.model,
            "file": {"name": weights.name, "sha256": safetensors_digest(weights)},
            "data_name": self.run.config.data,
            "checkpoint": "best",
            "weights": session.identity().digest,
            "eot": self._eot,
            **options.conditions(),
        }
        if self.source is not None:
            facts["source"] = {
                "model": self.source.model,
                "run": str(self._attacked.folder),
                "sha256": _digest(self._attacked),
            }
        attacks = {one.name: one.attack for one in chosen}
        natural = None if "natural" in metrics else self.entry("natural")
        known = {} if natural is None else {NATURAL: Accuracy.from_json(natural)}
        result = session.complete(attacks, known)
        Sections(
            self.run.results,
            lambda _: self.section,
            chosen,
            [epsilon],
            session.digest,
            len(session.data),
            facts,
        ).add(result)
        session.finish(attacks)

    def _by_number(self, metrics: Sequence[Metric]) -> dict[int | None, list[Metric]]:
        """Return the metrics by the number of images that they are measured on."""
        found: dict[int | None, list[Metric]] = {}
        for metric in metrics:
            found.setdefault(self.setup.images(metric), []).append(metric)
        return found

    @property
    def _eot(self) -> int:
        return eot_of(self._attacked.config)

    def _attack(self, metric: Metric) -> Attack:
        return paper_attack(self.setup.attack(metric), self.setup.epsilon, self._eot)


def eot_of(config: RunConfig) -> int:
    """Return how many draws a gradient of a network averages: 5 with noise, as in the paper."""
    return EOT if is_noisy(config.model) and config.recipe.noise > 0 else 1


def paper_attack(name: str, epsilon: float, eot: int) -> Attack:
    """Return an attack as all networks are measured under it."""
    return attack_at(name, epsilon, eot=eot, seed=SEED, budget=BUDGET)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _digest(run: Run) -> str | None:
    return safetensors_digest(run.weights("best"))


@cache
def _test_images(data: str, limit: int | None) -> Images:
    return load_data(data, limit=limit).test
