"""Weights that come with the package, by name: ``en2_resnet20@cifar10-long``.

Before the ``@`` stands the network, after it what it was trained on and by which recipe. Each file
has a card beside it: where it comes from, what was measured of it, and the digest by which it is
checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from enresnet.common import checks
from enresnet.models.names import canonical_name

FOLDER = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Measured:
    """One accuracy of a network, with what it was measured by."""

    images: str  # clean, or the name of the attack
    number: int  # of test images
    accuracy: float  # of a single prediction
    interval: tuple[float, float]  # 95 %
    draws: int  # predictions an image, of a noisy network
    attack: str | None  # with its settings


@dataclass(frozen=True)
class ModelCard:
    """What there is to know of shipped weights."""

    name: str  # NETWORK@TRAINED
    sha256: str  # of the file
    parameters: int
    data: str  # the data set it was trained and measured on
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]  # C, H, W
    recipe: dict[str, Any]
    command: str  # that trained it
    seed: int
    commit: str  # of the code that trained it
    kept: str  # which epoch, and why
    passes: float  # forward and backward passes over the data
    hours: float  # that the training took
    processor: str
    measured: tuple[Measured, ...]

    @property
    def path(self) -> Path:
        """The file of its weights."""
        network, _, trained = self.name.partition("@")
        return FOLDER / trained / f"{network}.safetensors"

    def accuracy(self, images: str) -> Measured | None:
        """Return what was measured on clean images, or under an attack, if it was."""
        return next((value for value in self.measured if value.images == images), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ModelCard:
        """Return what :meth:`to_json` stored."""
        measured = tuple(
            Measured(**{**value, "interval": tuple(value["interval"])})
            for value in values["measured"]
        )
        tuples = {name: tuple(values[name]) for name in ("classes", "image_shape")}
        return cls(**{**values, **tuples, "measured": measured})


def list_pretrained() -> list[ModelCard]:
    """Return the cards of all weights that come with the package, sorted by name."""
    cards = [ModelCard.from_json(json.loads(path.read_text())) for path in FOLDER.glob("*/*.json")]
    return sorted(cards, key=lambda card: (card.name.partition("@")[2], card.parameters, card.name))


def find_pretrained(name: str) -> ModelCard:
    """Return the card of ``NETWORK@TRAINED``; an unknown name gets near matches.

    Raises:
        ValueError: The package has no such weights, or their file is not what it was.
    """
    network, _, trained = name.partition("@")
    wanted = f"{canonical_name(network)}@{trained}"
    cards = {card.name: card for card in list_pretrained()}
    if wanted not in cards:
        raise ValueError(
            f"no weights named {name!r} come with the package: there are {', '.join(cards)}"
            + checks.did_you_mean(wanted, list(cards))
        )
    card = cards[wanted]
    try:
        found = hashlib.sha256(card.path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise ValueError(f"{card.path} is missing: install the package again") from None
    if found != card.sha256:
        raise ValueError(
            f"{card.path} is damaged: its SHA-256 is {found}, not {card.sha256}; install the "
            "package again"
        )
    return card
