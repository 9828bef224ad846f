"""``enresnet reproduce``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from enresnet import paper
from enresnet.cli.options import Flat
from enresnet.cli.output import Tables, say
from enresnet.cli.terminal import Terminal
from enresnet.common.tables import print_table
from enresnet.paper.plan import Job, command_of, shard_of
from enresnet.paper.setup import STRONGEST_IMAGES


def command(
    targets: tyro.conf.Positional[tuple[str, ...]],
    *,
    recipe: str = "paper",
    natural_recipe: str = "",
    seeds: tuple[int, ...] = (),
    out: Path = Path("reproduction"),
    runs: tuple[Path, ...] = (),
    data: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    limit: int | None = None,
    strongest: int = STRONGEST_IMAGES,
    shard: str | None = None,
    list: bool = False,
    dry_run: bool = False,
    collect: bool = False,
    tables: Annotated[Tables, Flat],
) -> None:
    """Reproduce tables, figures and claims of the paper: train and measure what is missing.

    Runs are in OUT/DATA/RECIPE, results in OUT/RECIPE: every table as JSON, Markdown and LaTeX, the
    paper's figures beside ours; the claims with their verdicts; the figures; the page index.html.
    These files are of all runs of the recipe that there are, also if the command does only a part.
    If the command is killed, the same command goes on. Several processes may share the work.

    Args:
        targets: table1 to table10; trades (Sec. 4.1), mask and simple (Sec. 4.4); fig4, fig5, fig6;
            claims; or all.
        recipe: How networks are trained robustly: paper, fast, another recipe, the path of a YAML
            file (whose folders have a digest in their name, unless it is one of ours); or smoke,
            which walks the whole way in minutes with numbers that mean nothing.
        natural_recipe: How networks are trained naturally; by default natural, or natural_fast with
            a recipe such as fast.
        seeds: The seeds that are trained, and printed; by default 0 1 2 (of smoke 0 1) are trained,
            and all that there are printed. Claims need two.
        out: The folder of runs and results.
        runs: Folders with runs of before; one counts if model, data, recipe and seed are the same.
        data: Only these data: cifar10, cifar100 or both.
        only: Only these rows, by name, as --list shows it, or by model.
        limit: Attack only the first LIMIT test images.
        strongest: Images for the strongest attack, which takes long; 0 leaves it out.
        shard: Do only a part of the work, as 2/4, the second of four.
        list: Only print one command per row and seed, for a cluster's job array.
        dry_run: Only say what it would cost on this machine, from measured steps.
        collect: Train and measure nothing: show what is there.
        tables: Files that are also written.
    """
    tables.check(None)
    how = {"dry_run": dry_run, "collect": collect, "only": only, "shard": shard, "limit": limit}
    if list:
        _refuse("list", {**how, **vars(tables)}, "dry_run collect json markdown latex")
    if collect:
        _refuse("collect", how, "dry_run only shard limit")
    setup = paper.Setup(recipe, natural_recipe, seeds, limit, strongest)
    if list:
        given = {"recipe": recipe, "natural_recipe": natural_recipe, "out": out, "runs": runs}
        jobs = paper.make_plan(targets, setup, data=data, only=only)
        jobs = jobs if shard is None else shard_of(jobs, shard)
        _list(jobs, targets, given | {"limit": limit, "strongest": strongest})
        return
    work = paper.Reproduction(
        targets, setup, out, runs=runs, data=data, only=only, shard=shard, collect=collect
    )
    if dry_run:
        costs = paper.estimate_cost(work, say=say)
        rows = paper.cost.cost_rows(costs)
        caption = f"On this machine, from measured steps. {paper.cost.CAPTION}"
        tables.write(rows, {caption: rows})
        print_table(rows, title="what is missing would cost", caption=caption)
        return
    work.work(callbacks=lambda: () if setup.smoke else (Terminal(),), say=say)
    contents = work.contents()
    written = work.write()
    shown = paper.outputs.shown(contents, setup.caption)
    by_caption = {caption: rows for rows, caption in shown.values()}
    tables.write(paper.outputs.to_json(contents), by_caption)
    for key, (rows, caption) in shown.items():
        brief = [{k: v for k, v in row.items() if k not in ("where", "note")} for row in rows]
        print_table(brief, title=key, caption=caption)
    if contents.verdicts:
        say(f"claims: {paper.outputs.claim_counts(contents.verdicts)}")
    hindered = [v.note for v in contents.verdicts if v.decision == "not comparable"]
    for sentence in dict.fromkeys([*hindered, *contents.remarks]):
        say(sentence, error=True)
    files = "1 file" if len(written) == 1 else f"{len(written)} files"
    say(f"{files} in {work.results}, of all runs of this recipe")


def _refuse(option: str, given: dict[str, Any], others: str) -> None:
    """Raise if an option is given with another that would have no effect."""
    for name in others.split():
        if given[name] not in (None, (), False):
            raise ValueError(
                f"--{name.replace('_', '-')} has no effect with --{option}: leave one of them out"
            )


def _list(jobs: Sequence[Job], targets: Sequence[str], given: dict[str, Any]) -> None:
    """Print a command for every row and seed."""
    options: list[str] = []
    usual = inspect.signature(command).parameters
    for name, value in given.items():
        if value != usual[name].default:
            words = value if isinstance(value, tuple) else (value,)
            options += [f"--{name.replace('_', '-')}", *map(str, words)]
    for job in jobs:
        print(command_of(job, targets, options))
    say("when all have ended, the command without --list collects and draws", error=True)
