"""Natural and robust accuracy, with intervals, of any model on images in [0, 1]."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from enresnet.data import Images
from enresnet.evaluation.accuracy import Accuracy
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.inputs import Attacks, Epsilons, named_attacks
from enresnet.evaluation.journal import Journals
from enresnet.evaluation.matrix import OWN, TransferMatrix
from enresnet.evaluation.options import EvaluationOptions
from enresnet.evaluation.runner import ImageSink, Shard
from enresnet.evaluation.session import Session
from enresnet.models.interface import Model


def evaluate(
    model: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: Attacks = (),
    *,
    epsilon: Epsilons = None,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    seed: int | None = None,
    journal: str | os.PathLike[str] | Journals | None = None,
    shard: Shard | None = None,
    image_sink: ImageSink | None = None,
    natural: Accuracy | None = None,
    warn: bool = True,
    progress: bool | None = None,
) -> Evaluation:
    """Return the accuracy of ``model`` on clean images and under each of ``attacks``.

    The model runs in evaluation mode and is left as it was.

    Args:
        model: From images in [0, 1], N x C x H x W, to logits N x classes.
        dataset: :class:`~enresnet.data.Images`, a pair of tensors or numpy arrays, a
            ``DataLoader``, or any dataset of image/label pairs.
        attacks: One or several, themselves or by name. Attacks of one name are told apart by what
            they differ in, as in "fgsm at 2/255"; a mapping gives them other names.
            By default none: only clean images are scored.
        epsilon: Largest change of a pixel by attacks that are given by name, in units of the range
            [0, 1]; 8/255 by default. The command line takes the one a run was trained against.
            Several, as in ``[2 / 255, 8 / 255]``, run each attack in linf at each of them, as "fgsm
            at 2/255"; clean images are scored once.
        draws: Predictions that every image is scored over; 10 by default, 1 for a deterministic
            model.
        batch_size: Images in one call of the model; 128 by default.
        limit: Use only the first so many images; None, the default, for all.
        seed: Fixes the noise of our networks, torch's global generators and the attacks. By default
            nothing is fixed.
        journal: A folder that keeps results as they come; the same call goes on from there. Needs a
            seed. By default nothing is kept.
        shard: Which of several processes this is, where they share the work through a journal; by
            default there is one.
        image_sink: Is given the attacked images of every batch; by default they are dropped.
        natural: The natural accuracy, on clean images, where it is known already; it is not
            measured again.
        warn: Whether to warn of a model that knows nothing, expects other images or returns
            probabilities; True by default.
        progress: Whether to show progress; None shows it on a terminal and in a notebook.

    Shape:
        - dataset, as a pair: images N x C x H x W, labels N

    Returns:
        The accuracies, each with its interval. It prints as a table.

    Raises:
        ValueError, TypeError: An argument is not what it should be, or the model does not fit the
            data.
        FloatingPointError: The model gives nothing but NaN.
        FileExistsError: The journal is that of another evaluation.

    Example::

        result = enresnet.evaluate(model, (images, labels), ["fgsm", "ifgsm5"], draws=2, seed=0)
        print(result)
    """
    options = EvaluationOptions(
        draws, batch_size, limit, seed, journal, shard, image_sink, warn, progress
    )
    known = None if natural is None else {OWN: natural}
    named = named_attacks(attacks, seed, epsilon=epsilon)
    session = Session.open(model, dataset, options)
    return session.evaluation(session.measure(named, natural=known))


def transfer(
    source: Model,
    target: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: Attacks,
    *,
    epsilon: Epsilons = None,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    seed: int | None = None,
    journal: str | os.PathLike[str] | Journals | None = None,
    shard: Shard | None = None,
    image_sink: ImageSink | None = None,
    natural: Accuracy | None = None,
    warn: bool = True,
    progress: bool | None = None,
) -> Evaluation:
    """Return the accuracy of ``target`` under a transfer attack, the blind one of Sec. 3.2.

    The images are crafted on ``source`` alone and then classified by ``target``.

    Args:
        source: The model that the attacks see; the paper calls it the oracle.
        target: The model that classifies.
        dataset: As for :func:`evaluate`, and so are all arguments that follow.
        attacks: One or several, themselves or by name.
        epsilon: Of attacks that are given by name, one or several; 8/255 by default.
        draws: Predictions that every image is scored over; 10 by default.
        batch_size: Images in one call of a model; 128 by default.
        limit: Use only the first so many images; None, the default, for all.
        seed: Fixes the noise and the attacks; by default nothing is fixed.
        journal: A folder that keeps results as they come; by default nothing is kept.
        shard: Which of several processes this is; by default there is one.
        image_sink: Is given the attacked images of every batch; by default they are dropped.
        natural: The target's natural accuracy, on clean images, where it is known already.
        warn: Whether to warn of a target that seems to be used wrongly; True by default.
        progress: Whether to show progress; None shows it on a terminal and in a notebook.

    Shape:
        - dataset, as a pair: images N x C x H x W, labels N

    Returns:
        The target's accuracies, on clean images and under each attack on the source.

    Raises:
        ValueError, TypeError, FloatingPointError, FileExistsError: As :func:`evaluate`.

    Example::

        source = enresnet.create_model("resnet8")
        print(enresnet.transfer(source, model, (images, labels), "ifgsm5", draws=2))
    """
    options = EvaluationOptions(
        draws, batch_size, limit, seed, journal, shard, image_sink, warn, progress
    )
    session = Session.between({OWN: source}, {OWN: target}, dataset, options)
    known = None if natural is None else {OWN: natural}
    named = named_attacks(attacks, seed, epsilon=epsilon)
    return session.evaluation(session.measure(named, natural=known))


def transfer_matrix(
    sources: Mapping[str, Model],
    targets: Mapping[str, Model],
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: Attacks,
    *,
    epsilon: Epsilons = None,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    seed: int | None = None,
    journal: str | os.PathLike[str] | Journals | None = None,
    shard: Shard | None = None,
    image_sink: ImageSink | None = None,
    natural: Mapping[str, Accuracy] | None = None,
    warn: bool = True,
    progress: bool | None = None,
) -> TransferMatrix:
    """Return the accuracy of every target under every attack on every source (Tables 3 and 6).

    Every attack is crafted once for each source and scored by all targets.

    Args:
        sources: The models that the attacks see, by name; the paper's oracles.
        targets: The models that classify, by name.
        dataset: As for :func:`evaluate`, and so are all arguments that follow.
        attacks: One or several, themselves or by name.
        epsilon: Of attacks that are given by name, one or several; 8/255 by default.
        draws: Predictions that every image is scored over; 10 by default.
        batch_size: Images in one call of a model; 128 by default.
        limit: Use only the first so many images; None, the default, for all.
        seed: Fixes the noise and the attacks; by default nothing is fixed.
        journal: A folder that keeps results as they come; by default nothing is kept.
        shard: Which of several processes this is; by default there is one.
        image_sink: Is given the attacked images of every batch; by default they are dropped.
        natural: Natural accuracies, on clean images, by target, where they are known already.
        warn: Whether to warn of a target that seems to be used wrongly; True by default.
        progress: Whether to show progress; None shows it on a terminal and in a notebook.

    Shape:
        - dataset, as a pair: images N x C x H x W, labels N

    Returns:
        The accuracies. It prints as a table for each attack.

    Raises:
        ValueError, TypeError, FloatingPointError, FileExistsError: As :func:`evaluate`.

    Example::

        models = {"resnet8": enresnet.create_model("resnet8"), "noisy": model}
        print(enresnet.transfer_matrix(models, models, (images, labels), "ifgsm5", draws=2))
    """
    options = EvaluationOptions(
        draws, batch_size, limit, seed, journal, shard, image_sink, warn, progress
    )
    for name, models in (("sources", sources), ("targets", targets)):
        if not isinstance(models, Mapping):
            raise TypeError(
                f"{name} must be models by name, such as {{'plain': model}}, found a "
                f"{type(models).__name__}"
            )
    named = named_attacks(attacks, seed, epsilon=epsilon)
    return Session.between(sources, targets, dataset, options).measure(named, natural=natural)
