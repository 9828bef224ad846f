"""Evaluations in pieces: one attack on one batch, scored by one model or several.

With a seed, every piece draws from streams of its own, named after seed, attack and place: pieces
can be done in any order, by any process, before or after a crash, with the same result. That holds
for our own noise and for what draws from torch's global generators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from enresnet.attacks import Attack
from enresnet.attacks.precision import fast_bfloat16
from enresnet.common.progress import counted, progress_bar
from enresnet.common.randomness import named_seed
from enresnet.data import Images
from enresnet.evaluation.accuracy import NATURAL
from enresnet.evaluation.journal import Journal
from enresnet.evaluation.model_identity import Identity
from enresnet.evaluation.piece import Gathered, Result
from enresnet.evaluation.scoring import Answer, score_draws
from enresnet.evaluation.seeding import own_streams
from enresnet.models.interface import Model


@dataclass(frozen=True)
class Shard:
    """Which of several processes this is, how they wait for each other, and how they agree.

    Attributes:
        rank: The number of this process, from 0 up; 0 by default.
        count: How many processes share the work; 1 by default.
        wait: Returns once all processes have called it; by default at once.
        counted: Returns in how many processes each of several answers is yes; by default those of
            this one.

    Example::

        from enresnet.evaluation import Shard

        shard = Shard(rank=0, count=1)  # two processes: wait=torch.distributed.barrier
        enresnet.evaluate(model, (images, labels), draws=2, seed=0, journal="kept", shard=shard)
    """

    rank: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None
    counted: Callable[[list[bool]], list[int]] = lambda answers: [int(yes) for yes in answers]


@dataclass(frozen=True)
class WorkItem:
    """One attack of one source on one batch.

    Attributes:
        source: The name of the model that is attacked; "" for clean images.
        attack: The attack's name.
        start: The number of the first image.
        stop: The number after that of the last image.

    Example::

        from enresnet.evaluation import WorkItem

        item = WorkItem("model", "fgsm", start=0, stop=128)
        print(item.key, item.rows)  # model/fgsm/0-128 slice(0, 128, None)
    """

    source: str
    attack: str
    start: int
    stop: int

    @property
    def key(self) -> str:
        """Its name in the journal."""
        return f"{self.source}/{self.attack}/{self.start}-{self.stop}"

    @property
    def rows(self) -> slice:
        """Its images."""
        return slice(self.start, self.stop)


class ImageSink(Protocol):
    """A place for attacked images: any object with these two methods.

    Example::

        class Kept(dict):
            def write(self, item, images, labels):
                self[item.key] = images

            def has(self, item):
                return item.key in self

        kept = Kept()
        enresnet.evaluate(model, (images, labels), "fgsm", draws=2, image_sink=kept)
        print(kept["model/fgsm/0-2"].shape)
    """

    def write(self, item: WorkItem, images: Tensor, labels: Tensor) -> None:
        """Keep the attacked images of an item.

        Args:
            item: Which attack on which of the images.
            images: The attacked images.
            labels: Their classes.

        Shape:
            - images: N x C x H x W in [0, 1]
            - labels: N
        """

    def has(self, item: WorkItem) -> bool:
        """Return whether the images of an item are kept; where not, it is computed again.

        Args:
            item: Which attack on which of the images.
        """


@dataclass(frozen=True)
class Runner:
    """Attacks of one or more sources, scored by one or more targets."""

    sources: Mapping[str, Model]
    targets: Mapping[str, Model]
    data: Images
    attacks: Mapping[str, Attack]
    draws: Mapping[str, int]  # by target
    batch_size: int
    identity: Callable[[Model], Identity]
    seed: int | None = None
    clean: bool = True  # whether clean images are scored, too
    image_sink: ImageSink | None = None
    eot: Mapping[str, int] = field(default_factory=dict)  # by source, where attacks leave it open
    # What a target answers about some of the clean images, where it was asked before.
    answer: Callable[[Model, Images, slice], Answer | None] = lambda *_: None

    def items(self) -> list[WorkItem]:
        """Return all pieces, in the order in which one process does them."""
        places = [
            (start, min(start + self.batch_size, len(self.data)))
            for start in range(0, len(self.data), self.batch_size)
        ]
        return [WorkItem(*name, *place) for name in self._names() for place in places]

    def _names(self) -> list[tuple[str, str]]:
        """Return the source and the attack of all results; clean images have no source."""
        names = [("", NATURAL)] if self.clean else []
        return names + [(source, attack) for source in self.sources for attack in self.attacks]

    def _empty(self) -> dict[tuple[str, str], Gathered]:
        return {name: Gathered(len(self.data), self.draws) for name in self._names()}

    def header(self) -> dict[str, Any]:
        """Return what decides the results, as plain JSON."""
        sources, targets = (
            {name: self.identity(model).digest for name, model in models.items()}
            for models in (self.sources, self.targets)
        )
        return {
            "oracles": sources,  # as journals have stored it; the paper's word
            "targets": targets,
            "images": len(self.data),
            "data": self.data.fingerprint(),
            "attacks": {name: attack.settings() for name, attack in self.attacks.items()},
            **({"eot": dict(self.eot)} if self.eot else {}),
            **({} if self.clean else {"natural": False}),
            "draws": dict(self.draws),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "torch": torch.__version__,
            "bfloat16": fast_bfloat16(torch.device("cpu")),  # what precision "auto" depends on
        }

    def do(
        self,
        *,
        title: str = "evaluating",
        journal: Journal | None = None,
        shard: Shard | None = None,
        progress: bool | None = None,
    ) -> dict[tuple[str, str], Result]:
        """Do what is not in the journal yet, and return all results by source and attack."""
        shard = shard or Shard()
        if shard.count > 1 and journal is None:
            raise ValueError("journal must be given where several processes share the work")
        if journal is not None and self.seed is None:
            raise ValueError("seed must be given with a journal, or no piece could be repeated")
        if journal is not None and shard.rank == 0:
            journal.start()
        shard.wait()
        found = self._empty()
        done = [] if journal is None else self._read(journal, found)
        if done:
            self._check_identity()
        shard.wait()  # no process writes before all have read
        there = set(done)
        left = [item for item in self.items() if item not in there]
        mine = left[shard.rank :: shard.count]
        total, before = (
            sum(self._cost(item) for item in items) for items in ([*done, *mine], done)
        )
        writer = nullcontext(None) if journal is None else journal.writer(shard.rank)
        show = False if shard.rank else progress
        with (
            writer as append,
            progress_bar(title, total, done=before, lines=True, show=show) as advance,
            own_streams(self._models(), self.seed) as reseed,
        ):
            for item in mine:
                with counted(advance, self._cost(item), item.attack) as passed:
                    result = self._compute(item, reseed, passed)
                found[item.source, item.attack].put(item.rows, result)
                if append is not None:
                    append(item.key, result.to_json())
        shard.wait()
        if shard.count > 1 and journal is not None:
            found = self._empty()
            self._read(journal, found)
            shard.wait()  # the first to go on may remove it
        return {name: gathered.result() for name, gathered in found.items()}

    def _models(self) -> list[Model]:
        return [*self.sources.values(), *self.targets.values()]

    def _read(self, journal: Journal, found: Mapping[tuple[str, str], Gathered]) -> list[WorkItem]:
        """Put what the journal holds into ``found``, and return which pieces that was."""
        entries, done = journal.entries(), []
        for item in self.items():
            if item.key in entries and self._is_kept(item):
                result = Result.from_json(entries[item.key])
                found[item.source, item.attack].put(item.rows, result)
                done.append(item)
        return done

    def _is_kept(self, item: WorkItem) -> bool:
        return self.image_sink is None or item.attack == NATURAL or self.image_sink.has(item)

    def _check_identity(self) -> None:
        """Raise where results might be those of another model, and nothing could tell."""
        for name, model in (*self.sources.items(), *self.targets.items()):
            if not self.identity(model).certain:
                raise ValueError(
                    f"{name} answers at random, and not from torch's generators, so nothing tells "
                    "whether the results in the journal are its own: remove the journal to start "
                    "anew, or let the model draw its noise from torch"
                )

    def _cost(self, item: WorkItem) -> int:
        attack = self._attack(item)
        passes = 0 if attack is None else attack.passes
        return (item.stop - item.start) * (passes + sum(self.draws.values()))

    def _attack(self, item: WorkItem) -> Attack | None:
        found = self.attacks.get(item.attack)
        return None if found is None else self.attack_on(item.source, found)

    def attack_on(self, source: str, attack: Attack) -> Attack:
        """Return an attack with the number of draws that a source needs, where it is left open."""
        return attack if attack.eot is not None else attack.averaging(self.eot[source])

    def _compute(
        self, item: WorkItem, reseed: Callable[[str], None], passed: Callable[[int], None]
    ) -> Result:
        images, labels = self.data.batch(slice(item.start, item.stop))
        attack, claimed, spent, norms = self._attack(item), None, (0, 0), None
        stream = item.key
        if attack is not None:  # whatever it is called here, the same attack draws the same
            stream = replace(item, attack=attack.name).key
        reseed(stream)
        start = time.monotonic()
        if attack is not None:
            seed = None if self.seed is None else named_seed(self.seed, f"attack {stream}")
            made = attack.run(self.sources[item.source], images, labels, seed=seed, advance=passed)
            norms = attack.norms(made.images, images) if attack.minimal else None
            images, claimed, spent = made.images, made.claimed, (made.gradients, made.evaluations)
            if self.image_sink is not None:
                self.image_sink.write(item, images, labels)
        scored, before = {}, 0.0
        for name, model in self.targets.items():
            known = self.answer(model, self.data, item.rows) if attack is None else None
            if known is not None:
                scored[name] = known.scored(labels)
                before += known.seconds
                continue
            reseed(f"{stream}/{name}")
            scored[name] = score_draws(model, images, labels, draws=self.draws[name])
        return Result(scored, before + time.monotonic() - start, claimed, *spent, norms)
