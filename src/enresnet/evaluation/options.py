"""How an evaluation is made: the one set of options that all evaluations share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from enresnet.common import checks
from enresnet.evaluation.environment import hardware, versions
from enresnet.evaluation.journal import Journal, Journals
from enresnet.evaluation.runner import ImageSink, Shard


@dataclass(frozen=True)
class EvaluationOptions:
    """How an evaluation is made, whatever is evaluated.

    Attributes:
        draws: Predictions that every image is scored over; 10 by default, 1 for a deterministic
            model.
        batch_size: Images in one call of a model; 128 by default.
        limit: Use only the first so many images; None, the default, for all.
        seed: Fixes the noise of our networks, torch's global generators and the attacks.
        journal: A folder that keeps results as they come; the same call goes on from there. Several
            evaluations share one through :class:`Journals`. Needs a seed.
        shard: Which of several processes this is, where they share the work through a journal.
        image_sink: Is given the attacked images of every batch.
        warn: Whether to warn of models that know nothing, expect other images or return
            probabilities; True by default.
        progress: Whether to show progress; None shows it on a terminal and in a notebook.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A number is below 1, a journal has no seed, or several processes have no
            journal.

    Example::

        from enresnet.evaluation import EvaluationOptions, Session

        options = EvaluationOptions(draws=2, seed=0, progress=False)
        print(Session.open(model, (images, labels), options).measure("fgsm"))
    """

    draws: int = 10
    batch_size: int = 128
    limit: int | None = None
    seed: int | None = None
    journal: str | os.PathLike[str] | Journals | None = None
    shard: Shard | None = None
    image_sink: ImageSink | None = None
    warn: bool = True
    progress: bool | None = None

    def __post_init__(self) -> None:
        checks.integer("draws", self.draws, low=1)
        checks.integer("batch_size", self.batch_size, low=1)
        if self.limit is not None:
            checks.integer("limit", self.limit, low=1)
        if self.shard is not None and self.shard.count > 1 and self.journal is None:
            raise ValueError("journal must be given where several processes share the work")
        if self.journal is not None and self.seed is None:
            raise ValueError("seed must be given with a journal, or no piece could be repeated")

    def conditions(self) -> dict[str, Any]:
        """Return what results depend on besides models, images and attacks, as plain JSON."""
        return {
            "seed": self.seed,
            "draws": self.draws,
            "limit": self.limit,
            "batch_size": self.batch_size,
            "versions": versions(),
            "hardware": hardware(),
        }

    def open_journal(self, header: dict[str, Any]) -> Journal | None:
        """Return the journal of the evaluation that a header describes, if one is kept."""
        if self.journal is None or isinstance(self.journal, Journals):
            return None if self.journal is None else self.journal.open(header)
        return Journal(self.journal, header)

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Let Ctrl-C say how to go on, where there are journals."""
        if isinstance(self.journal, Journals):
            with self.journal.resumable():
                yield
        else:
            yield
