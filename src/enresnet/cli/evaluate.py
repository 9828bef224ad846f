"""``enresnet evaluate``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

import enresnet.data
from enresnet import evaluation, report, training
from enresnet.cli.attack_choice import Chosen, choose
from enresnet.cli.model_source import ModelSource, open_model
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
from enresnet.evaluation.result import NATURAL, Accuracy, Evaluation
from enresnet.evaluation.rows import detail_rows, evaluation_rows

if TYPE_CHECKING:
    from torch import Tensor

    from enresnet.attacks import Attack
    from enresnet.data import AdversarialSet, Images
    from enresnet.training import Engine

JOURNAL = "evaluation.journal"
ONE_DRAW = (
    "AutoAttack itself counts an image as lost that one draw of the noise got wrong: under "
    "'claimed' stands its own figure, under 'accuracy' what fresh draws make of its images."
)


def command(
    model: tyro.conf.Positional[str],
    *,
    attacks: tuple[str, ...] | None = None,
    data: str | None = None,
    size: int | None = None,
    gray: bool = False,
    eot: int | None = None,
    epsilon: tuple[Ratio, ...] = (),
    epsilon_l2: tuple[Ratio, ...] = (),
    restarts: int | None = None,
    targets: Targets | None = None,
    budget: int = 1000,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    noise: float | None = None,
    average: Literal["logits", "probabilities"] | None = None,
    paths: int | None = None,
    draws: int = 10,
    checkpoint: str = "best",
    limit: int | None = None,
    batch_size: int = 128,
    seed: int = 0,
    devices: int = 1,
    again: bool = False,
    restart: bool = False,
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
    beside it: killed, the same command goes on where it stopped. What was measured before is not
    measured again.

    Args:
        model: A run's folder, a safetensors file, or module.path:name of a model or of a function
            that builds one, from images in [0, 1] to logits.
        attacks: Their names, see enresnet attacks; by default fgsm, ifgsm20 and cw, and none on
            images that were attacked already.
        data: Test on these images, a name or a folder, rather than on the run's own.
        size: Side in pixels to which the images of a folder are scaled and cut; by default as the
            run was trained, else 32.
        gray: Read the images of a folder as gray.
        eot: Draws of the model's noise averaged in every gradient; 5 for a noisy model, else 1.
        epsilon: Largest change of a pixel, or several, as in 2/255 4/255 8/255; by default the one
            the run was trained against.
        epsilon_l2: Length of the change that attacks in l2 may make, or several; 0.5 by default.
        restarts: Random starts of pgd, apgd and noise, of which the worst counts; 1 by default.
        targets: The classes that attacks named _targeted aim at: a random other class, the least
            likely, the runner-up, or all others in turn.
        budget: Gradient evaluations an image that strongest may take.
        mean: What a model of your own, module.path:name, wants subtracted from images in [0, 1]:
            a number a channel, or one for all.
        std: What it wants the rest divided by, alike.
        noise: Evaluate our network with another noise than it was trained with; 0 switches it off.
        average: Average an ensemble's logits, or its probabilities; by default as it was trained.
        paths: Noisy runs of every member that are averaged inside one prediction; 1 by default.
        draws: Predictions of a noisy model that every image is scored over.
        checkpoint: Of a run: best or last.
        limit: Use only the first so many test images.
        batch_size: Images that meet the model at once.
        seed: Fixes the attacks and the noise.
        devices: Processes that share the work.
        again: Measure also what was measured before; so do --save and --picture.
        restart: Throw away what an earlier run of this command left unfinished.
        out: Keep results in this folder; by default the run's, or evaluations/NAME.
        save: Keep the attacked images as sets in this folder, for use with --data.
        png: As 8-bit PNG files, rounded inside the ball and scored again.
        json: Also write the result to this file.
        markdown: Also write the table to this file.
        latex: Also write the table to this file.
        picture: Draw how accuracy settles with the number of draws, as PNG or SVG.
    """
    check_outputs(json, markdown, latex, picture=picture)
    if eot is not None:
        checks.integer("eot", eot, low=1)
    if png and save is None:
        raise ValueError("--png is for --save: it says how the attacked images are kept")
    subject = open_model(model, checkpoint=checkpoint, out=out, mean=mean, std=std)
    subject = subject.varied(noise=noise, average=average, paths=paths)
    subject.record.check()
    name, images = subject.images(data, size=size, gray=gray)
    made = None
    if enresnet.data.is_adversarial_set(Path(name)):
        made = enresnet.data.describe_adversarial_set(Path(name))
    if attacks is None:
        attacks = () if made else ("fgsm", "ifgsm20", "cw")
    eot = eot or subject.usual_eot(images)
    chosen = choose(
        attacks,
        usual=subject.epsilon,
        epsilon=epsilon,
        epsilon_l2=epsilon_l2,
        restarts=restarts,
        targets=targets,
        eot=eot,
        seed=seed,
        budget=budget,
    )
    radii = list(dict.fromkeys(one.radius for one in chosen)) or [*epsilon] or [subject.epsilon]
    identity = evaluation.identify(subject.model, images.pixels.shape[1:])
    facts = {
        "model": subject.name,
        "weights": identity.digest,
        "file": subject.stored(),
        "data_name": name,
        "checkpoint": subject.checkpoint,
        "seed": seed,
        "eot": eot,
        "draws": draws,
        "limit": limit,
        "batch_size": batch_size,
        "versions": evaluation.versions(),
        "hardware": evaluation.hardware(),
    }
    sets = None if save is None else _Sets.at(save, images.first(limit), chosen, facts, png)
    engine = training.Engine(devices=devices)
    engine.launch()
    subject.folder.mkdir(parents=True, exist_ok=True)
    results = _Results(subject, name, images.fingerprint(), len(images.first(limit)), facts)
    known: dict[str, Accuracy] = {}
    if not (again or sets or picture or identity.blind):
        known = results.known(chosen, radii, engine)
    journals = evaluation.Journals(subject.folder / JOURNAL, restart=restart)
    new = {one.name: one.attack for one in chosen if one.name not in known}
    if known and not engine.rank:
        _tell_known(known, new)
    if new or NATURAL not in known:
        with journals.resumable():
            result = evaluation.evaluate(
                subject.model,
                images,
                new,
                draws=draws,
                batch_size=batch_size,
                limit=limit,
                seed=seed,
                journal=journals,
                share=evaluation.Shard(engine.rank, engine.processes, engine.wait),
                keep=sets,
                natural=known.get(NATURAL),
                warn=made is None,
            )
    else:
        result = Evaluation(known[NATURAL], {})
    if engine.rank:
        return
    order = {one.name: {**known, **result.robust}[one.name] for one in chosen}
    result = replace(result, robust=order)
    if sets is not None and png:
        result = _with_eight_bit(result, subject, chosen, sets, draws, batch_size, seed)
    said = results.add(result, chosen, radii)
    journals.remove()
    for word in [*said, *journals.others()]:
        say(word, error=True)
    epsilons = radii[0] if len(radii) == 1 else radii
    write_json(json, {**result.to_json(), **facts, "epsilon": epsilons})
    _tell(result, subject, name, radii, facts, made, markdown, latex, picture)


@dataclass(frozen=True)
class _Results:
    """What is kept of a model on some images: a section for each radius."""

    subject: ModelSource
    data_name: str
    data: str  # digest of the images
    images: int
    facts: dict[str, Any]

    def known(
        self, chosen: list[Chosen], radii: list[float], engine: Engine
    ) -> dict[str, Accuracy]:
        """Return what was measured already, by the names of this command."""
        found: dict[str, Accuracy] = {}
        clean: list[Accuracy] = []
        for radius in radii:
            own = {one.entry: one for one in chosen if one.radius == radius}
            there = self.subject.record.known(
                self.subject.section(radius, self.data_name),
                {NATURAL: None, **{entry: one.attack.settings() for entry, one in own.items()}},
                data=self.data,
                images=self.images,
                conditions=self.facts,
            )
            clean += [there.pop(NATURAL)] if NATURAL in there else []
            found |= {own[entry].name: value for entry, value in there.items()}
        if len(clean) == len(radii):
            found[NATURAL] = clean[0]
        return _agreed(found, [NATURAL, *(one.name for one in chosen)], engine)

    def add(self, result: Evaluation, chosen: list[Chosen], radii: list[float]) -> list[str]:
        """Keep a result, and return what there is to say of those that were there."""
        said = []
        for radius in radii:
            own = {one.name: one.entry for one in chosen if one.radius == radius}
            own |= dict(one.eight_bit for one in chosen if one.radius == radius)
            robust = {own[name]: value for name, value in result.robust.items() if name in own}
            said += self.subject.record.add(
                self.subject.section(radius, self.data_name),
                replace(result, robust=robust),
                data=self.data,
                conditions={**self.facts, "epsilon": radius},
            )
        return said


def _agreed(found: dict[str, Accuracy], names: list[str], engine: Engine) -> dict[str, Accuracy]:
    """Return what all processes found; another evaluation may have ended between two looks."""
    counts = engine.counted([name in found for name in names])
    return {
        n: found[n] for n, count in zip(names, counts, strict=True) if count == engine.processes
    }


def _tell_known(known: dict[str, Accuracy], new: dict[str, Attack]) -> None:
    """Say which results are those of an earlier evaluation."""
    names = ", ".join("clean images" if name == NATURAL else name for name in known)
    left = "" if new else "; nothing is left to measure"
    say(
        f"measured before, with the same weights, images and settings: {names}{left} (--again "
        "measures anew)",
        error=True,
    )


@dataclass(frozen=True)
class _Sets:
    """Where the attacked images are kept, a set an attack."""

    images: Images
    by_attack: dict[str, AdversarialSet]

    @classmethod
    def at(
        cls, folder: Path, images: Images, chosen: list[Chosen], facts: dict[str, Any], png: bool
    ) -> _Sets:
        """Return sets in a folder, none of which is another's."""
        same = ("model", "weights", "seed", "limit", "batch_size")
        found = {
            one.name: enresnet.data.AdversarialSet(
                folder / one.file_name,
                classes=images.classes,
                kind="png" if png else "float32",
                about={
                    "attack": repr(one.attack),
                    "settings": one.attack.settings(),
                    "data": facts["data_name"],
                    "images": images.fingerprint(),
                    "count": len(images),
                    **{name: facts[name] for name in same},
                },
                epsilon=getattr(one.attack, "epsilon", None),
                norm=getattr(one.attack, "norm", "linf"),
            )
            for one in chosen
        }
        first, _ = images.batch(slice(facts["batch_size"]))
        for kept in found.values():
            kept.check(first)
        return cls(images, found)

    def write(self, item: evaluation.WorkItem, attacked: Tensor, labels: Tensor) -> None:
        """Keep the attacked images of an item."""
        clean, _ = self.images.batch(slice(item.start, item.stop))
        self.by_attack[item.attack].write(item.start, attacked, labels, clean)

    def has(self, item: evaluation.WorkItem) -> bool:
        """Return whether they are there."""
        labels = self.images.labels[item.start : item.stop]
        return self.by_attack[item.attack].has(item.start, labels)


def _with_eight_bit(
    result: Evaluation,
    subject: ModelSource,
    chosen: list[Chosen],
    sets: _Sets,
    draws: int,
    batch_size: int,
    seed: int,
) -> Evaluation:
    """Return the result with what the rounded images do."""
    robust = {}
    for one in chosen:
        name, value = one.name, result.robust[one.name]
        robust[name] = value
        rounded = enresnet.data.load_adversarial_set(sets.by_attack[name].folder)
        again = evaluation.evaluate(
            subject.model, rounded, draws=draws, batch_size=batch_size, seed=seed, warn=False
        )
        settings = {**(value.settings or {}), "rounded": "to 8 bits"}
        robust[one.eight_bit[0]] = replace(
            again.natural,
            attack=value.attack,
            settings=settings,
            gradients=value.gradients,
            evaluations=value.evaluations,
        )
    return replace(result, robust=robust)


def _radius(result: Evaluation, radii: list[float]) -> str:
    """Return how far the attacks might go; where there are several radii the names say so."""
    settings = [value.settings or {} for value in result.robust.values()]
    l2 = sorted({own["epsilon"] for own in settings if own.get("norm") == "l2"})
    words = (
        [] if all(own.get("norm") == "l2" for own in settings) else [", ".join(map(brief, radii))]
    )
    return "epsilon = " + " and ".join(words + [f"{', '.join(map(brief, l2))} in l2"] * bool(l2))


def _eot(result: Evaluation, eot: int) -> str:
    """Return over how many draws gradients were averaged; AutoAttack has a number of its own."""
    ours = any("eot" in (value.settings or {}) for value in result.robust.values())
    return f", EOT over {eot}" * ours + ", AutoAttack's over 20" * (
        "autoattack_rand" in result.robust
    )


def _tell(
    result: Evaluation,
    subject: ModelSource,
    data: str,
    radii: list[float],
    facts: dict[str, Any],
    made: dict[str, Any] | None,
    markdown: Path | None,
    latex: Path | None,
    picture: Path | None,
) -> None:
    clean = "clean" if made is None else "as they are"
    rows, details = evaluation_rows(result, clean=clean), detail_rows(result, clean=clean)
    title = f"{subject.name}{subject.variant} on {data}, {result.natural.images} test images"
    caption = "In %, with 95 % intervals."
    if result.robust:
        caption = f"{caption[:-1]}; {_radius(result, radii)}{_eot(result, facts['eot'])}."
    if made is not None:
        caption += f" The images were attacked by {made['attack']} on {made['model']}."
        caption += " What attacks them again may move as far once more." if result.robust else ""
    if result.natural.draws > 1:
        caption += (
            f" Over {result.natural.draws} draws of the noise an image: accuracy is that of a "
            f"single prediction, averaged that of the mean of {result.natural.draws}; always right "
            "are images right in all draws, lost in k those wrong at least once in k."
        )
    if any("budget" in (value.settings or {}) for value in result.robust.values()):
        caption += " Gradients are those that an image took in the mean, of the budget it had."
    if any(value.claimed is not None for value in result.robust.values()):
        caption += f" {ONE_DRAW}"
    text = f"{title}. {caption}"
    write_text(markdown, as_markdown(rows, caption=text) + "\n" + as_markdown(details))
    write_text(latex, as_latex(rows, caption=text) + "\n" + as_latex(details))
    if picture is not None:
        write_picture(picture, report.convergence_figure(result, title))
    print_table(rows, title=title, caption=caption)
    print_table(
        details,
        caption="ECE: expected calibration error, in points; gradients and forward passes are "
        f"those that the attack took, in the mean over images. Kept in {subject.record.path}",
    )
