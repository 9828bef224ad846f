"""The paper reproduced: what is missing is trained and measured, then tables and claims are read.

Killed, the same call goes on: a finished run is never trained again, one that was begun is resumed,
and so are evaluations. Several processes may share the work: what one does, another waits for.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from enresnet import report
from enresnet.common.files import try_lock
from enresnet.paper import outputs
from enresnet.paper.evidence import Evidence
from enresnet.paper.figures import draw, kept_drawing
from enresnet.paper.measurement import Measurement
from enresnet.paper.plan import (
    ALL,
    CLAIMS,
    FIGURES,
    Job,
    claims_in,
    expand,
    make_plan,
    shard_of,
    tables_in,
    targets,
)
from enresnet.paper.published import Network
from enresnet.paper.run_index import RunIndex
from enresnet.paper.setup import Setup
from enresnet.report.contents import Contents, Drawing
from enresnet.training import Callback, Run, integrate, train

LOCKS = ".locks"
BETWEEN = 1.0  # seconds between two looks at what another process does


class Reproduction:
    """Some tables, figures and claims of the paper, and the runs behind them.

    Args:
        targets: What is reproduced: table1 to table10, trades, mask, simple, fig4 to fig6, claims,
            or all.
        setup: How networks are trained and measured; by default with the paper's recipe.
        out: The folder of runs and results; ``reproduction`` by default.
        runs: Folders with runs of before; one counts if model, data, recipe and seed are the same.
        data: Only these data sets of the paper; by default both.
        only: Only these rows; by default all.
        shard: Which part of the jobs, as ``"2/4"``; by default all.
        collect: True trains and measures nothing: what is there is read; False by default.

    Attributes:
        setup: How networks are trained and measured.
        index: Where the runs are.
        jobs: The networks and seeds that are needed, those that need no other first.

    Raises:
        FileNotFoundError: A folder of ``runs`` is not there.
        ValueError: A target, a row or a data set is unknown, or the shard is not one.

    Example::

        from enresnet.paper import Reproduction, Setup

        setup = Setup(recipe="smoke", seeds=(0,))
        reproduction = Reproduction(["table1"], setup, only=["resnet20"])
        reproduction.work()
        print(reproduction.contents().tables[0].rows[0].cells[0].measured)
    """

    def __init__(
        self,
        targets: Sequence[str],
        setup: Setup | None = None,
        out: str | os.PathLike[str] = "reproduction",
        *,
        runs: Sequence[str | os.PathLike[str]] = (),
        data: Sequence[str] = (),
        only: Sequence[str] = (),
        shard: str | None = None,
        collect: bool = False,
    ) -> None:
        self.setup = setup or Setup()
        self._runs = list(map(Path, runs))
        self.index = RunIndex(self.setup, Path(out), self._runs)
        jobs = make_plan(targets, self.setup, data=data, only=only)
        self.jobs = jobs if shard is None else shard_of(jobs, shard)
        self._out, self._targets, self._data = Path(out), expand(targets), data
        self._collect, self._part = collect, bool(only) or shard is not None

    @property
    def results(self) -> Path:
        """The folder of tables and figures."""
        return self._out / self.setup.name

    def work(
        self,
        *,
        callbacks: Callable[[], Sequence[Callback]] = tuple,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Train and measure what is missing, and draw figures, unless a part was asked for.

        Args:
            callbacks: Called for every training; returns its callbacks.
            say: Is given a line on each job that has something to do.
        """
        if self._collect:
            return
        for sentence in self.index.skipped:  # before its network is trained anew
            say(sentence)
        for number, job in enumerate(self.jobs, start=1):
            place = f"[{number}/{len(self.jobs)}]"
            self._do(job, callbacks, partial(_say_at, say, place))
        if not self._part:
            for key in FIGURES:
                if key in self._targets:
                    draw(key, self.index, self.results)

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
        with self._alone(f"measuring {run.folder.resolve()}", say):
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
        with self._alone(f"training {folder.resolve()}", say):
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
        path = self._out / LOCKS / hashlib.sha256(what.encode()).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            told = False
            while not try_lock(file):
                if not told:
                    say(f"another process is {what}: waiting for it")
                told = True
                time.sleep(BETWEEN)
            yield

    def contents(self) -> Contents:
        """Return the tables, claims and figures that were asked for, with what was measured.

        They are of all seeds that there are, unless the setup names some; nothing is trained.
        """
        evidence = self._evidence(any_seed=not self.setup.seeds_named)
        drawings = self._drawings(self._targets)
        found = evidence.contents(
            tables_in(self._targets, self._data), claims_in(self._targets, self._data), drawings
        )
        there = {drawing.key for drawing in drawings}
        missing = [key for key in FIGURES if key in self._targets and key not in there]
        if not (self._collect and missing):
            return found
        words = (
            f"{' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} not drawn before, "
            "and --collect draws nothing: leave it out to train what is missing, and draw"
        )
        return replace(found, remarks=(*found.remarks, words))

    def write(self) -> list[Path]:
        """Write JSON, Markdown and LaTeX of what was asked for, and the page; return the files.

        They are of all runs of the recipe that there are, of all seeds and rows, and the page has
        all tables: a command that does a part of the work takes nothing away.
        """
        evidence = self._evidence(any_seed=True)
        drawings = self._drawings(targets())
        everything = expand([ALL])
        whole = evidence.contents(tables_in(everything), claims_in(everything), drawings)
        asked = {table.key for table in tables_in(self._targets, self._data)}
        part = replace(
            whole,
            tables=tuple(table for table in whole.tables if table.key in asked),
            verdicts=whole.verdicts if CLAIMS in self._targets else (),
        )
        written = outputs.write(part, self.results, self.setup.caption)
        written += [drawing.picture for drawing in drawings if drawing.key in self._targets]
        page = self.results / "index.html"
        runs = {run.folder: run for run in evidence.index.found}
        pictures = [d.picture for d in drawings if d.key == "fig4"]
        title = "SMOKE RUN: the figures mean nothing" if self.setup.smoke else "The paper, rerun"
        report.write_report(page, list(runs.values()), whole, figure4=pictures, title=title)
        return [*written, page]

    def _evidence(self, *, any_seed: bool) -> Evidence:
        return Evidence(RunIndex(self.setup, self._out, self._runs, any_seed=any_seed))

    def _drawings(self, keys: Sequence[str]) -> list[Drawing]:
        """Return the figures among some targets that are drawn already."""
        found = [kept_drawing(key, self.results) for key in FIGURES if key in keys]
        return [drawing for drawing in found if drawing is not None]


def _say_at(say: Callable[[str], None], place: str, text: str) -> None:
    say(f"{place} {text}")
