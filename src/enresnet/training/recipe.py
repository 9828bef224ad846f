"""A recipe: all that decides how a network is trained, read from a commented YAML file.

Every field can be overridden; an unknown field is an error that names the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from enresnet.common import checks
from enresnet.common.reading import parse_yaml, read_yaml
from enresnet.models.architecture import STD_OVER

# The objectives by name: a recipe is read without their classes, which need torch.
TAUGHT = ("rslad", "rslad_one_step")  # learn a teacher's answers
ONE_STEP = ("n_fgsm", "fgsm_rs", "rslad_one_step")  # attack by a single step
OBJECTIVE_NAMES = ("natural", "pgd", "trades", "mart", "n_fgsm", "fgsm_rs", *TAUGHT)
SCHEDULES = ("step", "one_cycle")
MEMORIES = ("auto", "lean", "plain")


def _field(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. The defaults are the paper's (Secs. 3.3 and 4.1)."""

    objective: str = _field(
        "pgd",
        "What is minimised: natural, pgd, trades, mart, n_fgsm, fgsm_rs, rslad or rslad_one_step.",
    )
    epochs: int = _field(200, "Passes over the training images.")
    batch_size: int = _field(128, "Images a step.")
    learning_rate: float = _field(0.1, "Rate of SGD: at the start, or at the peak of one_cycle.")
    schedule: str = _field("step", "How the rate changes: step, or one_cycle.")
    milestones: tuple[float, ...] = _field(
        (0.4, 0.6, 0.8), "Fractions of the epochs at which step divides the rate by 10."
    )
    warm_up: float = _field(0.2, "Fraction of the epochs in which one_cycle rises.")
    momentum: float = _field(0.9, "Nesterov momentum of SGD.")
    reset_momentum: bool = _field(False, "Forget the momentum after every epoch.")
    weight_decay: float = _field(5e-4, "Weight decay.")
    label_smoothing: float = _field(0.0, "Share of the label spread over all classes.")
    ema: float = _field(0.0, "Decay of the averaged weights that are validated and kept; 0: none.")
    awp: bool = _field(False, "Adversarial weight perturbation around the objective.")
    awp_gamma: float | None = _field(
        None, "Its size, in units of the weights' norm; by default 0.01, with trades 0.005."
    )
    teacher: str | None = _field(
        None, "The run or safetensors file whose answers rslad learns; by default none."
    )
    beta: float | None = _field(
        None, "Weight of the second term; by default 6 for trades, 5 for mart."
    )
    epsilon: float = _field(8 / 255, "Largest change of a pixel by the attack in training.")
    step_size: float = _field(2 / 255, "Step of the attack in training.")
    steps: int = _field(10, "Steps of the attack in training and validation.")
    attack_mode: str = _field("eval", "BatchNorm during the attack in training: eval, or train.")
    noise: float = _field(0.1, "The paper's a: noise of networks created as enK_.")
    std_over: str = _field("example", "Noise scales with the std of an example, or of the batch.")
    compensate: bool = _field(
        False, "Give each member its own gradient, which averaging multiplies by its weight."
    )
    weight_step: float = _field(
        0.0, "Step, once an epoch, of the learned weights of parts joined by +; 0: equal."
    )
    memory: str = _field(
        "auto", "Members' activations: plain (all at once), lean (one at a time), or auto."
    )
    augment: bool = _field(True, "Random crops and mirror images, where the data allow them.")
    shift: float | None = _field(
        None, "Largest random shift in units of the side; none: what the data have, mostly 1/8."
    )
    epsilon_growth: float = _field(0.0, "Fraction of the epochs in which epsilon grows from 0.")
    final_steps: int = _field(
        0, "Steps of PGD that a one-step objective ends with; 0: one step to the end."
    )
    final_from: float = _field(0.8, "Fraction of the epochs before those steps.")
    low_resolution: float = _field(
        0.0, "Fraction of the epochs, the first ones, with images of half the side."
    )
    validation_images: int | None = _field(
        None, "Validate on the first so many images only; where an epoch is selected, on all."
    )
    validate_from: float = _field(0.0, "Fraction of the epochs before the first validation.")

    def __post_init__(self) -> None:
        checks.choice("objective", self.objective, OBJECTIVE_NAMES)
        checks.choice("schedule", self.schedule, SCHEDULES)
        checks.choice("attack_mode", self.attack_mode, ("eval", "train"))
        checks.choice("memory", self.memory, MEMORIES)
        if self.objective in TAUGHT and not self.teacher:
            raise ValueError(
                f"teacher must be given with objective={self.objective}: a run's folder or a "
                "safetensors file"
            )
        if not isinstance(self.teacher, str | None):
            raise TypeError(
                f"teacher must be the path of a run or of a safetensors file, found "
                f"{checks.brief(self.teacher)}"
            )
        for name in ("epochs", "batch_size", "steps"):
            checks.integer(name, getattr(self, name), low=1)
        checks.choice("std_over", self.std_over, STD_OVER)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be true or false, found {getattr(self, name)!r}")
        for name in ("learning_rate", "weight_decay", "step_size", "noise", "weight_step"):
            checks.number(name, getattr(self, name), low=0)
        checks.integer("final_steps", self.final_steps, low=0)
        if self.shift is not None:
            checks.number("shift", self.shift, low=0, high=1)
        for name in (
            *("epsilon", "label_smoothing", "validate_from"),
            *("epsilon_growth", "final_from", "low_resolution"),
        ):
            checks.number(name, getattr(self, name), low=0, high=1)
        for name in ("momentum", "ema"):  # at 1 nothing would ever move
            checks.number(name, getattr(self, name), low=0, high=0.999999)
        checks.number("warm_up", self.warm_up, low=0.001, high=0.999)
        for name in ("beta", "awp_gamma"):
            if getattr(self, name) is not None:
                checks.number(name, getattr(self, name), low=0)
        if self.validation_images is not None:
            checks.integer("validation_images", self.validation_images, low=1)
        for milestone in self.milestones:
            checks.number("milestones", milestone, low=0, high=1)

    @property
    def ends_at_zero(self) -> bool:
        """Whether the rate ends at zero, so that the last network is the one to keep."""
        return self.schedule == "one_cycle"

    def rate_at(self, epoch: int, within: float, steps: int) -> float:
        """Return the learning rate when a share ``within`` of an epoch's ``steps`` is done.

        ``step`` changes it between epochs, ``one_cycle`` with every step.
        """
        if self.schedule == "step":
            done = epoch / self.epochs
            return step_rate(done, base=self.learning_rate, milestones=self.milestones)
        # Half a step back: neither the first nor the last rate is 0.
        done = (epoch + within - 0.5 / steps) / self.epochs
        return one_cycle_rate(done, peak=self.learning_rate, warm_up=self.warm_up)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "milestones": list(self.milestones)}


def step_rate(done: float, *, base: float, milestones: Sequence[float]) -> float:
    """Return ``base`` divided by 10 for every milestone passed (Sec. 4.1).

    The paper's 80, 120 and 160 of 200 epochs are the milestones 0.4, 0.6 and 0.8.
    """
    # A hair of tolerance: 0.6 of 35 epochs is a little more than 21 in floating point.
    passed = sum(done >= milestone - 1e-9 for milestone in milestones)
    return base / math.pow(10, passed)


def one_cycle_rate(done: float, *, peak: float, warm_up: float) -> float:
    """Return a rate that rises in a line to ``peak`` at ``warm_up``, and falls in a line to 0."""
    if done < warm_up:
        return peak * done / warm_up
    return peak * (1 - done) / (1 - warm_up)


def list_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    files = resources.files("enresnet.training.recipes").iterdir()
    return sorted(Path(file.name).stem for file in files if file.name.endswith(".yaml"))


def load_recipe(name: str, **overrides: Any) -> Recipe:
    """Return a recipe by its name, or from the path of a YAML file, with fields overridden.

    Another epsilon brings its step with it, in the recipe's proportion, unless that is given too.
    """
    if name in list_recipes():
        text = (resources.files("enresnet.training.recipes") / f"{name}.yaml").read_text()
        values = parse_yaml(text, name=f"recipe {name}")
    elif Path(name).suffix in (".yaml", ".yml"):
        values = read_yaml(name, name=f"recipe {name}")
    else:
        known = list_recipes()
        raise ValueError(
            f"unknown recipe {name!r}: known are {', '.join(known)}, or the path of a YAML file"
            + checks.did_you_mean(name, known)
        )
    recipe = recipe_from(values or {}, where=f"recipe {name}")
    changes = _plain_values(overrides, where="the overrides")
    if "epsilon" in changes and "step_size" not in changes and recipe.epsilon > 0:
        checks.number("epsilon", changes["epsilon"], low=0, high=1)
        changes["step_size"] = recipe.step_size * changes["epsilon"] / recipe.epsilon
    changed = replace(recipe, **changes)
    _check_used(changed, changes)
    return changed


def _check_used(recipe: Recipe, changes: dict[str, Any]) -> None:
    """Raise if a field was given that the rest of the recipe leaves idle."""
    for name, (field_name, words) in _USED_WITH.items():
        found = getattr(recipe, field_name)
        if name in changes and changes[name] is not None and found not in words:
            wanted = " or ".join(str(word).lower() for word in words)
            raise ValueError(f"{name} is for {field_name}={wanted}; found {field_name}={found}")
    if changes.get("label_smoothing") and recipe.objective in TAUGHT:
        raise ValueError(
            f"label_smoothing is for labels; {recipe.objective} learns a teacher's answers"
        )
    if "final_from" in changes and not recipe.final_steps:
        raise ValueError("final_from is for final_steps above 0; found final_steps=0")


# A field that has a say only where another has one of these values.
_USED_WITH: dict[str, tuple[str, tuple[Any, ...]]] = {
    "beta": ("objective", ("trades", "mart")),
    "teacher": ("objective", TAUGHT),
    "awp_gamma": ("awp", (True,)),
    "milestones": ("schedule", ("step",)),
    "warm_up": ("schedule", ("one_cycle",)),
    "validation_images": ("schedule", ("one_cycle",)),
    "final_steps": ("objective", ONE_STEP),
    "shift": ("augment", (True,)),
}


def recipe_from(values: object, *, where: str) -> Recipe:
    """Return the recipe that plain values describe; numbers may be written as 8/255."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be a list of field: value, found {checks.brief(values)}")
    return Recipe(**_plain_values(values, where=where))


def _plain_values(values: dict[str, Any], *, where: str) -> dict[str, Any]:
    known = {spec.name: spec for spec in fields(Recipe)}
    for key in values:
        if key not in known:
            raise ValueError(
                f"{where} has an unknown field {checks.brief(key)}"
                f"{checks.did_you_mean(key, known)} Known are {', '.join(known)}"
            )
    return {key: _plain(key, value, where) for key, value in values.items()}


def ratio(text: str) -> float:
    """Return a number written as 0.03, 6e-4 or 8/255."""
    try:
        above, _, below = text.partition("/")
        return float(above) / float(below) if below else float(above)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{checks.brief(text)} is not a number such as 0.03 or 8/255") from None


_WORDS = ("objective", "teacher", "schedule", "attack_mode", "std_over", "memory")
_SWITCHES = ("reset_momentum", "awp", "compensate", "augment")


def _plain(key: str, value: object, where: str) -> Any:
    if key in _SWITCHES and not isinstance(value, bool):
        raise ValueError(f"{where}: {key} must be true or false, found {checks.brief(value)}")
    if key == "milestones":
        if not isinstance(value, list | tuple):
            raise ValueError(
                f"{where}: milestones must be a list such as [0.5], found {checks.brief(value)}"
            )
        return tuple(_plain("milestone", item, where) for item in value)
    if isinstance(value, str) and key not in _WORDS:
        try:
            return ratio(value)
        except ValueError as error:
            raise ValueError(f"{where}: {key} {error}") from None
    return value
