"""The paper's tables and claims beside whatever runs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from enresnet.models import list_models
from enresnet.paper.evidence import Evidence
from enresnet.paper.plan import ALL, claims_in, expand, tables_in
from enresnet.paper.published import load_paper
from enresnet.paper.run_index import RunIndex
from enresnet.paper.setup import Setup
from enresnet.report.contents import Contents
from enresnet.training import Recipe, Run, load_recipe
from enresnet.training.recipe import name_of


def contents_of(runs: Sequence[Run]) -> Contents:
    """Return the paper's tables and claims beside what some runs measured; nothing is trained.

    A table compares networks of one recipe. Where the runs have several, that of most measured runs
    counts, for robust and for natural training each.

    Args:
        runs: The runs; those of other networks or other data than the paper's are left out.

    Returns:
        All tables and claims, "not run" where there is no run.

    Example::

        from enresnet.paper import contents_of

        recipe = enresnet.load_recipe("natural", epochs=1)
        run = enresnet.train(enresnet.RunConfig("resnet8", "digits", recipe, limit=50), "runs/one")
        print(contents_of([run]).tables[1].title)  # all of its cells are not run
    """
    wanted = expand([ALL])
    evidence = Evidence(RunIndex.of(_setup(runs), runs))
    return evidence.contents(tables_in(wanted), claims_in(wanted))


def _setup(runs: Sequence[Run]) -> Setup:
    """Return a setup with the recipes that most measured runs of the paper's networks have."""
    data = {cell.network.data for cell in load_paper().cells()}
    models = {*list_models(), *(cell.network.model for cell in load_paper().cells())}
    usual: dict[bool, list[Run]] = {False: [], True: []}  # robust, natural
    for run in runs:
        recipe = run.config.recipe
        noisy = recipe.noise > 0 and not recipe.weight_step and recipe.objective != "trades"
        if run.config.model in models and run.config.data in data and noisy:
            usual[recipe.objective == "natural"].append(run)
    found = {
        natural: _most_common(own) or load_recipe("natural" if natural else "paper")
        for natural, own in usual.items()
    }
    return Setup(
        recipe=name_of(found[False]) or "own",
        natural_recipe=name_of(found[True]) or "own",
        recipes=(found[False], found[True]),
    )


def _most_common(runs: Sequence[Run]) -> Recipe | None:
    """Return the recipe of most runs, of those that are measured if some are."""
    measured = [run for run in runs if run.results.path.is_file()]
    counts = Counter(replace(run.config.recipe, memory="auto") for run in measured or runs)
    return counts.most_common(1)[0][0] if counts else None
