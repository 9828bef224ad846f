"""The plan of the quickstart, and its results: trainings, attacks, accuracies, examples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from enresnet.evaluation import accuracy_interval, paired_difference
from enresnet.report.examples import Answer, Answers, Differing, Example
from enresnet.training import Epoch, Recipe, load_recipe

BASE, ENSEMBLE = "resnet8", "en3_resnet8"
NETWORKS = (BASE, ENSEMBLE)
# In tanh space a black pixel hardly moves, and digits are mostly black: C&W in pixel space.
ATTACKS = ("fgsm", "ifgsm20", "cw_pixel")
SHOWN_ATTACK = "ifgsm20"  # of the curve and of the pictures
EOT = 5  # as in Sec. 4, for the noisy network
DRAWS = 10


@dataclass(frozen=True)
class Plan:
    """What the quickstart runs: the training, the images of each attack, the curve's radii.

    Each network has the learning rate that is best for it on validation images, among those that
    ``benchmarks/quickstart_rates.py`` tries. The slower the attack, the fewer images. Each seed
    attacks different ones of the 500 test images, as long as there are enough.

    Attributes:
        recipe: How both networks are trained.
        rates: The learning rate of each network.
        images: The number of test images for each attack, for each seed.
        radii: The values of epsilon at which IFGSM-20 is run for the curve, besides the recipe's.

    Example::

        from enresnet.report import Plan

        plan = Plan(recipe=enresnet.load_recipe("quickstart", epochs=2))
        print(plan.images)
    """

    recipe: Recipe = field(default_factory=lambda: load_recipe("quickstart"))
    rates: dict[str, float] = field(default_factory=lambda: {BASE: 0.6, ENSEMBLE: 0.3})
    images: dict[str, int] = field(
        default_factory=lambda: {"fgsm": 500, "ifgsm20": 160, "cw_pixel": 64}
    )
    radii: tuple[float, ...] = (0.1, 0.3, 0.4)

    def curve_radii(self) -> list[float]:
        """Return the radii of the curve: 0, the recipe's epsilon and the others."""
        return sorted({0.0, self.recipe.epsilon, *self.radii})


@dataclass(frozen=True)
class Trained:
    """One training: a network, a seed, and its epochs."""

    network: str
    seed: int
    epochs: list[Epoch]
    seconds: float


@dataclass(frozen=True)
class Attacked:
    """One attack on one network: the scores of both networks on the images it made.

    For the curve, away from the recipe's epsilon, only the attacked network has scores.
    """

    source: str
    attack: str
    epsilon: float
    seed: int
    rows: Tensor  # which test images
    scores: dict[str, Tensor]
    settings: str
    seconds: float
    images: Tensor
    answers: dict[str, Answers]  # for the attack whose images are shown


@dataclass(frozen=True)
class Clean:
    """Both networks' scores and answers on all clean test images, for one seed."""

    seed: int
    scores: dict[str, Tensor]
    answers: dict[str, Answers]
    seconds: float


@dataclass(frozen=True)
class Quickstart:
    """All results of :func:`run_quickstart`.

    Attributes:
        trained: The trainings, one for each network and seed.
        attacked: The attacks, one for each network, attack, epsilon and seed.
        clean: Each network's scores on all clean test images, seeds x images.
        images: The test images, N x 1 x 8 x 8.
        labels: Their classes, N.
        clean_answers: Each network's answers on the clean test images, one for each seed.
        seconds: The time of the whole quickstart.
        seeds: The number of seeds.
        plan: What was run.

    Example::

        from enresnet.paper import run_quickstart

        result = run_quickstart(seeds=1)
        for row in result.rows():
            print(row["images"], row["resnet8"]["accuracy"], row["en3_resnet8"]["accuracy"])
    """

    trained: list[Trained]
    attacked: list[Attacked]
    clean: dict[str, Tensor]
    images: Tensor
    labels: Tensor
    clean_answers: dict[str, list[Answers]]
    seconds: float
    seeds: int
    plan: Plan

    def scores(
        self, target: str, attack: str, *, source: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        """Return one network's scores under an attack, white box unless a source is named.

        There is one score for each image, its mean over the seeds that attacked it: the intervals
        are over images, so none may count twice. The epsilon is by default the recipe's.
        """
        chosen = self._chosen(attack, source or target, epsilon)
        rows = torch.cat([a.rows for a in chosen])
        different, place = rows.unique(return_inverse=True)
        scores = torch.cat([a.scores[target] for a in chosen])
        means: Tensor = torch.zeros(len(different)).index_add_(0, place, scores) / place.bincount()
        return means

    def rows(self) -> list[dict[str, Any]]:
        """Return the table: images, each network's accuracy and interval, and their difference."""
        attacked = [
            self._attacked_row(f"{attack}, {kind}", attack, blind=kind == "blind")
            for kind in ("white box", "blind")
            for attack in ATTACKS
        ]
        return [self._clean_row(), *attacked]

    def curve_rows(self) -> list[dict[str, Any]]:
        """Return accuracy against epsilon: rows as in the table, each with its ``epsilon``.

        At 0 and at the recipe's epsilon they hold the figures of the table.
        """
        rows = []
        for radius in self.plan.curve_radii():
            name = f"{SHOWN_ATTACK}, epsilon = {radius:g}"
            row = (
                self._attacked_row(name, SHOWN_ATTACK, epsilon=radius)
                if radius
                else self._clean_row()
            )
            rows.append({"epsilon": radius, **row})
        return rows

    def examples(self) -> list[Example]:
        """Return every image that the shown attack attacked, in the order of the data set.

        Where several seeds attacked an image, it is that of the first of them.
        """
        found: dict[int, Example] = {}
        pairs = [self._chosen(SHOWN_ATTACK, network, None) for network in NETWORKS]
        for both in zip(*pairs, strict=True):
            seed = both[0].seed
            for place, row in enumerate(both[0].rows.tolist()):
                if row in found:
                    continue
                found[row] = Example(
                    row=row,
                    seed=seed,
                    label=int(self.labels[row]),
                    image=self.images[row],
                    attacked={a.source: a.images[place] for a in both},
                    clean_answers={
                        network: Answer.at(row, self.clean_answers[network][seed])
                        for network in NETWORKS
                    },
                    answers={
                        a.source: {n: Answer.at(place, a.answers[n]) for n in NETWORKS}
                        for a in both
                    },
                )
        return [found[row] for row in sorted(found)]

    def differing(self) -> Differing:
        """Return which images both networks hold under the shown attack, one alone, or neither."""
        return Differing.among(self.examples(), (ENSEMBLE, BASE))

    def _clean_row(self) -> dict[str, Any]:
        clean = {network: scores.mean(dim=0) for network, scores in self.clean.items()}
        by_seed = (self.clean[ENSEMBLE] - self.clean[BASE]).mean(dim=1).tolist()
        return _row("clean images", clean[BASE], clean[ENSEMBLE], by_seed)

    def _attacked_row(
        self, name: str, attack: str, *, blind: bool = False, epsilon: float | None = None
    ) -> dict[str, Any]:
        both, means = [], []
        for target, other in zip(NETWORKS, reversed(NETWORKS), strict=True):
            source = other if blind else target
            both.append(self.scores(target, attack, source=source, epsilon=epsilon))
            chosen = self._chosen(attack, source, epsilon)
            means.append([float(a.scores[target].mean()) for a in chosen])
        by_seed = [ours - base for base, ours in zip(*means, strict=True)]
        return _row(name, both[0], both[1], by_seed)

    def _chosen(self, attack: str, source: str, epsilon: float | None) -> list[Attacked]:
        key = (source, attack, self.plan.recipe.epsilon if epsilon is None else epsilon)
        return [a for a in self.attacked if (a.source, a.attack, a.epsilon) == key]

    def to_json(self) -> dict[str, Any]:
        """Return the table, the curves, the images that differ and the settings as plain JSON."""
        differing = self.differing()
        return {
            "table": self.rows(),
            "curve": self.curve_rows(),
            "held": {
                "attack": SHOWN_ATTACK,
                "both": differing.both,
                "neither": differing.neither,
                "only": {
                    network: [{"image": e.row, "seed": e.seed} for e in examples]
                    for network, examples in differing.only.items()
                },
            },
            "training": [
                {**vars(t), "epochs": [asdict(epoch) for epoch in t.epochs]} for t in self.trained
            ],
            "attacks": sorted({a.settings for a in self.attacked}),
            "seeds": self.seeds,
            "seconds": self.seconds,
            "recipe": self.plan.recipe.to_dict(),
            "learning_rates": self.plan.rates,
            "eot": EOT,
            "draws": DRAWS,
        }


def _row(images: str, base: Tensor, ensemble: Tensor, by_seed: list[float]) -> dict[str, Any]:
    cells = {
        network: {"accuracy": float(scores.mean()), "interval": accuracy_interval(scores)}
        for network, scores in zip(NETWORKS, (base, ensemble), strict=True)
    }
    mean, low, high = paired_difference(ensemble, base)
    difference = {"difference": mean, "interval": (low, high), "by_seed": by_seed}
    return {"images": images, **cells, "difference": difference, "count": len(base)}
