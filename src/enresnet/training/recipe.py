"""A recipe: all that decides how a network is trained, read from a commented YAML file.

Every field can be overridden; an unknown field is an error that names the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, TypedDict, Unpack, get_args

from enresnet.common import checks
from enresnet.common.reading import parse_yaml, read_yaml
from enresnet.common.text import brief
from enresnet.models.architecture import STD_OVER, StdOver

ObjectiveName = Literal[
    "natural", "pgd", "trades", "mart", "n_fgsm", "fgsm_rs", "rslad", "rslad_one_step"
]
"""What training minimises. A recipe is read without the objectives' classes, which need torch."""

Schedule = Literal["step", "one_cycle"]
"""How the learning rate changes."""

AttackMode = Literal["eval", "train"]
"""The mode of BatchNorm while training attacks its images."""

Memory = Literal["auto", "lean", "plain"]
"""Whether the activations of an ensemble's members are kept one at a time or all at once."""

OBJECTIVE_NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
TAUGHT: tuple[ObjectiveName, ...] = ("rslad", "rslad_one_step")  # learn a teacher's predictions
ONE_STEP: tuple[ObjectiveName, ...] = ("n_fgsm", "fgsm_rs", "rslad_one_step")  # one-step attack
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
ATTACK_MODES: tuple[AttackMode, ...] = get_args(AttackMode)
MEMORIES: tuple[Memory, ...] = get_args(Memory)


def _field(default: Any, text: str) -> Any:
    """Return a field with its description, which the docstring and the command line show."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. The defaults are the paper's (Secs. 3.3 and 4.1).

    :func:`load_recipe` returns one by name. Each field carries its own description, which
    ``enresnet train --help`` shows too.

    Attributes:
        {attributes}

    Raises:
        TypeError: A field has the wrong type.
        ValueError: A field is out of range or is not one of its choices, or ``objective`` learns
            from a teacher and ``teacher`` is not given.

    Example::

        recipe = enresnet.Recipe(objective="trades", epochs=60, batch_size=64)
        print(recipe.rate_at(epoch=30, within=0.0, steps=100))  # 0.01: one of three milestones
    """

    objective: ObjectiveName = _field(
        "pgd",
        f"What is minimised: {', '.join(OBJECTIVE_NAMES[:-1])} or {OBJECTIVE_NAMES[-1]}.",
    )
    epochs: int = _field(200, "Passes over the training images.")
    batch_size: int = _field(128, "Images per step.")
    learning_rate: float = _field(0.1, "Rate of SGD: at the start, or at the peak of one_cycle.")
    schedule: Schedule = _field("step", "How the rate changes: step, or one_cycle.")
    milestones: tuple[float, ...] = _field(
        (0.4, 0.6, 0.8), "Fractions of the epochs at which step divides the rate by 10."
    )
    warm_up: float = _field(0.2, "Fraction of the epochs in which one_cycle rises.")
    momentum: float = _field(0.9, "Nesterov momentum of SGD.")
    reset_momentum: bool = _field(False, "Reset the momentum after every epoch.")
    weight_decay: float = _field(5e-4, "Weight decay.")
    label_smoothing: float = _field(0.0, "Share of the label spread over all classes.")
    ema: float = _field(0.0, "Decay of the averaged weights that are validated and kept; 0: none.")
    awp: bool = _field(False, "Adversarial weight perturbation around the objective.")
    awp_gamma: float | None = _field(
        None, "Its size, in units of the weights' norm; by default 0.01, with trades 0.005."
    )
    teacher: str | None = _field(
        None, "The run or safetensors file that rslad distils from; by default none."
    )
    beta: float | None = _field(
        None, "Weight of the second term; by default 6 for trades, 5 for mart."
    )
    epsilon: float = _field(8 / 255, "Largest change of a pixel by the attack in training.")
    step_size: float = _field(2 / 255, "Step of the attack in training.")
    steps: int = _field(10, "Steps of the attack in training and validation.")
    attack_mode: AttackMode = _field(
        "eval", "BatchNorm during the attack in training: eval, or train."
    )
    noise: float = _field(0.1, "The paper's a: noise of networks such as en5_resnet20.")
    std_over: StdOver = _field(
        "example", "Noise scales with the std of an example, or of the batch."
    )
    compensate: bool = _field(
        False, "Give each member its own gradient, which averaging multiplies by its weight."
    )
    weight_step: float = _field(
        0.0, "Step, once an epoch, of the learned weights of parts joined by +; 0: equal."
    )
    memory: Memory = _field(
        "auto", "Members' activations: plain (all at once), lean (one at a time), or auto."
    )
    augment: bool = _field(True, "Random crops and mirror images, where the data allow them.")
    shift: float | None = _field(
        None, "Largest random shift in units of the side; none: the data set's own, mostly 1/8."
    )
    epsilon_growth: float = _field(0.0, "Fraction of the epochs in which epsilon grows from 0.")
    final_steps: int = _field(
        0, "PGD steps in the last epochs of a one-step objective; 0: one step to the end."
    )
    final_from: float = _field(0.8, "Fraction of the epochs before these PGD steps begin.")
    low_resolution: float = _field(
        0.0,
        "Fraction of the epochs, at the start, with images of half the side, if that is at least 8 "
        "pixels and the network takes them.",
    )
    validation_images: int | None = _field(
        None, "Validate only on the first N images; if validation selects the epoch, on all."
    )
    validate_from: float = _field(0.0, "Fraction of the epochs before the first validation.")

    def __post_init__(self) -> None:
        checks.choice("objective", self.objective, OBJECTIVE_NAMES)
        checks.choice("schedule", self.schedule, SCHEDULES)
        checks.choice("attack_mode", self.attack_mode, ATTACK_MODES)
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
        """Return the learning rate when a fraction ``within`` of an epoch's ``steps`` is done.

        The schedule ``step`` changes it between epochs, ``one_cycle`` with every step. Epochs count
        from 0.
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


def _attributes(indent: int) -> str:
    """Return the description of every field, from its help text and its default."""
    lines = []
    for spec in fields(Recipe):
        text = spec.metadata["help"]
        if spec.default is not None:  # otherwise the text says what None means
            text += f" Default: {brief(spec.default)}."
        lines += wrap(f"{spec.name}: {text}", 100 - indent, subsequent_indent=" " * 4)
    return f"\n{' ' * indent}".join(lines)


if Recipe.__doc__:  # absent under python -OO
    Recipe.__doc__ = Recipe.__doc__.replace("{attributes}", _attributes(8))


class RecipeOptions(TypedDict, total=False):
    """The fields of a :class:`Recipe` that :func:`load_recipe` may override."""

    objective: ObjectiveName
    epochs: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    milestones: Sequence[float]
    warm_up: float
    momentum: float
    reset_momentum: bool
    weight_decay: float
    label_smoothing: float
    ema: float
    awp: bool
    awp_gamma: float | None
    teacher: str | None
    beta: float | None
    epsilon: float
    step_size: float
    steps: int
    attack_mode: AttackMode
    noise: float
    std_over: StdOver
    compensate: bool
    weight_step: float
    memory: Memory
    augment: bool
    shift: float | None
    epsilon_growth: float
    final_steps: int
    final_from: float
    low_resolution: float
    validation_images: int | None
    validate_from: float


def step_rate(done: float, *, base: float, milestones: Sequence[float]) -> float:
    """Return ``base`` divided by 10 for every milestone passed (Sec. 4.1).

    The paper's 80, 120 and 160 of 200 epochs are the milestones 0.4, 0.6 and 0.8.
    """
    # A small tolerance: 0.6 of 35 epochs is a little more than 21 in floating point.
    passed = sum(done >= milestone - 1e-9 for milestone in milestones)
    return base / math.pow(10, passed)


def one_cycle_rate(done: float, *, peak: float, warm_up: float) -> float:
    """Return a rate that rises linearly to ``peak`` at ``warm_up`` and falls linearly to 0."""
    if done < warm_up:
        return peak * done / warm_up
    return peak * (1 - done) / (1 - warm_up)


def list_recipes() -> list[str]:
    """Return the names of the recipes that come with the package, sorted.

    Returns:
        The names, as :func:`load_recipe` takes them.

    Example::

        print(enresnet.list_recipes())  # ['fast', 'long', 'natural', ...]
    """
    files = resources.files("enresnet.training.recipes").iterdir()
    return sorted(Path(file.name).stem for file in files if file.name.endswith(".yaml"))


def load_recipe(name: str, **overrides: Unpack[RecipeOptions]) -> Recipe:
    """Return a recipe by its name, or from the path of a YAML file, with fields overridden.

    If ``epsilon`` is overridden and ``step_size`` is not, the step size is scaled in proportion. An
    objective that learns a teacher's answers leaves out the recipe's ``label_smoothing``.

    Args:
        name: One of :func:`list_recipes`, or the path of a ``.yaml`` file with fields of
            :class:`Recipe`; a field that the file leaves out has the paper's value.
        **overrides: Fields of :class:`Recipe` that replace the recipe's own.

    Returns:
        The recipe.

    Raises:
        OSError: The file cannot be read.
        TypeError: A field has the wrong type.
        ValueError: The recipe or a field is unknown (the error names near matches), a value is out
            of range, or an overridden field has no effect with the rest of the recipe, such as
            ``beta`` with ``objective="pgd"``.

    Example::

        recipe = enresnet.load_recipe("fast", epochs=30, epsilon=4 / 255)
        print(recipe.objective, recipe.step_size)
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
    changes = _plain_values(dict(overrides), where="the overrides")
    if "epsilon" in changes and "step_size" not in changes and recipe.epsilon > 0:
        checks.number("epsilon", changes["epsilon"], low=0, high=1)
        changes["step_size"] = recipe.step_size * changes["epsilon"] / recipe.epsilon
    if changes.get("objective") in TAUGHT:
        changes.setdefault("label_smoothing", 0.0)  # the recipe's own is for labels
    changed = replace(recipe, **changes)
    _check_used(changed, changes)
    return changed


def name_of(recipe: Recipe) -> str:
    """Return the name of a recipe that comes with the package; "" if it is another one."""
    plain = replace(recipe, memory="auto")
    return next((name for name, known in _shipped().items() if known == plain), "")


@cache
def _shipped() -> dict[str, Recipe]:
    return {name: load_recipe(name) for name in list_recipes()}


def _check_used(recipe: Recipe, changes: dict[str, Any]) -> None:
    """Raise if a field was given that has no effect with the rest of the recipe."""
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


# A field that has an effect only if another has one of these values.
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
