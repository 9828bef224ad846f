"""The networks that can be compared: each ensemble in the package beside its plain network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from enresnet.data import load_data
from enresnet.data.registry import is_local
from enresnet.models import ModelCard, is_noisy, list_pretrained, load_model

if TYPE_CHECKING:
    from torch import nn

    from enresnet.data import Images


@dataclass(frozen=True, eq=False)
class Pair:
    """A plain network and a Feynman-Kac ensemble that were trained on the same images.

    Attributes:
        base: The card of the plain network, which always answers the same.
        ensemble: The card of the ensemble, which draws noise in every answer.

    Example::

        from enresnet.demo import list_pairs

        pair = list_pairs()[0]
        print(pair.name, pair.epsilon, len(pair.test_images()))
    """

    base: ModelCard
    ensemble: ModelCard

    @property
    def name(self) -> str:
        """Both networks, and what they were trained on."""
        (base, trained), (ensemble, other) = (
            card.name.split("@") for card in (self.base, self.ensemble)
        )
        if trained == other:
            return f"{base} and {ensemble}, trained on {trained}"
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
        return _model(self.base.name), _model(self.ensemble.name)

    def has_test_images(self) -> bool:
        """Return whether the test images are on this machine; the demo downloads nothing."""
        return is_local(self.ensemble.data)

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
        return _test_images(self.ensemble.data).in_terms_of(self.classes)


@cache
def _model(name: str) -> nn.Module:
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


def _network(card: ModelCard) -> str:
    return card.name.partition("@")[0]


def _trained(card: ModelCard) -> str:
    return card.name.partition("@")[2]
