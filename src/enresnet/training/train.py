"""One call from a configuration to a finished run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from enresnet.progress import progress_bar
from enresnet.training.run import Run, RunConfig
from enresnet.training.trainer import Epoch, Trainer


def train(
    config: RunConfig,
    out: Path,
    *,
    report: Callable[[Epoch], None] = lambda _: None,
    progress: bool | None = None,
) -> Run:
    """Train as ``config`` says into the folder ``out``; ``report`` hears of every epoch.

    The network with the best validation accuracy (robust, where the objective is) and the last one
    are kept.
    """
    data = config.load_data()
    model = config.create_model(data)
    trainer = Trainer(model, data, config.recipe, seed=config.seed)
    run = Run.create(out, config)
    best = -1.0
    work = config.recipe.epochs * len(data.train)
    with progress_bar(f"training {config.model}", work, unit="images", show=progress) as advance:
        for epoch in trainer.epochs(advance):
            run.record(epoch)
            run.save("last", trainer.result)
            if epoch.score is not None and epoch.score > best:
                best = epoch.score
                run.save("best", trainer.result)
            report(epoch)
    return run
