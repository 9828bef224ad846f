"""Objectives, and trainings that tests start, stop and compare."""

from dataclasses import replace

import torch
from safetensors.torch import load_file

from enresnet.training import Callback, Recipe
from enresnet.training.objectives import OBJECTIVES
from problems import SmallNet, random_problem, seeded

RECIPE = Recipe(epsilon=0.1, step_size=0.03, steps=3)
IMAGES, LABELS = random_problem((6, 3, 8, 8))
QUICK = Recipe(epochs=2, steps=2, epsilon=0.1, step_size=0.05, batch_size=32)
TRAIN = "train --model en1_resnet8 --data digits --recipe fast --epsilon 0.1 --batch-size 32"


ANSWERS = torch.randn(6, 4, generator=seeded(8)).log_softmax(dim=1)  # of a teacher on IMAGES
TAUGHT = [name for name, kind in OBJECTIVES.items() if kind.needs_teacher]


def objective(name, seed=3, **changes):
    if name in TAUGHT:
        changes["teacher"] = "one"
    made = OBJECTIVES[name](replace(RECIPE, objective=name, **changes), seeded(seed))
    made.answers = ANSWERS if name in TAUGHT else None
    return made


def quiet_net():
    model = SmallNet().train()
    model.dropout.p = 0.0
    return model


def assert_same_weights(run, other):
    """Raise if the networks of two runs differ in any bit."""
    for name in ("best.safetensors", "last/model.safetensors"):
        torch.testing.assert_close(load_file(run / name), load_file(other / name), rtol=0, atol=0)


class StopError(Exception):
    """Ends a training as a crash would."""


class StopAt(Callback):
    """Ends a training as a crash would, without a last word."""

    def __init__(self, step, action=None):
        self.at, self.action = step, action

    def begin(self, run, trainer, epochs, resumed):  # noqa: ARG002
        self.trainer, self.resumed = trainer, resumed

    def step(self, step):  # noqa: ARG002
        if self.trainer.steps_done == self.at:
            if self.action is None:
                raise StopError
            self.action()
