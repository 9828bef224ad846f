"""``enresnet evaluate``."""

from __future__ import annotations

import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

import enresnet
from enresnet.attacks import Attack, attack_at
from enresnet.cli.output import Ratio, print_table, write_json, write_picture, write_text
from enresnet.cli.subjects import Subject, open_subject
from enresnet.data import Images
from enresnet.data.adversarial import AdversarialSet, load_adversarial_set
from enresnet.evaluation import Evaluation, evaluate
from enresnet.evaluation.work import Share, Unit, digest_of
from enresnet.files import writable
from enresnet.report.figures import convergence_figure
from enresnet.report.tables import as_latex, as_markdown, detail_rows, evaluation_rows
from enresnet.training.engine import Engine

JOURNAL = "evaluation.journal"
ONE_DRAW = (
    "AutoAttack itself counts an image as lost that one draw of the noise got wrong: under "
    "'claimed' stands its own figure, under 'accuracy' what fresh draws make of its images."
)


def command(
    model: tyro.conf.Positional[str],
    *,
    attacks: tuple[str, ...] = ("fgsm", "ifgsm20", "cw"),
    data: str | None = None,
    eot: int | None = None,
    epsilon: Ratio | None = None,
    budget: int = 1000,
    draws: int = 10,
    checkpoint: str = "best",
    limit: int | None = None,
    batch_size: int = 128,
    seed: int = 0,
    devices: int = 1,
    out: Path | None = None,
    save: Path | None = None,
    png: bool = False,
    json: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Measure natural and robust accuracy on test images, with 95 % intervals.

    Results are kept in evaluation.json in the run's folder, and while they come in a journal
    beside it: killed, the same command goes on where it stopped.

    Args:
        model: A run's folder, a safetensors file, or module.path:name of a model or of a function
            that builds one, from images in [0, 1] to logits.
        attacks: Their names; see enresnet attacks.
        data: Test on these images, a name or a folder, rather than on the run's own.
        eot: Draws of the model's noise averaged in every gradient; 5 for a noisy model, else 1.
        epsilon: Largest change of a pixel; by default the one the run was trained against.
        budget: Gradient evaluations an image that strongest may take.
        draws: Predictions of a noisy model that every image is scored over.
        checkpoint: Of a run: best or last.
        limit: Use only the first so many test images.
        batch_size: Images that meet the model at once.
        seed: Fixes the attacks and the noise.
        devices: Processes that share the work.
        out: Keep results in this folder; by default the run's, or evaluations/NAME.
        save: Keep the attacked images as sets in this folder, for use with --data.
        png: As 8-bit PNG files, rounded inside the ball and scored again.
        json: Also write the result to this file.
        markdown: Also write the table to this file.
        latex: Also write the table to this file.
        picture: Draw how accuracy settles with the number of draws, as PNG or SVG.
    """
    for path in (json, markdown, latex, picture):
        if path is not None:
            writable(path)
    if png and save is None:
        raise ValueError("--png is for --save: it says how the attacked images are kept")
    subject = open_subject(model, checkpoint=checkpoint, out=out)
    name, images = subject.images(data)
    eot = eot or subject.usual_eot(images)
    if epsilon is None:
        epsilon = subject.epsilon
    elif any("_l2" in attack for attack in attacks):
        raise ValueError(
            "epsilon is the radius in linf; attacks in l2 keep their own, leave it out"
        )
    chosen = [attack_at(n, epsilon, eot=eot, seed=seed, budget=budget) for n in attacks]
    sets = {} if save is None else _sets(save, subject, name, images, chosen, png)
    engine = Engine(devices=devices)
    engine.launch()
    subject.folder.mkdir(parents=True, exist_ok=True)
    journal = subject.folder / JOURNAL

    def keep(unit: Unit, attacked: Tensor, labels: Tensor) -> None:
        clean, _ = images.batch(slice(unit.start, unit.stop))
        sets[unit.attack].write(unit.start, attacked, labels, clean)

    result = evaluate(
        subject.model,
        images,
        chosen,
        draws=draws,
        batch_size=batch_size,
        limit=limit,
        seed=seed,
        journal=journal,
        share=Share(engine.rank, engine.processes, engine.wait),
        keep=keep if sets else None,
    )
    if engine.rank:
        return
    if png:
        result = _with_eight_bit(result, subject, sets, draws, batch_size, seed)
    facts = _circumstances(subject, name, seed, epsilon, eot, limit, batch_size)
    subject.record.add(
        subject.section(epsilon), result, data=images.fingerprint(), circumstances=facts
    )
    shutil.rmtree(journal)
    _tell(result, subject, name, facts, json, markdown, latex, picture)


def _sets(
    folder: Path, subject: Subject, data: str, images: Images, attacks: list[Attack], png: bool
) -> dict[str, AdversarialSet]:
    return {
        attack.name: AdversarialSet(
            folder / attack.name,
            classes=images.classes,
            kind="png" if png else "float32",
            about={
                "attack": repr(attack),
                "model": subject.name,
                "weights": digest_of(subject.model),
                "data": data,
                "images": images.fingerprint(),
            },
        )
        for attack in attacks
    }


def _with_eight_bit(
    result: Evaluation,
    subject: Subject,
    sets: dict[str, AdversarialSet],
    draws: int,
    batch_size: int,
    seed: int,
) -> Evaluation:
    """Return the result with what the rounded images do."""
    robust = {}
    for name, value in result.robust.items():
        robust[name] = value
        rounded = load_adversarial_set(sets[name].folder)
        again = evaluate(subject.model, rounded, draws=draws, batch_size=batch_size, seed=seed)
        robust[f"{name}_8bit"] = replace(again.natural, attack=value.attack)
    return replace(result, robust=robust)


def _tell(
    result: Evaluation,
    subject: Subject,
    data: str,
    facts: dict[str, Any],
    json: Path | None,
    markdown: Path | None,
    latex: Path | None,
    picture: Path | None,
) -> None:
    rows, details = evaluation_rows(result), detail_rows(result)
    title = f"{subject.name} on {data}, {result.natural.images} test images"
    caption = (
        f"In %, with 95 % intervals; epsilon = {facts['epsilon']:.4g}, EOT over {facts['eot']}."
    )
    if result.natural.draws > 1:
        caption += (
            f" Over {result.natural.draws} draws of the noise an image: accuracy is that of a "
            "single prediction, averaged that of their mean; always right are images right in all "
            "draws, lost in k those wrong at least once in k."
        )
    if any(value.claimed is not None for value in result.robust.values()):
        caption += f" {ONE_DRAW}"
    print_table(rows, title=title, caption=caption)
    print_table(
        details,
        caption="Calibration is its error, in points; gradients are those that an image took in "
        f"the mean. Kept in {subject.record.path}",
    )
    write_json(json, {**result.to_json(), **facts})
    text = f"{title}. {caption}"
    write_text(markdown, as_markdown(rows, caption=text) + "\n" + as_markdown(details))
    write_text(latex, as_latex(rows, caption=text) + "\n" + as_latex(details))
    if picture is not None:
        write_picture(picture, convergence_figure(result, title))


def _circumstances(
    subject: Subject,
    data: str,
    seed: int,
    epsilon: float,
    eot: int,
    limit: int | None,
    batch_size: int,
) -> dict[str, Any]:
    """Return what else is needed to repeat the evaluation."""
    return {
        "model": subject.name,
        "weights": digest_of(subject.model),
        "data_name": data,
        "checkpoint": subject.checkpoint,
        "seed": seed,
        "epsilon": epsilon,
        "eot": eot,
        "limit": limit,
        "batch_size": batch_size,
        "versions": {
            "enresnet": enresnet.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }
