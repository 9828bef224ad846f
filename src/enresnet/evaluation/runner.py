"""Evaluations in pieces: one attack on one batch, scored by one model or several.

With a seed, every piece draws from streams of its own, named after seed, attack and place: pieces
can be done in any order, by any process, before or after a crash, with the same result. That holds
for our own noise and for what draws from torch's global generators.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from enresnet.attacks import Attack
from enresnet.attacks.precision import fast_bfloat16
from enresnet.common.progress import counted, progress_bar
from enresnet.common.randomness import named_seed
from enresnet.data import Images
from enresnet.evaluation.journal import Journal, packed, unpacked
from enresnet.evaluation.model_identity import Identity, identify, reachable
from enresnet.evaluation.result import NATURAL
from enresnet.evaluation.scoring import Scored, score_draws
from enresnet.models.interface import Model
from enresnet.models.noise import NoiseStream, streams_of


@dataclass(frozen=True)
class Shard:
    """Which of several processes this is, and how they wait for each other."""

    rank: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class WorkItem:
    """One attack of one oracle on one batch."""

    oracle: str
    attack: str
    start: int
    stop: int

    @property
    def key(self) -> str:
        """Its name in the journal."""
        return f"{self.oracle}/{self.attack}/{self.start}-{self.stop}"


@dataclass(frozen=True)
class Result:
    """What a piece of work found."""

    scored: dict[str, Scored]  # by target
    seconds: float
    claimed: Tensor | None = None
    gradients: int = 0
    evaluations: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "seconds": self.seconds,
            "gradients": self.gradients,
            "evaluations": self.evaluations,
            "claimed": None if self.claimed is None else packed(self.claimed),
            "scored": {
                name: {
                    "right": packed(scored.right),
                    "averaged": packed(scored.averaged),
                    "without": packed(scored.without),
                    "confidence": scored.confidence.tolist(),
                    "seconds": scored.seconds,
                    "bad": scored.bad,
                }
                for name, scored in self.scored.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """Return what :meth:`to_json` stored."""
        return cls(
            scored={
                name: Scored(
                    unpacked(scored["right"]),
                    unpacked(scored["averaged"]),
                    unpacked(scored["without"]),
                    torch.tensor(scored["confidence"]),
                    scored["seconds"],
                    scored["bad"],
                )
                for name, scored in values["scored"].items()
            },
            seconds=values["seconds"],
            claimed=None if values["claimed"] is None else unpacked(values["claimed"]),
            gradients=values["gradients"],
            evaluations=values["evaluations"],
        )


class Gathered:
    """The results of one attack of one oracle on all images, filled in as they come.

    The tensors are made whole before the work starts. Kept piece by piece, a few bytes of every
    batch would stand between the large tensors of the next ones: the C library cannot close such
    gaps, and the process would grow with the number of batches.
    """

    def __init__(self, images: int, draws: Mapping[str, int]) -> None:
        self._whole = {}
        for name, number in draws.items():
            right, averaged, without = torch.zeros(3, images, number, dtype=torch.bool)
            self._whole[name] = Scored(right, averaged, without, torch.zeros(images))
        self._claims = torch.full((images,), -1, dtype=torch.int8)  # below 0: nothing was claimed
        self._seconds, self._bad = dict.fromkeys(draws, 0.0), dict.fromkeys(draws, 0)
        self._spent = [0.0, 0.0, 0.0]  # seconds, gradients, evaluations

    def put(self, item: WorkItem, result: Result) -> None:
        """Take the result of a piece."""
        rows = slice(item.start, item.stop)
        for name, part in result.scored.items():
            whole = self._whole[name]
            whole.right[rows], whole.averaged[rows] = part.right, part.averaged
            whole.without[rows], whole.confidence[rows] = part.without, part.confidence
            self._seconds[name] += part.seconds
            self._bad[name] += part.bad
        if result.claimed is not None:
            self._claims[rows] = result.claimed.to(torch.int8)
        for place, amount in enumerate((result.seconds, result.gradients, result.evaluations)):
            self._spent[place] += amount

    def result(self) -> Result:
        """Return all pieces as one."""
        seconds, gradients, evaluations = self._spent
        known = self._claims >= 0
        return Result(
            scored={
                name: replace(whole, seconds=self._seconds[name], bad=self._bad[name])
                for name, whole in self._whole.items()
            },
            seconds=seconds,
            claimed=self._claims[known].bool() if known.any() else None,
            gradients=int(gradients),
            evaluations=int(evaluations),
        )


class ImageSink(Protocol):
    """A place for attacked images."""

    def write(self, item: WorkItem, images: Tensor, labels: Tensor) -> None:
        """Keep the attacked images of a item."""

    def has(self, item: WorkItem) -> bool:
        """Return whether they are there; what is not is computed again."""


@dataclass(frozen=True)
class Runner:
    """Attacks of one or more oracles, scored by one or more targets."""

    oracles: Mapping[str, Model]
    targets: Mapping[str, Model]
    data: Images
    attacks: Mapping[str, Attack]
    draws: Mapping[str, int]  # by target
    batch_size: int
    seed: int | None = None
    natural: bool = True
    keep: ImageSink | None = None
    eot: Mapping[str, int] = field(default_factory=dict)  # by oracle, where attacks leave it open

    def items(self) -> list[WorkItem]:
        """Return all pieces, in the order in which one process does them."""
        places = [
            (start, min(start + self.batch_size, len(self.data)))
            for start in range(0, len(self.data), self.batch_size)
        ]
        return [WorkItem(*name, *place) for name in self._names() for place in places]

    def _names(self) -> list[tuple[str, str]]:
        """Return the oracle and the attack of all results; clean images have no oracle."""
        names = [("", NATURAL)] if self.natural else []
        return names + [(oracle, attack) for oracle in self.oracles for attack in self.attacks]

    def _empty(self) -> dict[tuple[str, str], Gathered]:
        return {name: Gathered(len(self.data), self.draws) for name in self._names()}

    def header(self) -> dict[str, Any]:
        """Return what decides the results, as plain JSON."""
        oracles, targets = (
            {name: self._identity(model).digest for name, model in models.items()}
            for models in (self.oracles, self.targets)
        )
        return {
            "oracles": oracles,
            "targets": targets,
            "images": len(self.data),
            "data": self.data.fingerprint(),
            "attacks": {name: attack.settings() for name, attack in self.attacks.items()},
            **({"eot": dict(self.eot)} if self.eot else {}),
            **({} if self.natural else {"natural": False}),
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
        share: Shard | None = None,
        progress: bool | None = None,
    ) -> dict[tuple[str, str], Result]:
        """Do what is not in the journal yet, and return all results by oracle and attack."""
        share = share or Shard()
        if share.count > 1 and journal is None:
            raise ValueError("journal must be given where several processes share the work")
        if journal is not None and self.seed is None:
            raise ValueError("seed must be given with a journal, or no piece could be repeated")
        if journal is not None and share.rank == 0:
            journal.start()
        share.wait()
        found = self._empty()
        done = [] if journal is None else self._read(journal, found)
        if done:
            self._check_identity()
        share.wait()  # no process writes before all have read
        there = set(done)
        left = [item for item in self.items() if item not in there]
        mine = left[share.rank :: share.count]
        total, before = (
            sum(self._cost(item) for item in items) for items in ([*done, *mine], done)
        )
        writer = nullcontext(None) if journal is None else journal.writer(share.rank)
        show = False if share.rank else progress
        with (
            writer as append,
            progress_bar(title, total, done=before, lines=True, show=show) as advance,
            own_streams(self._models(), self.seed) as reseed,
        ):
            for item in mine:
                with counted(advance, self._cost(item), item.attack) as passed:
                    result = self._compute(item, reseed, passed)
                found[item.oracle, item.attack].put(item, result)
                if append is not None:
                    append(item.key, result.to_json())
        share.wait()
        if share.count > 1 and journal is not None:
            found = self._empty()
            self._read(journal, found)
            share.wait()  # the first to go on may remove it
        return {name: gathered.result() for name, gathered in found.items()}

    def _models(self) -> list[Model]:
        return [*self.oracles.values(), *self.targets.values()]

    def _read(self, journal: Journal, found: Mapping[tuple[str, str], Gathered]) -> list[WorkItem]:
        """Put what the journal holds into ``found``, and return which pieces that was."""
        entries, done = journal.entries(), []
        for item in self.items():
            if item.key in entries and self._is_kept(item):
                found[item.oracle, item.attack].put(item, Result.from_json(entries[item.key]))
                done.append(item)
        return done

    def _is_kept(self, item: WorkItem) -> bool:
        return self.keep is None or item.attack == NATURAL or self.keep.has(item)

    def _identity(self, model: Model) -> Identity:
        return identify(model, self.data.pixels.shape[1:])

    def _check_identity(self) -> None:
        """Raise where results might be those of another model, and nothing could tell."""
        for name, model in {**self.oracles, **self.targets}.items():
            if self._identity(model).blind:
                raise ValueError(
                    f"{name} answers at random and holds what cannot be looked into, so nothing "
                    "tells whether the results in the journal are its own: remove the journal to "
                    "start anew, or make the model an nn.Module with its weights inside"
                )

    def _cost(self, item: WorkItem) -> int:
        attack = self._attack(item)
        passes = 0 if attack is None else attack.passes
        return (item.stop - item.start) * (passes + sum(self.draws.values()))

    def _attack(self, item: WorkItem) -> Attack | None:
        found = self.attacks.get(item.attack)
        return None if found is None else self.attack_on(item.oracle, found)

    def attack_on(self, oracle: str, attack: Attack) -> Attack:
        """Return an attack with the number of draws that an oracle needs, where it is left open."""
        return attack if attack.eot is not None else attack.averaging(self.eot[oracle])

    def _compute(
        self, item: WorkItem, reseed: Callable[[str], None], passed: Callable[[int], None]
    ) -> Result:
        images, labels = self.data.batch(slice(item.start, item.stop))
        attack, claimed, spent = self._attack(item), None, (0, 0)
        stream = item.key
        if attack is not None:  # whatever it is called here, the same attack draws the same
            stream = replace(item, attack=attack.name).key
        reseed(stream)
        start = time.monotonic()
        if attack is not None:
            seed = None if self.seed is None else named_seed(self.seed, f"attack {stream}")
            made = attack.run(self.oracles[item.oracle], images, labels, seed=seed, advance=passed)
            images, claimed, spent = made.images, made.claimed, (made.gradients, made.evaluations)
            if self.keep is not None:
                self.keep.write(item, images, labels)
        scored = {}
        for name, model in self.targets.items():
            reseed(f"{stream}/{name}")
            scored[name] = score_draws(model, images, labels, draws=self.draws[name])
        return Result(scored, time.monotonic() - start, claimed, *spent)


@contextmanager
def own_streams(models: Iterable[Model], seed: int | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that starts the models' noise anew, under a name.

    That is our own noise, also inside other people's models and functions, and torch's global
    generators. All are put back where they were after; without a seed they are left alone. Those
    generators are the process's: of its threads, one at a time has them.
    """
    if seed is None:
        yield lambda _: None
        return
    with _ONE_AT_A_TIME:
        yield from _reseeded(models, seed)


_ONE_AT_A_TIME = threading.RLock()


def _reseeded(models: Iterable[Model], seed: int) -> Iterator[Callable[[str], None]]:
    streams: dict[NoiseStream, None] = {}
    for model in models:
        for thing in reachable(model):
            if isinstance(thing, NoiseStream):
                streams[thing] = None
            elif isinstance(thing, nn.Module):
                streams |= dict.fromkeys(streams_of(thing))
    states = {stream: stream.get_state() for stream in streams}

    def reseed(name: str) -> None:
        for number, stream in enumerate(streams):
            own = f"noise {name}" + (f" {number}" if number else "")  # no two may be alike
            stream.manual_seed(named_seed(seed, own))
        torch.manual_seed(named_seed(seed, f"torch {name}"))

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(list(devices)):
        try:
            yield reseed
        finally:
            for stream, state in states.items():
                stream.set_state(state)
