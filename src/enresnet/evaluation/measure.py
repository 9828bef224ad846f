"""Natural and robust accuracy, with intervals, of any model on images in [0, 1].

The prediction of a randomised model is a distribution, so every clean and attacked image is scored
over ``draws`` repeated predictions with fresh noise. A model that answers twice the same on the
first batch, on some images from all over the data and near to them, and on a few of them many times
over, is taken for deterministic and asked once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from enresnet.attacks import Attack, determinism
from enresnet.attacks.determinism import EOT, LOOK
from enresnet.attacks.inputs import check_classes, check_model_and_images, explained
from enresnet.attacks.known_networks import is_deterministic, our_network
from enresnet.attacks.registry import attack_at, told_apart
from enresnet.common import checks
from enresnet.data import DataSet, Images, from_dataset
from enresnet.evaluation.accuracy import summarise
from enresnet.evaluation.journal import Journal, Journals
from enresnet.evaluation.misuse import suspicions
from enresnet.evaluation.result import NATURAL, Accuracy, Evaluation
from enresnet.evaluation.runner import ImageSink, Runner, Shard, own_streams
from enresnet.evaluation.scoring import answers_alike, drawn_logits
from enresnet.evaluation.statistics import accuracy_interval
from enresnet.models.interface import Model

OWN = "model"  # the only one of an evaluation

Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, str | Attack]
"""One attack or several, themselves or by name, or with the names that results are to have."""


def evaluate(
    model: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: Attacks = (),
    *,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    seed: int | None = None,
    journal: str | os.PathLike[str] | Journals | None = None,
    share: Shard | None = None,
    keep: ImageSink | None = None,
    natural: Accuracy | None = None,
    warn: bool = True,
    progress: bool | None = None,
) -> Evaluation:
    """Return the accuracy of ``model`` on clean images and under each of ``attacks``.

    ``dataset`` is :class:`~enresnet.data.Images`, a pair of tensors, or any dataset of image/label
    pairs. The model runs in evaluation mode and is left as it was. ``seed`` fixes the noise of our
    networks and the attacks; ``journal``, a folder, keeps results as they come, and the same call
    goes on from there. ``keep`` is given the attacked images of every batch. ``warn=False`` does
    without the warnings that a model knows nothing, expects other images or returns probabilities.

    Attacks of one name are told apart by what they differ in, as in "fgsm at 2/255"; a mapping
    gives them other names. ``natural``, where it is known already, is not measured again.
    """
    return transfer(
        model,
        model,
        dataset,
        attacks,
        draws=draws,
        batch_size=batch_size,
        limit=limit,
        seed=seed,
        journal=journal,
        share=share,
        keep=keep,
        natural=natural,
        warn=warn,
        progress=progress,
    )


def transfer(
    oracle: Model,
    target: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: Attacks,
    *,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    seed: int | None = None,
    journal: str | os.PathLike[str] | Journals | None = None,
    share: Shard | None = None,
    keep: ImageSink | None = None,
    natural: Accuracy | None = None,
    warn: bool = True,
    progress: bool | None = None,
) -> Evaluation:
    """Return the accuracy of ``target`` under the blind attack (Sec. 3.2).

    The images are crafted on ``oracle`` alone and then classified by ``target``.
    """
    clean, robust = transfer_matrix(
        {OWN: oracle},
        {OWN: target},
        dataset,
        attacks,
        draws=draws,
        batch_size=batch_size,
        limit=limit,
        seed=seed,
        journal=journal,
        share=share,
        keep=keep,
        natural=None if natural is None else {OWN: natural},
        warn=warn,
        progress=progress,
    )
    return Evaluation(clean[OWN], {name: cells[OWN, OWN] for name, cells in robust.items()})


def transfer_matrix(
    oracles: Mapping[str, Model],
    targets: Mapping[str, Model],
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: Attacks,
    *,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    seed: int | None = None,
    journal: str | os.PathLike[str] | Journals | None = None,
    share: Shard | None = None,
    keep: ImageSink | None = None,
    natural: Mapping[str, Accuracy] | None = None,
    warn: bool = True,
    progress: bool | None = None,
) -> tuple[dict[str, Accuracy], dict[str, dict[tuple[str, str], Accuracy]]]:
    """Return each target's natural accuracy, and by attack that of each target for each oracle.

    Every attack is crafted once for each oracle and scored by all targets (Tables 3 and 6).
    """
    checks.integer("draws", draws, low=1)
    checks.integer("batch_size", batch_size, low=1)
    data = as_images(dataset).first(limit)
    named = _named(attacks, seed)
    first, labels = data.batch(slice(batch_size))
    same, eot = {}, {}
    with own_streams([*targets.values(), *oracles.values()], seed) as reseed:
        reseed("first look")
        for name, model in targets.items():
            check_model_and_images(model, first[:1], labels[:1])
            _check_classes(model, data, first)
            same[name] = answers_alike(model, first) and looks_deterministic(model, data)
        if any(attack.eot is None for attack in named.values()):
            reseed("draws of a gradient")
            eot = {name: usual_eot(model, data) for name, model in oracles.items()}
        for name, model in targets.items() if warn else ():
            for suspicion in suspicions(model, data):  # before hours of work, not after
                warnings.warn(_about(name, str(suspicion)), stacklevel=2)
    needed = {name: 1 if same[name] else draws for name in targets}
    work = Runner(
        oracles,
        targets,
        data,
        named,
        needed,
        batch_size,
        seed,
        natural=natural is None,
        keep=keep,
        eot=eot,
    )
    book = None if journal is None else _opened(journal, work.header())
    results = work.do(journal=book, share=share, progress=progress)

    def gathered(oracle: str, name: str, target: str) -> Accuracy:
        found = results[oracle, name]
        used = None if name == NATURAL else work.attack_on(oracle, named[name])
        return summarise(
            found.scored[target],
            data,
            seconds=found.seconds,
            apart=same[target] or our_network(targets[target]) is not None,
            deterministic=same[target],
            attack=None if used is None else repr(used),
            settings=None if used is None else used.settings(),
            claimed=found.claimed,
            gradients=found.gradients,
            evaluations=found.evaluations,
        )

    clean = natural or {name: gathered("", NATURAL, name) for name in targets}
    robust = {
        attack: {
            (oracle, target): gathered(oracle, attack, target)
            for oracle in oracles
            for target in targets
        }
        for attack in named
    }
    for name, value in clean.items():
        if warn and natural is None:
            warn_of_chance(name, value, data)
        _warn_of_bad(name, [value, *(cells[o, name] for cells in robust.values() for o in oracles)])
    return dict(clean), robust


def _opened(journal: str | os.PathLike[str] | Journals, header: dict[str, Any]) -> Journal:
    return journal.open(header) if isinstance(journal, Journals) else Journal(journal, header)


def _about(name: str, sentence: str) -> str:
    """Return a sentence with the name of the model it is about, where there are several."""
    return sentence if name == OWN else f"{name}: {sentence}"


def warn_of_chance(name: str, natural: Accuracy, data: Images) -> None:
    """Say when a model does no better on clean images than one that knows nothing."""
    if not knows_nothing(natural, data):
        return
    who = "the model" if name == OWN else name
    warnings.warn(
        f"{who} classifies clean images at chance level ({100 * natural.accuracy:.1f} %). Images "
        "are given in [0, 1]: does it expect them otherwise, or normalise them twice? Are the "
        "classes in the same order as the labels?",
        stacklevel=3,
    )


def _warn_of_bad(name: str, found: Sequence[Accuracy]) -> None:
    bad = sum(value.bad for value in found)
    if bad:
        who = "the model" if name == OWN else name
        total = sum(value.images * value.draws for value in found)
        warnings.warn(
            f"{who} gave NaN in {bad} of {total} predictions; they count as wrong", stacklevel=3
        )


def looks_deterministic(model: Model, data: Images) -> bool:
    """Return whether a model answers the same, as far as can be seen.

    Twice on some images from the first to the last, and on images near them: noise may show only
    where no clean image is. On a few many times: a call's noise may be the same for all its images.
    """
    if is_deterministic(model):
        return True
    few, _ = data.batch(torch.linspace(0, len(data) - 1, min(LOOK, len(data))).long())
    return determinism.looks_deterministic(model, few)


def usual_eot(model: Model, data: Images) -> int:
    """Return how many draws a gradient needs: 1 for a model that always answers the same."""
    return 1 if looks_deterministic(model, data) else EOT


@contextmanager
def _first_look(model: Model, images: Tensor) -> Iterator[None]:
    """Say what the images are like, should a model not take them."""
    try:
        yield
    except RuntimeError as error:
        raise explained(error, model, images) from error


def as_images(dataset: Any) -> Images:
    """Return labelled images from what holds them.

    Args:
        dataset: :class:`Images`; a pair of images N x C x H x W and class numbers, tensors or numpy
            arrays, uint8 from 0 to 255 or floating point in [0, 1]; a ``DataLoader``; or any
            dataset of image/label pairs.
    """
    if isinstance(dataset, Images):
        return dataset
    if isinstance(dataset, DataSet):
        raise TypeError(
            "dataset must be images to test on; found a DataSet of training, validation and test "
            "images: hand over its .test"
        )
    if isinstance(dataset, DataLoader):
        return _from_loader(dataset)
    if isinstance(dataset, tuple | list) and len(dataset) == 2 and _is_array(dataset[0]):
        images, labels = (_tensor(part) for part in dataset)
        if len(images) == 0:
            raise ValueError("dataset must hold at least one image, found none")
        if images.dtype == torch.uint8:
            check_classes("labels", labels, images)
        else:
            check_model_and_images(as_images, images, labels)
        classes = tuple(str(number) for number in range(int(labels.max()) + 1))
        return Images(images, labels.long(), classes)
    return from_dataset(dataset)


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _tensor(value: Any) -> Any:
    """Return an array as a tensor; what is neither is left to the checks."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="))))
    return torch.tensor(value) if isinstance(value, list) else value


def _from_loader(loader: DataLoader[Any]) -> Images:
    """Return the images that a loader gives, in the dataset's order where it gives all."""
    plain = (SequentialSampler, RandomSampler)
    own_batches = type(loader.batch_sampler) not in (BatchSampler, type(None))
    whole = type(loader.sampler) in plain and len(loader.sampler) == len(loader.dataset)  # type: ignore[arg-type]
    if whole and not own_batches and loader.collate_fn is default_collate and not loader.drop_last:
        return from_dataset(loader.dataset)
    images, labels = [], []
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(
                "dataset must be a DataLoader of batches of images and labels, found a "
                f"{type(batch).__name__}"
            )
        images.append(batch[0])
        labels.append(torch.as_tensor(batch[1]))
    if not images:
        raise ValueError("dataset must hold at least one image, found none")
    return as_images((torch.cat(images), torch.cat(labels)))


def _check_classes(model: Model, data: Images, images: Tensor) -> None:
    with _first_look(model, images):
        (logits,) = drawn_logits(model, images, 1)
    if logits.isnan().any(dim=1).all():
        raise FloatingPointError("model gives NaN: its weights or the images are not finite")
    classes = logits.shape[1]
    named = any(name != str(number) for number, name in enumerate(data.classes))
    if classes < len(data.classes) or (named and classes != len(data.classes)):
        raise ValueError(
            f"the model tells {classes} classes apart, the data has {len(data.classes)} "
            f"({', '.join(data.classes[:3])}, ...): give it the data it was trained for, or wrap "
            "it in a function that returns the logits of these classes"
        )


def knows_nothing(natural: Accuracy, data: Images) -> bool:
    """Return whether a model does no better than always naming the most frequent class.

    Its robust accuracy would mean nothing. Of fewer than a hundred images nothing is said.
    """
    chance = float(torch.bincount(data.labels).max()) / len(data)
    low, _ = accuracy_interval(natural.scores, 0.99)
    return len(data) >= 100 and chance < 0.75 and low <= chance


def _named(attacks: Attacks, seed: int | None) -> dict[str, Attack]:
    """Return the attacks by the names that their results get."""
    if isinstance(attacks, str | Attack):
        attacks = [attacks]
    names = list(attacks) if isinstance(attacks, Mapping) else None
    given = attacks.values() if isinstance(attacks, Mapping) else attacks
    made = [attack_at(one, seed=seed) if isinstance(one, str) else one for one in given]
    for attack in made:
        if not isinstance(attack, Attack):
            raise TypeError(
                f"attacks must be names such as 'fgsm' or Attack objects such as FGSM(), found "
                f"{attack!r}"
            )
        if attack.goal == "targeted" and attack.chosen_targets is None:
            raise ValueError(
                f"{attack.name} needs targets: an evaluation knows the labels alone, and towards "
                f"those an attack helps the model; name it {attack.name}_random, _least_likely, "
                "_runner_up or _all, or choose them by --targets or targets='random'"
            )
    if names is None:
        return told_apart(made)
    for name in names:
        if not isinstance(name, str) or name in ("", NATURAL):
            raise ValueError(f"attacks must be named by words other than {NATURAL}, found {name!r}")
    return dict(zip(names, made, strict=True))
