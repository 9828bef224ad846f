"""How a reproduction trains and measures: the recipe and what follows from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from enresnet.common import checks
from enresnet.common.text import brief
from enresnet.paper import smoke
from enresnet.paper.published import Metric, Network, Training, load_paper
from enresnet.training import Recipe, RunConfig, load_recipe
from enresnet.training.recipe import name_of

WEIGHT_STEP = 0.1  # of learned weights: the paper does not say
PARTNER = 100  # added to the seed of a part that would begin with the weights of another part
SEEDS = (0, 1, 2)
STRONGEST_IMAGES = 500


def base_of(network: Network) -> str:
    """Return the name of a network's members: resnet20 of en2_resnet20."""
    return re.sub(r"^en\d+_", "", network.model)


@dataclass(frozen=True)
class Setup:
    """How a reproduction trains and measures.

    Attributes:
        recipe: The recipe of robust training: a name such as ``"paper"`` or ``"fast"``, the path of
            a YAML file, or ``"smoke"``; ``"paper"`` by default.
        natural_recipe: The recipe of natural training; by default ``"natural"``, or
            ``"natural_fast"`` where the robust one is short too (its schedule is one_cycle).
        seeds: The seeds; by default 0, 1 and 2, of a smoke run 0 and 1.
        limit: The most test images that are attacked; all by default.
        strongest: The most test images for the strongest attack, which takes long; 500 by default,
            0 leaves it out.
        draws: Predictions that every image is scored over; 10 by default. A smoke run has 2.
        recipes: The recipes of robust and of natural training themselves, in place of their names;
            None, the default, loads those.
        seeds_named: Whether ``seeds`` were given.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A number is out of range, a seed is given twice, or a recipe is unknown or
            trains otherwise than its place in the tables says.

    Example::

        from enresnet.paper import Setup

        setup = Setup(recipe="fast", seeds=(0, 1), limit=1000)
        print(setup.recipe_for("robust").epochs, setup.images("ifgsm20"))  # 21 1000
    """

    recipe: str = "paper"
    natural_recipe: str = ""
    seeds: Sequence[int] = ()
    limit: int | None = None
    strongest: int = STRONGEST_IMAGES
    draws: int = 10
    recipes: tuple[Recipe, Recipe] | None = None
    seeds_named: bool = field(init=False, default=False)
    _loaded: tuple[Recipe, Recipe] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        default = smoke.SEEDS if self.smoke else SEEDS
        if not (self.natural_recipe or self.smoke or self.recipes):
            short = load_recipe(self.recipe).ends_at_zero
            object.__setattr__(self, "natural_recipe", "natural_fast" if short else "natural")
        object.__setattr__(self, "seeds_named", bool(self.seeds))
        object.__setattr__(self, "seeds", tuple(self.seeds) or default)
        for seed in self.seeds:
            checks.integer("seeds", seed, low=0)
            if seed >= PARTNER:
                raise ValueError(f"seeds must be below {PARTNER}, found {seed}")
        if len(set(self.seeds)) < len(self.seeds):
            shown = " ".join(map(str, self.seeds))
            raise ValueError(f"seeds must name every seed once, found {shown}")
        if self.limit is not None:
            checks.integer("limit", self.limit, low=2)
        checks.integer("strongest", self.strongest, low=0)
        checks.integer("draws", self.draws, low=1)
        loaded = self.recipes or _load(self.recipe, self.natural_recipe)
        for option, recipe in zip(("recipe", "natural_recipe"), loaded, strict=True):
            _check_role(option, recipe)
        object.__setattr__(self, "_loaded", loaded)

    @property
    def smoke(self) -> bool:
        """Whether small networks and few images stand in for the paper's."""
        return self.recipe == smoke.NAME

    @property
    def name(self) -> str:
        """The name of its folder of results; a recipe of a file has a digest in it."""
        return self.recipe if self.smoke else _folder_name(self.recipe, self._loaded[0])

    @property
    def natural_name(self) -> str:
        """The name of the folder of naturally trained runs."""
        return _folder_name(self.natural_recipe, self._loaded[1])

    def recipe_for(self, training: Training) -> Recipe:
        """Return the recipe of a training."""
        robust, natural = self._loaded
        if training == "natural":
            return natural
        if training == "trades":  # the same schedule with another objective
            return replace(robust, objective="trades", beta=6.0, final_steps=0)
        if training == "without_noise":
            return replace(robust, noise=0.0)
        if training == "learned_weights":
            return replace(robust, weight_step=WEIGHT_STEP)
        return robust

    def config(self, network: Network, seed: int) -> RunConfig:
        """Return what a run of a network is configured as; that of an integrated one has parts."""
        return RunConfig(
            model=smoke.stand_in(network.model) if self.smoke else network.model,
            data=self.data(network.data),
            recipe=self.recipe_for(network.training),
            seed=seed,
            limit=smoke.TRAIN_IMAGES if self.smoke else None,
        )

    def data(self, name: str) -> str:
        """Return the data set that takes the place of the paper's."""
        return smoke.DATA if self.smoke else name

    def place(self, network: Network, seed: int) -> Path:
        """Return where a run lies below the folder of a reproduction."""
        natural = network.training == "natural" and not self.smoke
        recipe = self.natural_name if natural else self.name
        own = "-natural" if network.training == "natural" and self.smoke else ""
        return Path(network.data, recipe, f"{network.key}{own}-seed{seed}")

    def part_seeds(self, network: Network, seed: int) -> list[int]:
        """Return the seeds of the parts of an integrated network.

        With one seed, networks of one base would begin with the same weights, and would hardly be
        trained separately: the later ones have another.
        """
        seen: dict[str, int] = {}
        found = []
        for part in network.parts:
            base = base_of(part)
            found.append(seed + PARTNER * seen.get(base, 0))
            seen[base] = seen.get(base, 0) + 1
        return found

    def attack(self, metric: Metric) -> str:
        """Return the name in results of the attack that a metric is under."""
        return smoke.ATTACKS[metric] if self.smoke and metric != "natural" else metric

    def images(self, metric: Metric) -> int | None:
        """Return the most test images that a metric is measured on; None for all."""
        if metric == "natural":
            return None
        limits = [self.limit, self.strongest if metric == "strongest" else None]
        if self.smoke:
            limits.append(smoke.ATTACKED_IMAGES)
        return min((limit for limit in limits if limit is not None), default=None)

    def metrics(self, metrics: Sequence[Metric], *, white_box: bool) -> tuple[Metric, ...]:
        """Return what is measured where the paper has some metrics: also the strongest attack."""
        extra: tuple[Metric, ...] = ("strongest",) if white_box and self.strongest else ()
        return (*metrics, *extra)

    @property
    def predictions(self) -> int:
        """How many predictions of each image are scored."""
        return smoke.DRAWS if self.smoke else self.draws

    @property
    def epsilon(self) -> float:
        """How far attacks may move a pixel, as in the paper, whatever networks are trained at."""
        return self._loaded[0].epsilon if self.smoke else load_paper().epsilon

    @property
    def epsilon_words(self) -> str:
        """A sentence on how far attacks may move a pixel."""
        words = f"All attacks but C&W may move a pixel by epsilon = {brief(self.epsilon)}"
        if self.smoke:
            return f"{words}; in the paper by {brief(load_paper().epsilon)}."
        trained = self.recipe_for("robust").epsilon
        other = "" if trained == self.epsilon else f"; robust training by {brief(trained)}"
        return f"{words}, as in the paper{other}."

    @property
    def caption(self) -> str:
        """How the figures came about, in sentences."""
        if self.smoke:
            return f"{smoke.CAPTION} {self.epsilon_words}"
        recipe, natural = self.recipe_for("robust"), self.recipe_for("natural")
        return (
            f"Robust training: recipe {self.name}, {recipe.epochs} epochs of {recipe.objective}; "
            f"natural training: recipe {self.natural_name}, {natural.epochs} epochs. "
            "The paper: 200 epochs of PGD-10. Gradients of networks with noise are averaged over 5 "
            f"draws, as in the paper. {self.epsilon_words} Means over the seeds, with "
            "95 % intervals over seeds and images; with one seed, over images alone."
        )


def _load(robust: str, natural: str) -> tuple[Recipe, Recipe]:
    if robust == smoke.NAME:
        return smoke.smoke_recipe(), smoke.smoke_recipe("natural")
    return load_recipe(robust), load_recipe(natural)


def _check_role(option: str, recipe: Recipe) -> None:
    """Raise if tables would show networks of a recipe under a heading that is not theirs."""
    natural = option == "natural_recipe"
    if natural and recipe.objective != "natural":
        wrong = f"objective {recipe.objective}"
        do = "name a recipe with objective natural, such as natural or natural_fast"
    elif not natural and recipe.objective == "natural":
        wrong = "objective natural"
        do = "name one that trains on attacked images, such as paper or fast, or use natural_recipe"
    elif not natural and recipe.objective == "trades":
        wrong = "objective trades"
        do = "name another, such as paper; rows of TRADES get its schedule with that objective"
    elif recipe.noise == 0:
        wrong = "noise 0"
        do = "give it noise, such as 0.1; rows without noise leave it out themselves"
    elif recipe.weight_step:
        wrong = f"weight_step {recipe.weight_step:g}"
        do = "set it to 0; rows with learned weights have it themselves"
    else:
        return
    how = "naturally" if natural else "robustly"
    raise ValueError(f"{option} must train networks {how}, with noise; found {wrong}: {do}")


def _folder_name(name: str, recipe: Recipe) -> str:
    """Return what folders of a recipe are called.

    A file may have the name of another recipe, or change: its name alone would mix their results.
    """
    stem = Path(name).stem
    if stem == name or name_of(recipe) == stem:
        return stem
    text = json.dumps(asdict(recipe), sort_keys=True)
    return f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
