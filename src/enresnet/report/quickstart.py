"""The plan of the quickstart, and its results: trainings, attacks, the table of accuracies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from enresnet.evaluation import accuracy_interval, paired_difference
from enresnet.training import Epoch, Recipe, load_recipe

BASE, ENSEMBLE = "resnet8", "en3_resnet8"
NETWORKS = (BASE, ENSEMBLE)
# In tanh space a black pixel hardly moves, and digits are mostly black: C&W in pixel space.
ATTACKS = ("fgsm", "ifgsm20", "cw_pixel")
EOT = 5  # as in Sec. 4, for the noisy network
DRAWS = 10


@dataclass(frozen=True)
class Plan:
    """What the quickstart runs: the training, and how many images each attack gets for each seed.

    Each network has the learning rate that is best for it on validation images, among those that
    ``benchmarks/quickstart_rates.py`` tries. The slower the attack, the fewer images. Each seed
    attacks different ones of the 500 test images, as long as there are enough.

    Attributes:
        recipe: How both networks are trained.
        rates: The learning rate of each network.
        images: The number of test images for each attack.

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


@dataclass(frozen=True)
class Trained:
    """One training: a network, a seed, and its epochs."""

    network: str
    seed: int
    epochs: list[Epoch]
    seconds: float


@dataclass(frozen=True)
class Attacked:
    """One attack on one network: the scores of both networks on the images it made."""

    source: str
    attack: str
    seed: int
    rows: Tensor  # which test images
    scores: dict[str, Tensor]
    settings: str
    seconds: float
    images: Tensor  # the first few, for the grid
    answers: dict[str, Tensor]  # both networks' predictions on them


@dataclass(frozen=True)
class Quickstart:
    """All results of :func:`run_quickstart`.

    Attributes:
        trained: The trainings, one for each network and seed.
        attacked: The attacks, one for each network, attack and seed.
        clean: Each network's scores on all clean test images, seeds x images.
        examples: The first test images, for the page, N x 1 x 8 x 8.
        labels: Their classes, N.
        clean_answers: Each network's predictions on them, N.
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
    examples: Tensor
    labels: Tensor
    clean_answers: dict[str, Tensor]
    seconds: float
    seeds: int
    plan: Plan

    def scores(self, target: str, attack: str, *, source: str | None = None) -> Tensor:
        """Return one network's scores under an attack, white box unless a source is named.

        There is one score for each image, its mean over the seeds that attacked it: the intervals
        are over images, so none may count twice.
        """
        chosen = self._chosen(attack, source or target)
        rows = torch.cat([a.rows for a in chosen])
        different, place = rows.unique(return_inverse=True)
        scores = torch.cat([a.scores[target] for a in chosen])
        means: Tensor = torch.zeros(len(different)).index_add_(0, place, scores) / place.bincount()
        return means

    def rows(self) -> list[dict[str, Any]]:
        """Return the table: images, each network's accuracy and interval, and their difference."""
        clean = {network: scores.mean(dim=0) for network, scores in self.clean.items()}
        by_seed = (self.clean[ENSEMBLE] - self.clean[BASE]).mean(dim=1).tolist()
        rows = [_row("clean images", clean[BASE], clean[ENSEMBLE], by_seed)]
        for kind in ("white box", "blind"):
            for attack in ATTACKS:
                sources = {
                    target: target if kind == "white box" else other
                    for target, other in zip(NETWORKS, reversed(NETWORKS), strict=True)
                }
                both = [self.scores(t, attack, source=sources[t]) for t in NETWORKS]
                means = [
                    [float(a.scores[t].mean()) for a in self._chosen(attack, sources[t])]
                    for t in NETWORKS
                ]
                by_seed = [ours - base for base, ours in zip(*means, strict=True)]
                rows.append(_row(f"{attack}, {kind}", both[0], both[1], by_seed))
        return rows

    def _chosen(self, attack: str, source: str) -> list[Attacked]:
        return [a for a in self.attacked if (a.source, a.attack) == (source, attack)]

    def to_json(self) -> dict[str, Any]:
        """Return the table, the training curves and the settings as plain JSON."""
        return {
            "table": self.rows(),
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
