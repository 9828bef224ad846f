"""The networks that can be compared: each ensemble in the package beside its plain network.

Two runs that the user names make a pair too (run_network.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from enresnet.data import load_data
from enresnet.data.registry import is_local
from enresnet.demo.run_network import RunNetwork
from enresnet.models import ModelCard, is_noisy, list_pretrained, load_model
from enresnet.training import Run

if TYPE_CHECKING:
    from torch import nn

    from enresnet.data import Images


@dataclass(frozen=True, eq=False)
class Pair:
    """A plain network and a Feynman-Kac ensemble that were trained on the same images.

    Attributes:
        base: The plain network, which always answers the same: its card, or that of a run.
        ensemble: The ensemble, which draws noise in every answer, alike.

    Example::

        from enresnet.demo import list_pairs

        pair = list_pairs()[0]
        print(pair.name, pair.epsilon, len(pair.test_images()))
    """

    base: ModelCard | RunNetwork
    ensemble: ModelCard | RunNetwork

    @property
    def name(self) -> str:
        """Both networks, and what they were trained on."""
        names = f"{_network(self.base)} and {_network(self.ensemble)}"
        if isinstance(self.ensemble, RunNetwork):  # whose folder is shown beside its answers
            return f"{names} (runs on {Path(self.ensemble.data).name})"
        if _trained(self.base) == _trained(self.ensemble):
            return f"{names} ({_trained(self.base)})"
        return f"{self.base.name} and {self.ensemble.name}"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.ensemble.classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """C, H and W of the images."""
        return self.ensemble.image_shape

    @property
    def epsilon(self) -> int:
        """The radius that the ensemble was trained against, in grey levels of 255."""
        return round(255 * float(self.ensemble.recipe["epsilon"]))

    def models(self) -> tuple[nn.Module, nn.Module]:
        """Return the plain network and the ensemble, loaded once."""
        return _model(self.base), _model(self.ensemble)

    def has_test_images(self) -> bool:
        """Return whether the test images are on this machine; the demo downloads nothing."""
        return not isinstance(self.ensemble, ModelCard) or is_local(self.ensemble.data)

    def test_images(self) -> Images:
        """Return the test images, read once.

        Raises:
            ValueError: They are not on this machine, or their file is damaged.
        """
        if not self.has_test_images():
            data = self.ensemble.data
            raise ValueError(
                f"{data} is not on this machine: run enresnet data {data}, or upload an image"
            )
        own = self.ensemble
        images = _test_images(own.data) if isinstance(own, ModelCard) else own.images
        return images.in_terms_of(self.classes)


def _model(network: ModelCard | RunNetwork) -> nn.Module:
    return _pretrained(network.name) if isinstance(network, ModelCard) else network.model


@cache
def _pretrained(name: str) -> nn.Module:
    return load_model(name).eval()


@cache
def _test_images(data: str) -> Images:
    return load_data(data).test


def list_pairs(cards: Sequence[ModelCard] | None = None) -> list[Pair]:
    """Return every ensemble beside the plain network that it is an ensemble of.

    An ensemble whose own plain network is not there is compared with every plain network that was
    trained in the same way or, failing that, on the same images.

    Args:
        cards: The networks; by default those that come with the package.

    Returns:
        The pairs, in the order of the cards.

    Example::

        from enresnet.demo import list_pairs

        print([pair.name for pair in list_pairs()])
    """
    cards = list_pretrained() if cards is None else cards
    plain = [card for card in cards if not is_noisy(_network(card))]
    return [
        Pair(base, card)
        for card in cards
        if is_noisy(_network(card))
        for base in _partners(card, plain)
    ]


def pair_of_runs(
    first: str | os.PathLike[str], second: str | os.PathLike[str], *, trust_code: bool = False
) -> Pair:
    """Return the networks of two runs as a pair, in whatever order they are named.

    Args:
        first: The folder of a run.
        second: The folder of another run on the same images; one of the two networks has noise.
        trust_code: True imports and runs the code that builds a network, where a run names some.

    Returns:
        The pair, the network without noise as its base.

    Raises:
        FileNotFoundError: A folder is not a run, or has no network yet.
        ValueError: The runs are of different images, both networks or neither have noise, or the
            images are not on this machine.

    Example::

        from enresnet.demo import pair_of_runs

        try:
            pair = pair_of_runs("runs/resnet20", "runs/en2_resnet20")
        except FileNotFoundError as error:
            print(error)
    """
    runs = [Run.open(folder) for folder in (first, second)]
    for name in ("data", "size", "gray", "limit"):
        values = [getattr(run.config, name) for run in runs]
        if values[0] != values[1]:
            raise ValueError(
                "networks must be two runs on the same images, found "
                + " and ".join(
                    f"{run.folder} with {name} {value}"
                    for run, value in zip(runs, values, strict=True)
                )
            )
    if not is_local(runs[0].config.data):
        data = runs[0].config.data
        raise ValueError(f"{data} is not on this machine: run enresnet data {data} first")
    images = runs[0].config.load_data().test
    one, two = (RunNetwork.of(run, images, trust_code=trust_code) for run in runs)
    if one.noisy == two.noisy:
        found = "two with noise" if one.noisy else "two without noise"
        raise ValueError(
            "networks must be a plain network and an ensemble, which has noise; found "
            f"{found}: {one.name} and {two.name}"
        )
    if one.classes != two.classes:
        raise ValueError(
            f"networks must tell the same classes apart; {one.name} and {two.name} do not"
        )
    return Pair(two, one) if one.noisy else Pair(one, two)


def _partners(ensemble: ModelCard, plain: Sequence[ModelCard]) -> list[ModelCard]:
    same = [
        card
        for card in plain
        if (card.classes, card.image_shape) == (ensemble.classes, ensemble.image_shape)
        and card.data == ensemble.data
    ]
    alike = [card for card in same if _trained(card) == _trained(ensemble)] or same
    own = _network(ensemble).partition("_")[2]  # en3_resnet8 is an ensemble of resnet8
    return [card for card in alike if _network(card) == own] or alike


def _network(card: ModelCard | RunNetwork) -> str:
    return card.name.partition("@")[0]


def _trained(card: ModelCard | RunNetwork) -> str:
    return card.name.partition("@")[2]
