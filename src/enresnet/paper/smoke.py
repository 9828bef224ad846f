"""What stands in for the paper's networks, data and attacks in a smoke run, all in one place.

A smoke run walks the whole way from an empty folder to every table, figure and claim, in minutes
and without CIFAR. Its numbers mean nothing, and every caption says so.
"""

from __future__ import annotations

import re
from typing import TypedDict

from enresnet.training import Recipe, load_recipe
from enresnet.training.recipe import ObjectiveName

NAME = "smoke"
DATA = "digits"  # for CIFAR-10 and CIFAR-100
TRAIN_IMAGES = 40  # and as many to validate and to test on
SEEDS = (0, 1)
CAPTION = (
    "SMOKE RUN: small networks, trained for one epoch on a few digits and attacked in a few steps. "
    "The figures mean nothing."
)

# Base networks, by what takes their place: less deep and less wide.
BASES = {
    "resnet20": "resnet8",
    "resnet32": "resnet14",
    "resnet44": "resnet14",
    "resnet110": "resnet14",
    "wrn14_2": "wrn10_2",
    "wrn34_10": "wrn10_2",
}
MEMBERS = {5: 3}
# The strongest attack takes no fewer than a hundred gradients an image.
ATTACKS = {"fgsm": "fgsm", "ifgsm20": "ifgsm2", "cw": "cw2", "strongest": "pgd2"}
ATTACKED_IMAGES = 8
DRAWS = 2  # predictions of each image


class Figure4Size(TypedDict):
    """How finely Figure 4 is solved."""

    size: int
    steps: int
    points: int


FIGURE4: Figure4Size = {"size": 16, "steps": 40, "points": 100}


def stand_in(model: str) -> str:
    """Return the network that takes a network's place, such as en3_resnet8 for en5_resnet20."""

    def part(name: str) -> str:
        match = re.fullmatch(r"(?:en(\d+)_)?(.*)", name)
        assert match is not None
        members = "" if match[1] is None else f"en{MEMBERS.get(int(match[1]), int(match[1]))}_"
        return members + BASES[match[2]]

    return "+".join(map(part, model.split("+")))


def smoke_recipe(objective: ObjectiveName = "pgd") -> Recipe:
    """Return how the networks are trained."""
    return load_recipe("quickstart", objective=objective, epochs=1, batch_size=32, steps=1)
