"""Which epoch's network a run keeps as its best, and why.

If the learning rate ends at zero, the last weights are kept, averaged if the recipe averages. The
highest of several noisy validations would mostly be the luckiest: accuracy on 1,000 images has a
standard error of 1.5 points, more than the last epochs of such a schedule differ.

Otherwise (rates that fall in steps, a training that collapsed and went back) validation selects, on
all of its images. Each epoch is compared with the best one, image by image. Of the epochs that do
not differ significantly from it, the latest is kept. The best of many looks better than it is, so
the level of that test is 5 % divided by the number of epochs that were validated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from enresnet.evaluation import compare_scores
from enresnet.evaluation.statistics import FLIPS
from enresnet.training.events import Epoch
from enresnet.training.state import Kept, SelectionState

LEVEL = 0.05
SMALLEST = 2 / FLIPS  # the test counts random flips of signs: its p-value is never below 1 / FLIPS


class Selection:
    """Decides after every epoch whether its network is kept."""

    def __init__(self, *, epochs: int, averaged: bool) -> None:
        self._epochs = epochs
        self._network = "averaged weights" if averaged else "weights"
        self.kept: Kept | None = None
        self._best: tuple[int, Tensor] | None = None  # the epoch and the score of each image
        self._validated = 0

    def consider(self, epoch: int, scores: Tensor | None, *, selecting: bool) -> bool:
        """Return whether the network of this epoch is kept, instead of any before it.

        ``scores`` are those of all validation images, None if the epoch was not validated.
        ``selecting`` says that validation decides.
        """
        if not selecting:
            if epoch == self._epochs:
                self.kept = Kept(epoch, f"last {self._network}: the rate ends at zero")
                return True
            return False
        if scores is None:
            return False
        found = scores.double().cpu()
        self._validated += 1
        if self._best is None or found.mean() > self._best[1].mean():
            self._best = (epoch, found)
            self.kept = Kept(epoch, f"best of the validated epochs, {_percent(found)} %")
            return True
        first, highest = self._best
        level = max(LEVEL / self._validated, SMALLEST)
        if len(found) > 1 and compare_scores(found, highest).p_value < level:
            return False
        self.kept = Kept(
            epoch,
            f"{_percent(found)} %, which cannot be told apart from the {_percent(highest)} % of "
            f"epoch {first}, and later",
        )
        return True

    def marked(self, epochs: Sequence[Epoch]) -> list[Epoch]:
        """Return the epochs; the kept one carries the reason."""
        kept = self.kept
        return [
            replace(e, kept=kept.why) if kept is not None and e.epoch == kept.epoch else e
            for e in epochs
        ]

    @property
    def state(self) -> SelectionState:
        """What later epochs are compared with, and what is kept so far."""
        best, scores = (None, None) if self._best is None else self._best
        return SelectionState(self.kept, best, scores, self._validated)

    def restore(self, state: SelectionState) -> None:
        """Continue from where :attr:`state` was taken."""
        self.kept, self._validated = state.kept, state.validated
        self._best = None
        if state.best is not None and state.scores is not None:
            self._best = (state.best, state.scores)


def _percent(scores: Tensor) -> str:
    return f"{100 * float(scores.mean()):.1f}"
