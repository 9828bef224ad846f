"""``enresnet transfer``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from enresnet import evaluation, report, training
from enresnet.cli.attack_choice import AttackOptions
from enresnet.cli.model_source import ModelSource, is_own, open_model
from enresnet.cli.options import Flat
from enresnet.cli.output import Tables, say, write_picture
from enresnet.common.tables import print_table
from enresnet.evaluation.captions import transfer_titles


def command(
    *,
    oracle: tuple[str, ...] = (),
    target: tuple[str, ...] = (),
    matrix: tuple[str, ...] = (),
    attacks: tuple[str, ...] = ("ifgsm20",),
    data: str | None = None,
    strength: Annotated[AttackOptions, Flat],
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    trust_code: bool = False,
    draws: int = 10,
    limit: int | None = None,
    batch_size: int = 128,
    seed: int = 0,
    devices: int = 1,
    journal: Path = Path("transfer.journal"),
    restart: bool = False,
    tables: Annotated[Tables, Flat],
    picture: Path | None = None,
) -> None:
    """Classify with one model the images that were made against another (Sec. 3.2, blind attacks).

    Args:
        oracle: Models that the attacks see: runs, safetensors files, or module.path:name.
        target: Models that classify.
        matrix: Models that are each both oracle and target.
        attacks: Names of attacks; see enresnet attacks.
        data: The test images, a name or a folder; by default those of the first run.
        strength: How strong the attacks are.
        eot: Draws averaged in every gradient; 5 for an oracle with noise, else 1.
        epsilon: Largest change of a pixel, or several, as in 2/255 4/255 8/255; by default the one
            that the first model was trained with.
        mean: For a model of your own, module.path:name: the mean to subtract from images in [0, 1],
            one number per channel or one for all.
        std: The standard deviation to divide by afterwards, in the same form.
        trust_code: Import and run the code that a run names as its network, module.path:name.
        draws: Predictions per image over which a noisy model is scored.
        limit: Use only the first LIMIT test images.
        batch_size: Images per batch.
        seed: Fixes the attacks and the noise.
        devices: Processes that share the work.
        journal: The folder that keeps results until all are there; if the command is killed, the
            same command resumes from it.
        restart: Discard what an earlier run of this command left unfinished.
        tables: Files that are also written.
        markdown: Also write the tables to this file.
        latex: Also write the tables to this file.
        picture: Draw the table as a heat map, one file per attack if there are several.
    """
    tables.check(picture)
    strength.check()
    if bool(matrix) == bool(oracle or target) or bool(oracle) != bool(target):
        raise ValueError("give --oracle and --target, or --matrix with all the models")
    opened = _opened(matrix or (*oracle, *target), mean, std, trust_code)
    oracles, judges = (
        _named([opened[source] for source in sources])
        for sources in (matrix or oracle, matrix or target)
    )
    sources = {**oracles, **judges}
    first = next(iter(judges.values()))
    name, images = first.images(data)
    chosen = strength.choose(attacks, usual=first.epsilon, seed=seed)
    radii = strength.radii(chosen, usual=first.epsilon)
    journals = evaluation.Journals(journal, restart=restart)
    options = evaluation.EvaluationOptions(draws, batch_size, limit, seed, journals)
    session = evaluation.Session.between(
        {key: source.model for key, source in oracles.items()},
        {key: source.model for key, source in judges.items()},
        images,
        options,
        own_noise=True,
    )
    engine = training.Engine(devices=devices)
    engine.launch()
    session = replace(session, options=replace(options, shard=engine.shard))
    result = session.measure({one.name: one.attack for one in chosen})
    if engine.rank:
        return
    values = {
        "data": name,
        "fingerprint": images.fingerprint(),
        "weights": {key: session.identity(key).digest for key in sources},
        "sources": {key: source.source for key, source in sources.items()},
        "epsilon": radii[0] if len(radii) == 1 else radii,
        "eot": strength.eot,  # null: decided by each oracle, as its settings say
        "attacks": {one.name: one.attack.settings() for one in chosen},
        **options.conditions(),
        **result.to_json(),
    }
    titles = transfer_titles(result, radii=radii, data=name)
    tables.write(values, {title: result.table(attack) for attack, title in titles.items()})
    for one in chosen:
        title = titles[one.name]
        print_table(result.table(one.name), title=title)
        if picture is not None:
            several = picture.with_stem(f"{picture.stem}-{one.file_name}")
            figure = report.transfer_heat_map(
                [[result.accuracy(o, t, one.name).accuracy for t in judges] for o in oracles],
                list(oracles),
                list(judges),
                title,
            )
            write_picture(picture if len(chosen) == 1 else several, figure)
    for word in session.finish():
        say(word, error=True)


def _opened(
    sources: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...], trust_code: bool
) -> dict[str, ModelSource]:
    """Return the models as they were named; mean and std are for those of the user's own."""
    if (mean or std) and not any(map(is_own, sources)):
        raise ValueError(
            "--mean and --std are for models of your own, module.path:name; none is given"
        )
    return {
        source: open_model(source, mean=mean, std=std)
        if is_own(source)
        else open_model(source, trust_code=trust_code)
        for source in sources
    }


def _named(opened: Sequence[ModelSource]) -> dict[str, ModelSource]:
    """Return the models by name: that of the network, or the folder's if two share one."""
    names = [source.name for source in opened]
    keys = names if len(set(names)) == len(names) else [source.source for source in opened]
    if len(set(keys)) < len(keys):
        raise ValueError(f"each model must be given once, found {', '.join(keys)}")
    return dict(zip(keys, opened, strict=True))
