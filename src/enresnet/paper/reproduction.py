"""The paper reproduced: what is missing is trained and measured, then tables and claims are read.

Killed, the same call goes on: a finished run is never trained again, one that was begun is resumed,
and so are evaluations. Several processes may share the work: what one does, another waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enresnet.common.files import try_lock
from enresnet.paper import outputs
from enresnet.paper.evidence import Evidence
from enresnet.paper.figures import draw
from enresnet.paper.measurement import Measurement
from enresnet.paper.plan import FIGURES, Job, claims_in, expand, plan, shard_of, tables_in
from enresnet.paper.published import Network
from enresnet.paper.run_index import RunIndex
from enresnet.paper.setup import Setup
from enresnet.report.contents import Contents
from enresnet.training import Callback, Run, integrate, train

LOCKS = ".locks"
BETWEEN = 1.0  # seconds between two looks at what another process does


@dataclass(frozen=True)
class Reproduction:
    """Some tables, figures and claims of the paper, and the runs behind them.

    Attributes:
        targets: What is reproduced: table1 to table10, trades, mask, simple, fig4 to fig6, claims,
            or all.
        setup: How networks are trained and measured; by default the paper's recipe.
        out: The folder of runs and results; ``reproduction`` by default.
        runs: Folders with runs of before; one counts if model, data, recipe and seed are the same.
        data: Only these data sets of the paper; by default both.
        only: Only these rows; by default all.
        shard: Which part of the jobs, as ``"2/4"``; by default all.
        collect: True trains and measures nothing: what is there is read, of all seeds that there
            are; False by default.

    Example::

        from enresnet.paper import Reproduction, Setup

        setup = Setup(recipe="smoke", seeds=(0,))
        reproduction = Reproduction(["table1"], setup, out="reproduction", only=["resnet20"])
        reproduction.work()
        print(reproduction.contents().tables[0].rows[0].cells[0].measured)
    """

    targets: Sequence[str]
    setup: Setup = field(default_factory=Setup)
    out: Path = Path("reproduction")
    runs: Sequence[Path] = ()
    data: Sequence[str] = ()
    only: Sequence[str] = ()
    shard: str | None = None
    collect: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", Path(self.out))
        object.__setattr__(self, "targets", tuple(expand(self.targets)))
        jobs = plan(self.targets, self.setup, data=self.data, only=self.only)
        jobs = jobs if self.shard is None else shard_of(jobs, self.shard)
        object.__setattr__(self, "_jobs", jobs)
        runs = [Path(run) for run in self.runs]
        index = RunIndex(self.setup, self.out, runs, any_seed=self.collect)
        object.__setattr__(self, "_index", index)

    @property
    def jobs(self) -> list[Job]:
        """The networks and seeds that are needed, those that need no other first."""
        found: list[Job] = self._jobs  # type: ignore[attr-defined]
        return found

    @property
    def index(self) -> RunIndex:
        """Where the runs are."""
        found: RunIndex = self._index  # type: ignore[attr-defined]
        return found

    @property
    def results(self) -> Path:
        """The folder of tables and figures."""
        return self.out / self.setup.name

    def work(
        self,
        *,
        callbacks: Callable[[], Sequence[Callback]] = tuple,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Train and measure what is missing.

        Args:
            callbacks: Called for every training; returns its callbacks.
            say: Is given a line on each job that has something to do.
        """
        if self.collect:
            return
        for number, job in enumerate(self.jobs, start=1):
            self._do(job, callbacks, lambda text, n=number: say(f"[{n}/{len(self.jobs)}] {text}"))

    def _do(
        self,
        job: Job,
        callbacks: Callable[[], Sequence[Callback]],
        say: Callable[[str], None],
    ) -> None:
        run = self._obtain(job.network, job.seed, callbacks, say)
        source = None
        if job.source is not None:
            source = self._obtain(job.source, job.seed, callbacks, say)
        found = Measurement(self.setup, run, job.source, source)
        if not found.missing(job.metrics):
            return
        with self._alone(f"measure {run.folder}", say):
            if missing := found.missing(job.metrics):
                say(f"measure {job}, seed {job.seed}: {', '.join(missing)}")
                found.measure(missing)

    def _obtain(
        self,
        network: Network,
        seed: int,
        callbacks: Callable[[], Sequence[Callback]],
        say: Callable[[str], None],
    ) -> Run:
        """Return the finished run of a network, trained now if it is not there."""
        if (run := self.index.find(network, seed)) is not None:
            return run
        seeds = self.setup.part_seeds(network, seed)
        parts = [
            self._obtain(part, own, callbacks, say)
            for part, own in zip(network.parts, seeds, strict=True)
        ]
        folder = self.index.folder(network, seed)
        with self._alone(str(folder), say):
            if (run := self.index.find(network, seed)) is not None:  # by another process
                return run
            if parts:
                say(f"integrate {folder}")
                return integrate([part.folder for part in parts], folder)
            say(f"train {folder}")
            config = self.setup.config(network, seed)
            return train(config, folder, callbacks=callbacks(), curves=not self.setup.smoke)

    @contextmanager
    def _alone(self, what: str, say: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other process does the same."""
        path = self.out / LOCKS / what.replace("/", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            told = False
            while not try_lock(file):
                if not told:
                    say(f"another process is at {what}: waiting for it")
                told = True
                time.sleep(BETWEEN)
            yield

    def contents(self) -> Contents:
        """Return the tables, claims and figures, with what was measured; nothing is trained."""
        evidence = Evidence(self.index)
        drawn = []
        if not self.collect and not self.only and self.shard is None:
            keys = [key for key in FIGURES if key in self.targets]
            drawn = [draw(key, self.index, self.results) for key in keys]
        return Contents(
            tuple(evidence.table(table) for table in tables_in(self.targets, self.data)),
            tuple(evidence.verdict(claim) for claim in claims_in(self.targets, self.data)),
            tuple(drawing for drawing in drawn if drawing is not None),
        )

    def write(self, contents: Contents) -> list[Path]:
        """Write JSON, Markdown and LaTeX of all that was asked for; return the files.

        Args:
            contents: What :meth:`contents` returned.
        """
        return outputs.write(contents, self.results, self.setup.caption)
