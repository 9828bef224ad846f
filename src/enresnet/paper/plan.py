"""What a reproduction has to do: for each row of a table and each claim, the networks it needs.

A job is one network and one seed: it is trained, or integrated from others, and measured. A blind
job needs two networks. Jobs that need no other come first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from enresnet.common import checks
from enresnet.paper.claims import Claim, load_claims
from enresnet.paper.published import METRICS, Metric, Network, PublishedTable, load_paper, row_key
from enresnet.paper.setup import Setup

FIGURES = {
    "fig4": "Transport and diffusion: the solution without noise, and with more and more of it",
    "fig5": "Training and validation accuracy, epoch by epoch",
    "fig6": "Attacked images, and what both networks take them for",
}
CLAIMS, ALL = "claims", "all"
# The networks of Figure 5, left and right, and of Figure 6.
CURVES = (
    ("resnet20", "en1_resnet20", "en2_resnet20", "en5_resnet20"),
    ("resnet44", "en1_resnet44", "en2_resnet44"),
)
GRID = ("resnet20", "en5_resnet20")


@dataclass(frozen=True)
class Job:
    """One network and one seed, trained and measured.

    Attributes:
        network: The network that classifies.
        seed: The seed of its training.
        source: The network that blind attacks see; None for white-box attacks.
        metrics: What is measured.
    """

    network: Network
    seed: int
    source: Network | None = None
    metrics: tuple[Metric, ...] = ()

    @property
    def row(self) -> str:
        """The name of its row on the command line."""
        return row_key(self.network, self.source)

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks that it needs."""
        return (self.network,) if self.source is None else (self.network, self.source)

    @property
    def needs(self) -> tuple[Network, ...]:
        """The networks of other jobs that must be there before."""
        return self.network.parts if self.source is None else self.networks

    @property
    def stage(self) -> int:
        """0 if it needs no other job, 1 for an integrated network, 2 for a blind attack."""
        return 2 if self.source is not None else 1 if self.network.parts else 0

    def __str__(self) -> str:
        how = {"natural": ", naturally trained", "trades": ", by TRADES"}
        return f"{self.row}{how.get(self.network.training, '')} on {self.network.data}"


def targets() -> list[str]:
    """Return all that can be reproduced, in the paper's order."""
    return [*load_paper().tables, *FIGURES, CLAIMS]


def expand(asked: Sequence[str]) -> list[str]:
    """Return the targets that are asked for, each once; ``all`` stands for all.

    Raises:
        ValueError: A target is unknown, or none is given.
    """
    known = [*targets(), ALL]
    if not asked:
        raise ValueError(f"name what to reproduce: {', '.join(known)}")
    found = [checks.choice("target", target, known) for target in asked]
    return targets() if ALL in found else list(dict.fromkeys(found))


def tables_in(wanted: Iterable[str], data: Sequence[str] = ()) -> list[PublishedTable]:
    """Return the tables among the targets, on some data sets only where these are given."""
    tables = load_paper().tables
    found = [tables[target] for target in wanted if target in tables]
    return [table for table in found if not data or table.data in data]


def claims_in(wanted: Iterable[str], data: Sequence[str] = ()) -> list[Claim]:
    """Return the claims, if they are among the targets."""
    found = load_claims().values() if CLAIMS in wanted else ()
    return [claim for claim in found if not data or claim.first.network.data in data]


def make_plan(
    asked: Sequence[str],
    setup: Setup,
    *,
    data: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[Job]:
    """Return the jobs that some targets need, each once, those that need no other first.

    Args:
        asked: The targets: table1 to table10, trades, mask, simple, fig4 to fig6, claims, all.
        setup: How networks are trained and measured.
        data: Only these data sets of the paper; by default both.
        only: Only these rows, by name or by model; by default all.

    Returns:
        The jobs.

    Raises:
        ValueError: A target, a data set or a row is unknown.

    Example::

        from enresnet.paper import Setup, make_plan

        for job in make_plan(["table3"], Setup(recipe="fast", seeds=(0,))):
            print(job, job.metrics)
    """
    wanted = expand(asked)
    known = {table.data for table in load_paper().tables.values()}
    for name in data:
        checks.choice("data", name, known)
    found: dict[tuple[Network, Network | None, int], Job] = {}
    for job in _needs(wanted, setup, data):
        key = (job.network, job.source, job.seed)
        first = found.setdefault(key, job)
        metrics = tuple(m for m in METRICS if m in {*first.metrics, *job.metrics})
        found[key] = replace(first, metrics=metrics)
    for job in list(found.values()):
        for network in job.needs:
            found.setdefault((network, None, job.seed), Job(network, job.seed))
    if data and not found and (tables := tables_in(wanted)):
        there = ", ".join(f"{table.key} is on {table.data}" for table in tables)
        raise ValueError(
            f"data leaves nothing to do, found {' '.join(data)}: {there}; name that data"
        )
    jobs = sorted(found.values(), key=lambda job: job.stage)
    rows = {job.row for job in jobs}
    names = rows | {job.network.model for job in jobs}
    for row in only:
        if row not in names:
            raise ValueError(
                f"--only must name rows of what is asked for, found {row!r}: there are "
                f"{', '.join(sorted(names)) or 'none'}" + checks.did_you_mean(row, names)
            )
    if not only:
        return jobs
    # A model stands for all of its rows, unless one is called so.
    models = {name for name in only if name not in rows}
    return [job for job in jobs if job.row in only or job.network.model in models]


def _needs(wanted: Sequence[str], setup: Setup, data: Sequence[str]) -> Iterator[Job]:
    for seed in setup.seeds:
        for table in tables_in(wanted, data):
            metrics = setup.metrics(table.metrics, white_box=table.white_box)
            for row in table.rows:
                yield Job(row.network, seed, row.source, metrics)
        for claim in claims_in(wanted, data):
            if claim.metric == "strongest" and not setup.strongest:
                continue
            for side in claim.sides:
                yield Job(side.network, seed, side.source, (claim.metric,))
    if "cifar10" in (data or ("cifar10",)):
        curves = [model for panel in CURVES for model in panel] if "fig5" in wanted else []
        for model in [*curves, *(GRID if "fig6" in wanted else ())]:
            yield Job(Network(model, "robust", "cifar10"), setup.seeds[0])


def shard_of(jobs: Sequence[Job], shard: str) -> list[Job]:
    """Return the part i of n of the jobs, for ``--shard i/n``; i counts from 1.

    Raises:
        ValueError: It is not written as i/n with i from 1 to n.
    """
    number, _, count = shard.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--shard must be i/n with i from 1 to n, such as 2/4; found {shard!r}")
    return list(jobs[int(number) - 1 :: int(count)])


def command_of(job: Job, asked: Sequence[str], options: Sequence[str]) -> str:
    """Return the shell command that does a job alone.

    Args:
        job: The job.
        asked: The targets that were asked for.
        options: The options that all jobs share, as words.
    """
    rows = {t.key: [(r.network, r.source) for r in t.rows] for t in load_paper().tables.values()}
    holding = [key for key, found in rows.items() if (job.network, job.source) in found]
    targets = holding if job.metrics else asked
    words = ["enresnet", "reproduce", *targets, "--only", job.row, "--seeds", str(job.seed)]
    return shlex.join([*words, *options])
