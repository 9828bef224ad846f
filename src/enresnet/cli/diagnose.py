"""``enresnet diagnose``."""

from __future__ import annotations

from pathlib import Path

import tyro

from enresnet import evaluation, report
from enresnet.cli.model_source import open_model
from enresnet.cli.output import Ratio, check_outputs, write_json, write_picture
from enresnet.common import checks
from enresnet.common.tables import print_table

JOURNAL = "diagnosis.journal"


def command(
    model: tyro.conf.Positional[str],
    *,
    data: str | None = None,
    oracle: tuple[str, ...] = (),
    natural: str | None = None,
    eot: int | None = None,
    epsilon: Ratio | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    trust_code: bool = False,
    draws: int = 10,
    queries: int = 300,
    checkpoint: str = "best",
    limit: int = 200,
    batch_size: int = 128,
    seed: int = 0,
    restart: bool = False,
    json: Path | None = None,
    picture: Path | None = None,
) -> int:
    """Check a model for gradient masking; exit code 1 if there is a sign of it.

    A check is undecided where there are too few images for any outcome to be significant.

    Results are kept in a journal in the run's folder as they come. If the command is killed, the
    same command resumes where it stopped.

    Args:
        model: A run's folder, a safetensors file, or module.path:name of a model or of a function
            that builds one.
        data: Test on these images, a name or a folder, rather than on the run's own.
        oracle: Other models whose adversarial images are tried on this one.
        natural: The same network trained without attacks, whose robust accuracy must be about 0.
        eot: Draws of the model's noise averaged in every gradient; 5 for a noisy model, else 1.
        epsilon: Largest change of a pixel; by default the one used in training.
        mean: For a model of your own, module.path:name: the mean to subtract from images in [0, 1],
            one number per channel or one for all.
        std: The standard deviation to divide by afterwards, in the same form.
        trust_code: Import and run the code that a run names as its network, module.path:name.
        draws: Predictions per image over which a noisy model is scored.
        queries: Steps of the search without gradients.
        checkpoint: Which network of a run: best or last.
        limit: Use only the first LIMIT test images.
        batch_size: Images per batch.
        seed: Fixes the attacks and the noise.
        restart: Discard what an earlier run of this command left unfinished.
        json: Also write the result to this file.
        picture: Draw accuracy against epsilon and against steps; by default in the run's folder.
    """
    from enresnet.evaluation.masking.diagnosis import diagnose_session

    check_outputs(json, picture=picture)
    if eot is not None:
        checks.integer("eot", eot, low=1)
    source = open_model(model, checkpoint=checkpoint, mean=mean, std=std, trust_code=trust_code)
    journals = evaluation.Journals(source.folder / JOURNAL, restart=restart)
    name, images = source.images(data)
    options = evaluation.EvaluationOptions(draws, batch_size, limit, seed, journals)
    session = evaluation.Session.open(source.model, images, options)
    with options.resumable():
        result = diagnose_session(
            session,
            epsilon=source.epsilon if epsilon is None else epsilon,
            eot=eot,
            queries=queries,
            sources={other: open_model(other, trust_code=trust_code).model for other in oracle},
            naturally_trained=None
            if natural is None
            else open_model(natural, trust_code=trust_code).model,
        )
    facts = {
        "model": source.name,
        "weights": session.identity().digest,
        "images_of": name,
        "oracles": list(oracle),
        "natural": natural,
        "queries": queries,
        "batch_size": batch_size,
        "versions": evaluation.versions(),
        "hardware": evaluation.hardware(),
    }
    write_json(json, {**facts, **result.to_json()})
    title = f"{source.name} on {name}, {result.images} test images"
    caption = result.caption
    if result.against_steps:
        if picture is None:
            source.folder.mkdir(parents=True, exist_ok=True)
            picture = source.folder / "diagnosis.png"
        write_picture(picture, report.diagnosis_figure(result, title))
        caption += f" The curves: {picture}"
    print_table(result.table(), title=title, caption=caption)
    session.finish()
    for check in result.warnings:
        print(check.warning)
    return 1 if result.warnings else 0
