"""What an evaluation is given, as it works with it: labelled images, and attacks with names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

from enresnet.attacks import DEFAULT_EPSILON, Attack, attack_at
from enresnet.attacks.ifgsm import check_epsilon
from enresnet.attacks.inputs import check_classes, check_model_and_images
from enresnet.attacks.registry import name_at, with_distinct_names
from enresnet.common.text import brief
from enresnet.data import DataSet, Images, from_dataset
from enresnet.evaluation.accuracy import NATURAL

Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, str | Attack]
"""One attack or several, themselves or by name, or with the names that results are to have."""

Epsilons = float | Sequence[float] | None
"""The radius in linf of attacks that are given by name, several, or the usual one."""


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
        return as_images(loader.dataset)
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


def named_attacks(
    attacks: Attacks, seed: int | None, *, epsilon: Epsilons = None
) -> dict[str, Attack]:
    """Return the attacks by the names that their results get.

    ``epsilon`` is for attacks by name. At several radii those in linf are made once for each, and
    called as on the command line.
    """
    if isinstance(attacks, str | Attack):
        attacks = [attacks]
    if isinstance(attacks, type) or not isinstance(attacks, Iterable):
        what = f"the class {attacks.__name__}" if isinstance(attacks, type) else repr(attacks)
        raise TypeError(
            f"attacks must be names such as 'fgsm' or Attack objects such as FGSM(), found {what}"
        )
    names = list(attacks) if isinstance(attacks, Mapping) else None
    given = list(attacks.values() if isinstance(attacks, Mapping) else attacks)
    radii = _radii(epsilon)
    if epsilon is not None and not any(isinstance(one, str) for one in given):
        raise ValueError("epsilon is for attacks by name; attack objects have their own")
    for name in names or ():
        if not isinstance(name, str) or name in ("", NATURAL):
            raise ValueError(f"attacks must be named by words other than {NATURAL}, found {name!r}")
    made: list[Attack] = []
    called: list[str | None] = []  # None where what it is called depends on the others
    for number, one in enumerate(given):
        own = None if names is None else names[number]
        several = isinstance(one, str) and "_l2" not in one and len(radii) > 1
        for radius in radii if several else radii[:1]:
            made.append(attack_at(one, radius, seed=seed) if isinstance(one, str) else one)
            called.append(name_at(own or made[-1].name, radius) if several else own)
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
    distinct = with_distinct_names(made) if None in called else made
    found: dict[str, Attack] = {}
    for attack, own, usual in zip(made, called, distinct, strict=True):
        name = str(usual) if own is None else own
        if name in found:
            raise ValueError(f"attacks must be told apart by their names, found {name!r} twice")
        found[name] = attack
    return found


def _radii(epsilon: Any) -> list[float]:
    """Return the radii in linf that attacks are at."""
    if epsilon is None:
        return [DEFAULT_EPSILON["linf"]]
    several = isinstance(epsilon, Sequence | np.ndarray) and not isinstance(epsilon, str)
    if not several:
        return [epsilon]  # what is no number the attacks refuse
    given = np.atleast_1d(epsilon) if isinstance(epsilon, np.ndarray) else epsilon
    radii = [check_epsilon(radius, "linf") for radius in given]
    if not radii or len(set(radii)) < len(radii):
        shown = ", ".join(map(brief, radii)) or "none"
        raise ValueError(f"epsilon must be a radius or several, each once, found {shown}")
    return radii
