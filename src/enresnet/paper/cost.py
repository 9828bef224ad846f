"""What a reproduction would cost on this machine, from steps that are measured here.

A few training steps and attack passes of each network are timed on random images, on batches that
grow until a step takes long enough to be timed, and scaled to all images and epochs. The strongest
attack counts as if no image were ever lost, which is the most that it can cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from enresnet.attacks import IFGSM
from enresnet.common.progress import clock
from enresnet.common.tables import Row
from enresnet.data import DataSet, Images
from enresnet.paper import smoke
from enresnet.paper.measurement import Measurement, eot_of, paper_attack
from enresnet.paper.plan import Job
from enresnet.paper.published import Metric, Network
from enresnet.paper.reproduction import Reproduction
from enresnet.paper.setup import Setup
from enresnet.training import Engine, Recipe, RunConfig, Trainer
from enresnet.training.validation import DRAWS

LONG = 0.5  # seconds that a step should take, to be timed
PASSES = 8  # of an attack that is timed
CAPTION = (
    "A training step and an attack pass of each network were timed and scaled to all images and "
    "epochs. The strongest attack counts as if no image were lost before its end: the most it can "
    "cost."
)


@dataclass(frozen=True)
class Shape:
    """How many images a data set has, and how large they are."""

    channels: int
    side: int
    classes: int
    train: int
    validation: int
    test: int


SHAPES = {
    "cifar10": Shape(3, 32, 10, 45_000, 5_000, 10_000),
    "cifar100": Shape(3, 32, 100, 45_000, 5_000, 10_000),
    "digits": Shape(1, 8, 10, *3 * [smoke.TRAIN_IMAGES]),  # as a smoke run has them
}


@dataclass(frozen=True)
class Speed:
    """Seconds that one image takes.

    Attributes:
        step: In a training step.
        gradient: In a pass of an attack.
        forward: In a prediction.
    """

    step: float
    gradient: float
    forward: float

    def __add__(self, other: Speed) -> Speed:
        return Speed(0.0, self.gradient + other.gradient, self.forward + other.forward)


@dataclass(frozen=True)
class JobCost:
    """What a job would cost.

    Attributes:
        job: The job.
        training: Seconds of training, of all networks that it is the first to need.
        measuring: Seconds of attacks and predictions.
    """

    job: Job
    training: float
    measuring: float


def estimate_cost(
    reproduction: Reproduction, *, say: Callable[[str], None] = lambda _: None
) -> list[JobCost]:
    """Return what all that is missing would cost on this machine.

    Args:
        reproduction: What is to be reproduced.
        say: Is given a line on each network before it is timed.

    Returns:
        The cost of each job that has something to do.

    Example::

        from enresnet.paper import Reproduction, Setup, estimate_cost

        found = estimate_cost(Reproduction(["table4"], Setup(recipe="smoke"), only=["resnet20"]))
        print(sum(cost.training + cost.measuring for cost in found), "seconds")
    """
    clocked = _Clocked(reproduction.setup, say)
    begun: set[tuple[Network, int]] = set()
    found = []
    for job in reproduction.jobs:
        training = 0.0
        for network, seed in _trainings(reproduction, job):
            if (network, seed) not in begun:
                begun.add((network, seed))
                training += clocked.training(network)
        measuring = sum(clocked.measuring(job, metric) for metric in _missing(reproduction, job))
        if training or measuring:
            found.append(JobCost(job, training, measuring))
    return found


def cost_rows(costs: list[JobCost]) -> list[Row]:
    """Return a row of words for each network, over all its seeds, and one for the whole."""
    by_row = sorted(costs, key=lambda cost: str(cost.job))
    rows = []
    for name, some in groupby(by_row, key=lambda cost: str(cost.job)):
        own = list(some)
        rows.append(_row(name, " ".join(str(cost.job.seed) for cost in own), own))
    return [*rows, _row("all", "", costs)]


def _row(name: str, seeds: str, costs: list[JobCost]) -> Row:
    training = sum(cost.training for cost in costs)
    measuring = sum(cost.measuring for cost in costs)
    return {
        "network": name,
        "seeds": seeds,
        "training": clock(training),
        "measuring": clock(measuring),
        "together": clock(training + measuring),
    }


def _trainings(reproduction: Reproduction, job: Job) -> list[tuple[Network, int]]:
    """Return the trainings that a job needs and that are not there."""
    setup, found = reproduction.setup, []
    for network in job.networks:
        seeds = setup.part_seeds(network, job.seed)
        parts = list(zip(network.parts, seeds, strict=True))
        if reproduction.index.find(network, job.seed) is None:
            found += [
                (one, seed)
                for one, seed in parts or [(network, job.seed)]
                if reproduction.index.find(one, seed) is None
            ]
    return found


def _missing(reproduction: Reproduction, job: Job) -> list[Metric]:
    run = reproduction.index.find(job.network, job.seed)
    source = None if job.source is None else reproduction.index.find(job.source, job.seed)
    if run is None or (job.source is not None and source is None):
        return list(job.metrics)
    return Measurement(reproduction.setup, run, job.source, source).missing(job.metrics)


class _Clocked:
    """Times each network once."""

    def __init__(self, setup: Setup, say: Callable[[str], None]) -> None:
        self.setup, self._say = setup, say
        self._speeds: dict[tuple[str, Recipe], Speed] = {}

    def speed(self, network: Network) -> Speed:
        if network.parts:
            first, *others = map(self.speed, network.parts)
            return sum(others, first)
        config = self.setup.config(network, 0)
        key = (config.model, config.recipe)
        if key not in self._speeds:
            self._say(f"timing {network.model} ({config.recipe.objective})")
            self._speeds[key] = measure_speed(config)
        return self._speeds[key]

    def training(self, network: Network) -> float:
        config, speed = self.setup.config(network, 0), self.speed(network)
        recipe, shape = config.recipe, SHAPES[config.data]
        epochs = shape.train * recipe.epochs * speed.step * _curriculum(recipe)
        validated = max(1, round((1 - recipe.validate_from) * recipe.epochs))
        attacked = 0 if recipe.objective == "natural" else recipe.steps
        images = min(shape.validation, recipe.validation_images or shape.validation)
        one = attacked * speed.gradient + (1 + bool(attacked)) * DRAWS * speed.forward
        return epochs + validated * images * one

    def measuring(self, job: Job, metric: Metric) -> float:
        setup, shape = self.setup, SHAPES[self.setup.data(job.network.data)]
        images = min(shape.test, setup.images(metric) or shape.test)
        predictions = setup.predictions * self.speed(job.network).forward
        if metric == "natural":
            return images * predictions
        attacked = job.source or job.network
        config = setup.config(attacked, 0)
        attack = paper_attack(setup.attack(metric), setup.epsilon, eot_of(config))
        passes = attack.forward_passes()
        return images * (passes * self.speed(attacked).gradient + predictions)


def _curriculum(recipe: Recipe) -> float:
    """Return what a recipe's changes make of the cost of its first step."""
    small = 1 - 0.75 * recipe.low_resolution  # images of half the side cost a quarter
    if not recipe.final_steps:
        return small
    return small + (1 - recipe.final_from) * ((recipe.final_steps + 1) / 2 - 1)


def measure_speed(config: RunConfig) -> Speed:
    """Return the seconds that an image takes, from the network itself."""
    shape, batch = SHAPES[config.data], 2
    while True:
        data = _random_data(shape, 2 * batch)
        seconds = _step(config, data, batch)
        if seconds > LONG or batch >= config.recipe.batch_size:
            break
        batch = min(4 * batch, config.recipe.batch_size)
    device = Engine().device
    model = config.create_model(data).to(device).eval()
    images, labels = data.train[:batch]
    attack = IFGSM(epsilon=config.recipe.epsilon, steps=PASSES, eot=1)
    gradient = _second(lambda: attack(model, images, labels, progress=False))
    with torch.no_grad():
        forward = _second(lambda: model(images.to(device)).cpu())
    return Speed(seconds / batch, gradient / PASSES / batch, forward / batch)


def _random_data(shape: Shape, images: int) -> DataSet:
    draw = torch.Generator().manual_seed(0)
    size = (images, shape.channels, shape.side, shape.side)
    pixels = torch.randint(256, size, generator=draw, dtype=torch.uint8)
    labels = torch.randint(shape.classes, (images,), generator=draw)
    classes = tuple(map(str, range(shape.classes)))
    some = Images(pixels, labels, classes)
    return DataSet.of(some, some, validation=some)


class _EnoughError(Exception):
    """Ends a training that is only timed."""


def _step(config: RunConfig, data: DataSet, batch: int) -> float:
    """Return the seconds of a training step: the second one, since the first one sets up."""
    # Whatever changes during a training is counted apart.
    recipe = replace(
        config.recipe, batch_size=batch, low_resolution=0.0, epsilon_growth=0.0, final_steps=0
    )
    engine = Engine(precision=config.precision)
    trainer = Trainer(config.create_model(data), data, recipe, engine=engine)
    times = []

    def after_step(_: object) -> None:
        times.append(time.perf_counter())
        if len(times) == 2:
            raise _EnoughError

    try:
        for _ in trainer.epochs(after_step):
            pass
    except _EnoughError:
        pass
    return times[1] - times[0]


def _second(call: Callable[[], object]) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
