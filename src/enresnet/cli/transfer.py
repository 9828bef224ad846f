"""``enresnet transfer``."""

from __future__ import annotations

from pathlib import Path

from enresnet import evaluation, report, training
from enresnet.cli.attack_choice import choose
from enresnet.cli.model_source import ModelSource, is_own, open_model
from enresnet.cli.output import (
    Ratio,
    Targets,
    check_outputs,
    say,
    write_json,
    write_picture,
    write_text,
)
from enresnet.common import checks
from enresnet.common.tables import as_latex, as_markdown, print_table
from enresnet.common.text import brief
from enresnet.evaluation import Accuracy
from enresnet.evaluation.rows import with_interval


def command(
    *,
    oracle: tuple[str, ...] = (),
    target: tuple[str, ...] = (),
    matrix: tuple[str, ...] = (),
    attacks: tuple[str, ...] = ("ifgsm20",),
    data: str | None = None,
    eot: int | None = None,
    epsilon: tuple[Ratio, ...] = (),
    epsilon_l2: tuple[Ratio, ...] = (),
    restarts: int | None = None,
    targets: Targets | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    draws: int = 10,
    limit: int | None = None,
    batch_size: int = 128,
    seed: int = 0,
    devices: int = 1,
    journal: Path = Path("transfer.journal"),
    restart: bool = False,
    json: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Classify with one model the images that were made against another (Sec. 3.2, blind attacks).

    Args:
        oracle: Models that the attacks see: runs, safetensors files, or module.path:name.
        target: Models that classify.
        matrix: Models that are all both.
        attacks: Their names; see enresnet attacks.
        data: The test images, a name or a folder; by default those of the first run.
        eot: Draws averaged in every gradient; 5 for an oracle with noise, else 1.
        epsilon: Largest change of a pixel, or several, as in 2/255 4/255 8/255; by default the one
            the first was trained against.
        epsilon_l2: Length of the change that attacks in l2 may make, or several; 0.5 by default.
        restarts: Random starts of pgd, apgd and noise, of which the worst counts; 1 by default.
        targets: The classes that attacks named _targeted aim at: a random other class, the least
            likely, the runner-up, or all others in turn.
        mean: What a model of your own, module.path:name, wants subtracted from images in [0, 1]:
            a number a channel, or one for all.
        std: What it wants the rest divided by, alike.
        draws: Predictions of a noisy model that every image is scored over.
        limit: Use only the first so many test images.
        batch_size: Images that meet a model at once.
        seed: Fixes the attacks and the noise.
        devices: Processes that share the work.
        journal: The folder that keeps results until all are there: killed, the same command goes
            on where it stopped.
        restart: Throw away what an earlier run of this command left unfinished.
        json: Also write the result to this file.
        markdown: Also write the tables to this file.
        latex: Also write the tables to this file.
        picture: Draw the table as a heat map, one file an attack where there are several.
    """
    check_outputs(json, markdown, latex, picture=picture)
    if eot is not None:
        checks.integer("eot", eot, low=1)
    if bool(matrix) == bool(oracle or target) or bool(oracle) != bool(target):
        raise ValueError("give --oracle and --target, or --matrix with all the models")
    if (mean or std) and not any(map(is_own, matrix or (*oracle, *target))):
        raise ValueError("--mean and --std are for models of your own, module.path:name; none is")
    oracles, judges = (_opened(names, mean, std) for names in (matrix or oracle, matrix or target))
    first = next(iter(judges.values()))
    name, images = first.images(data)
    chosen = choose(
        attacks,
        usual=first.epsilon,
        epsilon=epsilon,
        epsilon_l2=epsilon_l2,
        restarts=restarts,
        targets=targets,
        eot=eot,
        seed=seed,
    )
    radii = list(dict.fromkeys(one.radius for one in chosen))
    shape = images.pixels.shape[1:]
    weights = {
        key: evaluation.digest_of(s.model, shape) for key, s in {**oracles, **judges}.items()
    }
    engine = training.Engine(devices=devices)
    engine.launch()
    journals = evaluation.Journals(journal, restart=restart)
    with journals.resumable():
        natural, robust = evaluation.transfer_matrix(
            {key: subject.model for key, subject in oracles.items()},
            {key: subject.model for key, subject in judges.items()},
            images,
            {one.name: one.attack for one in chosen},
            draws=draws,
            batch_size=batch_size,
            limit=limit,
            seed=seed,
            journal=journals,
            share=evaluation.Shard(engine.rank, engine.processes, engine.wait),
        )
    if engine.rank:
        return
    values = {
        "data": name,
        "fingerprint": images.fingerprint(),
        "weights": weights,
        "sources": {key: s.source for key, s in {**oracles, **judges}.items()},
        "epsilon": radii[0] if len(radii) == 1 else radii,
        "eot": eot,  # null: decided by each oracle, as its settings say
        "draws": draws,
        "limit": limit,
        "batch_size": batch_size,
        "seed": seed,
        "attacks": {one.name: one.attack.settings() for one in chosen},
        "versions": evaluation.versions(),
        "hardware": evaluation.hardware(),
        "natural": {key: value.to_json() for key, value in natural.items()},
        "robust": {
            attack: [
                {"oracle": pair[0], "target": pair[1], **value.to_json()}
                for pair, value in cells.items()
            ]
            for attack, cells in robust.items()
        },
    }
    write_json(json, values)
    count = next(iter(natural.values())).images
    tables = {}
    radius = f", epsilon = {brief(radii[0])}" if len(radii) == 1 else ""
    for one in chosen:
        attack, cells = one.name, robust[one.name]
        title = f"{attack}{radius}{_eot(cells)}, {count} images of {name}"
        tables[title] = _rows(natural, cells, list(oracles), list(judges))
        print_table(tables[title], title=title)
        if picture is not None:
            own = (
                picture
                if len(robust) == 1
                else picture.with_stem(f"{picture.stem}-{one.file_name}")
            )
            table = [[cells[o, t].accuracy for t in judges] for o in oracles]
            write_picture(own, report.transfer_heat_map(table, list(oracles), list(judges), title))
    for file, written in ((markdown, as_markdown), (latex, as_latex)):
        write_text(file, "\n".join(written(rows, caption=t) for t, rows in tables.items()))
    journals.remove()
    for word in journals.others():
        say(word, error=True)


def _eot(cells: dict[tuple[str, str], Accuracy]) -> str:
    """Return over how many draws gradients were averaged, by oracle where they differ."""
    used = {o: (value.settings or {}).get("eot") for (o, _), value in cells.items()}
    if len(set(used.values())) > 1:
        return ", EOT over " + ", ".join(f"{eot} ({oracle})" for oracle, eot in used.items())
    (eot,) = set(used.values())
    return "" if eot is None else f", EOT over {eot}"


def _rows(
    natural: dict[str, Accuracy],
    cells: dict[tuple[str, str], Accuracy],
    oracles: list[str],
    targets: list[str],
) -> list[dict[str, str]]:
    clean = {t: with_interval(natural[t].accuracy, natural[t].interval) for t in targets}
    rows = [{"made against": "(clean)", **clean}]
    for oracle in oracles:
        own = {t: cells[oracle, t] for t in targets}
        words = {t: with_interval(value.accuracy, value.interval) for t, value in own.items()}
        rows.append({"made against": oracle, **words})
    return rows


def _opened(
    sources: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> dict[str, ModelSource]:
    """Return the models by name: that of the network, or the folder's if two share one."""
    subjects = [
        open_model(source, mean=mean, std=std) if is_own(source) else open_model(source)
        for source in sources
    ]
    names = [subject.name for subject in subjects]
    keys = names if len(set(names)) == len(names) else [subject.source for subject in subjects]
    if len(set(keys)) < len(keys):
        raise ValueError(f"each model must be given once, found {', '.join(keys)}")
    return dict(zip(keys, subjects, strict=True))
