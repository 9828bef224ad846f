"""Figure 6: images that are attacked on two networks, and what the attacked network takes them for.

The paper shows four images whose attacked versions all fool their network. Here they are the first
such test images; where there are too few, the first images stand in, and the caption counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from enresnet.attacks import attack_at
from enresnet.common.randomness import named_generator
from enresnet.evaluation.scoring import predictions
from enresnet.models import is_noisy, seed_noise
from enresnet.report.figures import image_grid
from enresnet.training import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 4  # as in the paper
SEARCHED = 256  # test images among which they are looked for, at most
BATCH = 32
DRAWS = 10  # of the answer of a network with noise
EOT = 5
CLEAN = "original"


@dataclass(frozen=True)
class Grid:
    """Images and answers, by what was done to them: CLEAN or an attack, and on which network."""

    images: Mapping[tuple[str, str], Tensor]
    answers: Mapping[tuple[str, str], Tensor]
    labels: Tensor
    rows: Sequence[int]  # their numbers among the test images
    classes: Sequence[str]
    searched: int
    seed: int

    @property
    def fooled(self) -> list[bool]:
        """Whether both networks get the image right, and wrong under each attack."""
        return _fooled(self.answers, self.labels).tolist()

    @property
    def caption(self) -> str:
        """By which rule the images were chosen."""
        return (
            "The first test images that both networks classify rightly, and wrongly under every "
            f"attack on them, as in the paper: {sum(self.fooled)} of these {len(self.rows)}, found "
            f"among the first {self.searched}. Others, if any, are the first images. Seed "
            f"{self.seed}."
        )

    def figure(self) -> Figure:
        """Draw the originals with the answers of both networks, then the attacked images."""
        networks = list(dict.fromkeys(network for _, network in self.images))
        both = {network: self.answers[CLEAN, network] for network in networks}
        columns = [(CLEAN, self.images[CLEAN, networks[0]], both)]
        for (name, network), images in self.images.items():
            if name != CLEAN:
                answers = {network: self.answers[name, network]}
                columns.append((f"{name} on {network}", images, answers))
        return image_grid(columns, self._words(self.labels), self.classes)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, without the images."""
        return {
            "rows": list(self.rows),
            "labels": self._words(self.labels),
            "fooled": self.fooled,
            "answers": {f"{n} on {m}": self._words(a) for (n, m), a in self.answers.items()},
        }

    def _words(self, numbers: Tensor) -> list[str]:
        return [self.classes[int(number)] for number in numbers]


def attack_images(
    runs: Mapping[str, Run], attacks: Sequence[str], *, epsilon: float, seed: int
) -> Grid:
    """Attack test images on each network, and ask it, until enough of them fool all.

    Args:
        runs: The runs of the networks, by the name that is shown.
        attacks: The names of the attacks.
        epsilon: How far they may move a pixel.
        seed: Fixes noise and attacks.
    """
    models: dict[str, nn.Module] = {}
    for name, run in runs.items():
        models[name] = run.load("best").eval()
        seed_noise(models[name], named_generator(seed, "noise of Figure 6"))
    first = next(iter(runs.values())).config
    test = first.load_data().test
    noisy = {name: is_noisy(run.config.model) for name, run in runs.items()}
    found: dict[tuple[str, str], list[Tensor]] = {}
    said: dict[tuple[str, str], list[Tensor]] = {}
    searched, enough = 0, 0
    while searched < min(SEARCHED, len(test)) and enough < SHOWN:
        rows = slice(searched, min(searched + BATCH, SEARCHED, len(test)))
        images, labels = test[rows]
        for name, model in models.items():
            made = {CLEAN: images}
            for attack in attacks:
                eot = EOT if noisy[name] else 1
                one = attack_at(attack, epsilon, eot=eot, seed=seed)
                made[attack] = one(model, images, labels, progress=False)
            for kind, pictures in made.items():
                draws = DRAWS if noisy[name] else 1
                answers = predictions(model, pictures, draws=draws)
                found.setdefault((kind, name), []).append(pictures.cpu())
                said.setdefault((kind, name), []).append(answers.cpu())
        searched = rows.stop
        whole = {key: torch.cat(parts) for key, parts in said.items()}
        enough = int(_fooled(whole, test.labels[:searched]).sum())
    fooled = _fooled(whole, test.labels[:searched]).tolist()
    order = sorted(range(searched), key=lambda row: not fooled[row])[:SHOWN]
    return Grid(
        {key: torch.cat(parts)[order] for key, parts in found.items()},
        {key: answers[order] for key, answers in whole.items()},
        test.labels[order],
        order,
        test.classes,
        searched,
        seed,
    )


def _fooled(answers: Mapping[tuple[str, str], Tensor], labels: Tensor) -> Tensor:
    right = [(found == labels) == (kind == CLEAN) for (kind, _), found in answers.items()]
    return torch.stack(right).all(dim=0)
