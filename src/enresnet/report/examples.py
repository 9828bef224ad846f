"""Which images a page shows of two networks under attack: the first ones, and those that differ.

A network holds an image if it still classifies it correctly after a white-box attack on that
network. Two networks differ on an image that exactly one of them holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Answers:
    """What one network says of N images: the most probable class, and its probability."""

    classes: Tensor
    confidence: Tensor


class Answer(NamedTuple):
    """What one network says of one image."""

    said: int
    confidence: float

    @classmethod
    def at(cls, place: int, answers: Answers) -> Answer:
        """Return the answer at one place of many."""
        return cls(int(answers.classes[place]), float(answers.confidence[place]))


@dataclass(frozen=True)
class Example:
    """A test image, clean and attacked, with the answers of the networks of one seed."""

    row: int  # its place in the test set, from 0
    seed: int
    label: int
    image: Tensor  # C x H x W
    attacked: dict[str, Tensor]  # by the network that was attacked
    clean_answers: dict[str, Answer]
    answers: dict[str, dict[str, Answer]]  # by the attacked network, then by who answers

    def held_by(self, network: str) -> bool:
        """Return whether a network is right on the image that was made against it."""
        return self.answers[network][network].said == self.label


@dataclass(frozen=True)
class Differing:
    """How many images two networks hold, and the images that only one of them holds."""

    both: int
    neither: int
    only: dict[str, list[Example]]  # by the network that holds them, in the order of the data set

    @classmethod
    def among(cls, examples: Sequence[Example], networks: tuple[str, str]) -> Differing:
        """Sort examples by which networks hold them; their order stays."""
        one, two = networks
        only: dict[str, list[Example]] = {one: [], two: []}
        both = neither = 0
        for example in examples:
            first, second = example.held_by(one), example.held_by(two)
            if first and second:
                both += 1
            elif first or second:
                only[one if first else two].append(example)
            else:
                neither += 1
        return cls(both, neither, only)

    @property
    def total(self) -> int:
        """The number of images that exactly one network holds."""
        return sum(map(len, self.only.values()))

    def counts(self) -> dict[str, int]:
        """Return how many images each network alone holds."""
        return {network: len(examples) for network, examples in self.only.items()}

    def first(self, places: int) -> dict[str, list[Example]]:
        """Return the first of each kind, ``places`` in all, in proportion to how many there are.

        A kind that exists has at least one place, so that rounding hides no direction.
        """
        (one, its), (two, others) = self.only.items()
        if self.total <= places:
            return {one: its, two: others}
        share = round(places * len(its) / self.total)
        share = max(min(1, len(its)), min(share, places - min(1, len(others))))
        return {one: its[:share], two: others[: places - share]}
