"""Weights that come with the package, by name: ``en2_resnet20@cifar10-long``.

Before the ``@`` stands the network, after it what it was trained on and by which recipe. Each file
has a card beside it: where it comes from, what was measured of it, and the digest by which it is
checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from enresnet.common import checks
from enresnet.models.names import canonical_name

FOLDER = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Measured:
    """One accuracy of a network, and how it was measured.

    Attributes:
        images: ``"clean"``, or the name of the attack.
        number: The number of test images.
        accuracy: The share of single predictions that are right, from 0 to 1.
        interval: Its 95 % confidence interval.
        draws: Predictions of each image; 1 for a network without noise.
        attack: The attack with its settings; None for clean images.
    """

    images: str
    number: int
    accuracy: float
    interval: tuple[float, float]
    draws: int
    attack: str | None


@dataclass(frozen=True)
class ModelCard:
    """Describes weights that come with the package: their origin and their measured accuracy.

    Attributes:
        name: NETWORK@TRAINED, such as ``"en3_resnet8@digits"``.
        sha256: The digest of the file of weights.
        parameters: The number of parameters.
        data: The data set that the network was trained and measured on.
        classes: The names of the classes.
        image_shape: C, H and W of the images.
        recipe: The settings of the training.
        command: The command that trained the network.
        seed: The seed of the training.
        commit: The commit of the code that trained it.
        kept: Which epoch's weights these are, and why.
        passes: Forward and backward passes over the training images.
        hours: The hours that the training took.
        processor: The hardware it ran on.
        measured: The measured accuracies; :meth:`accuracy` finds one.
        chosen: How it was chosen among trainings that differ in their seed, a sentence; empty if
            there was one.

    Example::

        from enresnet.models import find_pretrained

        card = find_pretrained("en3_resnet8@digits")
        print(card.accuracy("clean").accuracy, card.command)
    """

    name: str
    sha256: str
    parameters: int
    data: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    recipe: dict[str, Any]
    command: str
    seed: int
    commit: str
    kept: str
    passes: float
    hours: float
    processor: str
    measured: tuple[Measured, ...]
    chosen: str = ""

    @property
    def path(self) -> Path:
        """The file of its weights."""
        network, _, trained = self.name.partition("@")
        return FOLDER / trained / f"{network}.safetensors"

    def accuracy(self, images: str) -> Measured | None:
        """Return the accuracy on ``"clean"`` images or under an attack; None if not measured."""
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
    """Return the cards of all weights that come with the package.

    Returns:
        One card a file, those for small images first, sorted by training and then by number of
        parameters.

    Example::

        for card in enresnet.list_pretrained():
            print(card.name, card.parameters)
    """
    cards = [_read_card(path) for path in FOLDER.glob("*/*.json")]

    def rank(card: ModelCard) -> tuple[int, str, int, str]:
        training = card.name.partition("@")[2]
        return math.prod(card.image_shape), training, card.parameters, card.name

    return sorted(cards, key=rank)


def _read_card(path: Path) -> ModelCard:
    """Return the card in a file; raise if it is damaged."""
    try:
        return ModelCard.from_json(json.loads(path.read_text()))
    except (ValueError, TypeError, LookupError, AttributeError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); install the package again") from error


def find_pretrained(name: str) -> ModelCard:
    """Return the card of the weights ``NETWORK@TRAINED``, after a check of their file's digest.

    Args:
        name: Such as ``"en3_resnet8@digits"``. The network may have any spelling that
            :func:`~enresnet.models.create_model` takes.

    Returns:
        The card; its ``path`` is the file.

    Raises:
        ValueError: The package has no such weights (the error names near matches), or their file is
            missing or damaged.

    Example::

        from enresnet.models import find_pretrained

        print(find_pretrained("en3_resnet8@digits").path)
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
