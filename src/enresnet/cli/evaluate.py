"""``enresnet evaluate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

import enresnet.data
from enresnet import evaluation, report, training
from enresnet.cli.attack_choice import AttackOptions
from enresnet.cli.model_source import ModelSource, open_model
from enresnet.cli.options import Flat
from enresnet.cli.output import Tables, say, write_picture
from enresnet.common.processes import first_process
from enresnet.common.tables import print_table
from enresnet.evaluation.accuracy import NATURAL
from enresnet.evaluation.captions import details_caption, evaluation_caption

if TYPE_CHECKING:
    from enresnet.evaluation import Accuracy

JOURNAL = "evaluation.journal"
PAPER = ("fgsm", "ifgsm20", "cw")  # the attacks by default
CURVE = ("ifgsm20", "fmn100")  # and those of a curve


def command(
    model: tyro.conf.Positional[str],
    *,
    attacks: tuple[str, ...] | None = None,
    data: str | None = None,
    size: int | None = None,
    gray: bool = False,
    strength: Annotated[AttackOptions, Flat],
    budget: int = 1000,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    trust_code: bool = False,
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
    tables: Annotated[Tables, Flat],
    picture: Path | None = None,
    curve: Path | None = None,
) -> None:
    """Measure natural and robust accuracy on test images, with 95 % intervals.

    Results are stored in evaluation.json in the run's folder, and in a journal beside it as they
    come. If the command is killed, the same command resumes where it stopped. What was measured
    before is not measured again.

    Args:
        model: A run's folder, a safetensors file, a folder for the Hugging Face Hub, or
            module.path:name of a model or of a function that builds one, from images in [0, 1] to
            logits.
        attacks: Names of attacks, see enresnet attacks; by default fgsm, ifgsm20 and cw, or none
            on images that are already adversarial.
        data: Test on these images, a name or a folder, rather than on the run's own.
        size: Side in pixels to which the images of a folder are resized and cropped; by default as
            in the run's training, else 32.
        gray: Read the images of a folder as grayscale.
        strength: How strong the attacks are.
        budget: Gradient evaluations per image that strongest may use.
        mean: For a model of your own, module.path:name: the mean to subtract from images in [0, 1],
            one number per channel or one for all.
        std: The standard deviation to divide by afterwards, in the same form.
        trust_code: Import and run the code that a run names as its network, module.path:name.
        noise: Noise of our networks, if different from that in training; 0 switches it off.
        average: Average an ensemble's logits, or its probabilities; by default as it was trained.
        paths: Noisy passes of every member averaged inside one prediction; 1 by default.
        draws: Predictions per image over which a noisy model is scored.
        checkpoint: Which network of a run: best or last.
        limit: Use only the first LIMIT test images; training with --limit leaves no more.
        batch_size: Images per batch.
        seed: Fixes the attacks and the noise.
        devices: Processes that share the work.
        again: Measure again what was measured before; --save and --picture imply it.
        restart: Discard what an earlier run of this command left unfinished.
        out: Keep results in this folder; by default the run's, or evaluations/NAME.
        save: Save the attacked images as sets in this folder, for use with --data.
        png: Save them as 8-bit PNG files, rounded inside the ball and scored again.
        tables: Files that are also written.
        picture: Plot accuracy against the number of draws, as PNG or SVG.
        curve: Plot accuracy against epsilon under each attack, as PNG or SVG, and print it: at each
            --epsilon, by default 11 from 0 to twice the one used in training. FMN takes one run
            for all. The default attacks are then ifgsm20 and fmn100.
    """
    from enresnet.evaluation.adversarial_sets import AdversarialSets, with_eight_bit
    from enresnet.evaluation.curve import without_single_images

    tables.check(picture, curve)
    strength.check()
    if png and save is None:
        raise ValueError("--png is for --save: it says how the attacked images are kept")
    source = open_model(
        model, checkpoint=checkpoint, out=out, mean=mean, std=std, trust_code=trust_code
    )
    source = source.varied(noise=noise, average=average, paths=paths)
    source.record.check()
    name, images = _test_images(source, data, size, gray)
    is_set = enresnet.data.is_adversarial_set(Path(name))
    attacked = enresnet.data.describe_adversarial_set(Path(name)) if is_set else None
    attacks = _named(attacks, curve, attacked)
    journals = evaluation.Journals(source.folder / JOURNAL, restart=restart)
    options = evaluation.EvaluationOptions(draws, batch_size, limit, seed, journals)
    session = evaluation.Session.open(source.model, images, options)
    eot = strength.eot or session.usual_eot()
    choose = strength.choose if curve is None else strength.choose_for_curve
    chosen = choose(attacks, usual=source.epsilon, eot=eot, seed=seed, budget=budget)
    radii = strength.radii(chosen, usual=source.epsilon)
    facts = source.facts(name) | {"weights": session.identity().digest, "eot": eot}
    facts |= options.conditions()
    made = (session.data, chosen, facts)
    sets = None if save is None else AdversarialSets.at(save, *made, png=png)
    engine = training.Engine(devices=devices)
    engine.launch()
    options = replace(options, shard=engine.shard, image_sink=sets, warn=attacked is None)
    session = replace(session, options=options)
    source.folder.mkdir(parents=True, exist_ok=True)
    sections = source.sections(name, session, chosen, radii, facts)
    known = {} if again or sets or picture else sections.known(engine.shard)
    measured = {one.name: one.attack for one in chosen}
    known = known if curve is None else without_single_images(known, measured)
    if known and not engine.rank:
        _tell_known(known, [one.name for one in chosen], certain=session.identity().certain)
    known = known if session.identity().certain else {}
    result = session.complete(measured, known)
    if engine.rank:
        return
    if sets is not None and png:
        result = with_eight_bit(result, session, chosen, sets)
    for word in [*sections.add(result), *session.finish(measured)]:
        say(word, error=True)
    clean = "clean" if attacked is None else "as they are"
    rows, details = result.table(clean=clean), result.details(clean=clean)
    title = f"{source.name}{source.variant} on {name}, {result.natural.images} test images"
    caption = evaluation_caption(result, radii=radii, eot=eot, attacked=attacked)
    values = {**result.to_json(), **facts, "epsilon": radii[0] if len(radii) == 1 else radii}
    if curve is not None:
        line = evaluation.AccuracyCurve.of(result, measured, strength.curve_radii(source.epsilon))
        values, rows, caption = {**values, "curve": line.to_json()}, line.table(), line.caption()
        write_picture(curve, report.curve_figure(line, title, trained=source.epsilon))
    tables.write(values, {f"{title}. {caption}": rows, "": details})
    if picture is not None:
        write_picture(picture, report.convergence_figure(result, title))
    print_table(rows, title=title, caption=caption)
    print_table(details, caption=details_caption(source.record.path))


def _named(
    attacks: tuple[str, ...] | None, curve: Path | None, attacked: object
) -> tuple[str, ...]:
    """Return the names of the attacks, or the usual ones; images attacked already get none."""
    if attacks is None:
        attacks = () if attacked else PAPER if curve is None else CURVE
    if curve is not None and not attacks:
        raise ValueError("--curve needs attacks: name some in --attacks, such as fmn100")
    return attacks


def _test_images(
    source: ModelSource, data: str | None, size: int | None, gray: bool
) -> tuple[str, enresnet.data.Images]:
    """Return the images and what they are called; say where a run's own limit cuts them too."""
    name, images = source.images(data, size=size, gray=gray)
    config = None if source.run is None else source.run.config
    if config is not None and config.limit is not None and name == config.data and first_process():
        say(
            f"{source.source} was trained with --limit {config.limit}, which holds for its test "
            f"images too: there are {len(images)}",
            error=True,
        )
    return name, images


def _tell_known(known: dict[str, Accuracy], names: list[str], *, certain: bool) -> None:
    """Say which results are those of an earlier evaluation."""
    shown = ", ".join("clean images" if name == NATURAL else name for name in known)
    if not certain:
        say(
            f"measured before, and now again: {shown}. The model answers at random, and not from "
            "torch's generators, so we cannot tell whether those results are its own",
            error=True,
        )
        return
    left = "" if NATURAL not in known or set(names) - set(known) else "; nothing is left to measure"
    say(
        f"measured before, with the same weights, images and settings: {shown}{left} (--again "
        "measures anew)",
        error=True,
    )
