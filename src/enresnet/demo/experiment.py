r"""One request of the demo: from an image and settings to what both networks say of it.

The answer of a network without noise is its softmax. That of a randomised one is the mean over
draws of its noise, the Feynman-Kac estimate (Eq. 14); how often each class wins is its spread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from enresnet.attacks import attack_at
from enresnet.common import checks
from enresnet.common.randomness import named_generator
from enresnet.demo.networks import Pair
from enresnet.evaluation.scoring import drawn_logits, probabilities
from enresnet.models import seed_noise
from enresnet.models.noise import noise_modules

Against = Literal["each", "base", "ensemble"]
AGAINST: tuple[Against, ...] = get_args(Against)

DemoAttack = Literal["fgsm", "ifgsm", "pgd", "apgd", "cw", "cw_pixel", "square", "noise"]

# What can be chosen, and the name that create_attack knows it by.
ATTACKS: dict[str, str] = {
    "fgsm": "fgsm",
    "ifgsm": "ifgsm{steps}",
    "pgd": "pgd{steps}",
    "apgd": "apgd{steps}",
    "cw": "cw{steps}",
    "cw_pixel": "cw{steps}_pixel",
    "square": "square{steps}",
    "noise": "noise",
}
MOST_EPSILON, MOST_STEPS, MOST_EOT, MOST_DRAWS = 128, 200, 20, 1000


def takes_steps(attack: str) -> bool:
    """Return whether an attack has a number of steps."""
    return "{steps}" in ATTACKS.get(attack, "")


@dataclass(frozen=True)
class DemoSettings:
    """How both networks are attacked and asked.

    Attributes:
        attack: One of fgsm, ifgsm, pgd, apgd, cw, cw_pixel, square and noise.
        epsilon: The largest change of a pixel, in grey levels of 255. Carlini and Wagner's attack
            has no such bound: its step size grows in proportion.
        steps: Steps of the attack, up to 200, where it has any.
        eot: Draws of the noise that every gradient averages, up to 20.
        against: The network that the attack sees. ``"each"`` attacks each network by itself (white
            box); ``"base"`` and ``"ensemble"`` attack one and show both the same image.
        draws: Predictions of the ensemble, up to 1000.
        seed: Fixes the noise and what the attack draws.

    Raises:
        TypeError: A number is none.
        ValueError: A setting is unknown or out of range.

    Example::

        from enresnet.demo import DemoSettings

        print(DemoSettings(attack="pgd", epsilon=51, steps=10).attack_name)  # pgd10
    """

    attack: DemoAttack = "ifgsm"
    epsilon: float = 8
    steps: int = 20
    eot: int = 5
    against: Against = "each"
    draws: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        checks.choice("attack", self.attack, ATTACKS)
        checks.number("epsilon", self.epsilon, low=0, high=MOST_EPSILON)
        checks.choice("against", self.against, AGAINST)
        for name, low, high in (
            ("steps", 1, MOST_STEPS),
            ("eot", 1, MOST_EOT),
            ("draws", 1, MOST_DRAWS),
            ("seed", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            checks.integer(name, value, low=low)
            checks.number(name, value, low=low, high=high)

    @property
    def attack_name(self) -> str:
        """The name that :func:`~enresnet.attacks.create_attack` knows the attack by."""
        return ATTACKS[self.attack].format(steps=self.steps)


@dataclass(frozen=True)
class Answer:
    """What a network says of one image, over repeated draws of its noise.

    Attributes:
        probabilities: The probability of each class, averaged over the draws.
        wins: In how many draws each class has the highest probability.

    Example::

        from enresnet.demo import Answer

        answer = Answer(probabilities=(0.2, 0.8), wins=(3, 97))
        print(answer.top, answer.draws)  # 1 100
    """

    probabilities: tuple[float, ...]
    wins: tuple[int, ...]

    @property
    def draws(self) -> int:
        """The number of predictions; 1 for a network without noise."""
        return sum(self.wins)

    @property
    def top(self) -> int:
        """The class that wins most often; of two that win as often, the more probable one."""
        numbers = range(len(self.wins))
        return max(numbers, key=lambda number: (self.wins[number], self.probabilities[number]))


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two networks, before and after the attack.

    Attributes:
        network: Its name, NETWORK@TRAINED.
        before: What it says of the image.
        after: What it says of the attacked image.
        attacked: The attacked image that it was shown, C x H x W in [0, 1].
        largest_change: The largest change of a pixel, in grey levels of 255.

    Example::

        from enresnet.demo import attack_pair, list_pairs

        pair = list_pairs()[0]
        images, labels = pair.test_images().batch(slice(1))
        print(attack_pair(pair, images[0], int(labels)).ensemble.after.top)
    """

    network: str
    before: Answer
    after: Answer
    attacked: Tensor
    largest_change: float

    @property
    def changed(self) -> bool:
        """Whether the attack changed the network's answer."""
        return self.before.top != self.after.top


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What :func:`attack_pair` found.

    Attributes:
        pair: The two networks.
        settings: How they were attacked and asked.
        image: The image, C x H x W in [0, 1].
        label: Its class; None if nobody knows it.
        base: The plain network.
        ensemble: The ensemble.
        seconds: What it took.

    Example::

        from enresnet.demo import attack_pair, list_pairs, what_happened

        pair = list_pairs()[0]
        images, labels = pair.test_images().batch(slice(1))
        print(what_happened(attack_pair(pair, images[0], int(labels))))
    """

    pair: Pair
    settings: DemoSettings
    image: Tensor
    label: int | None
    base: Side
    ensemble: Side
    seconds: float = field(default=0.0)


def attack_pair(
    pair: Pair,
    image: Tensor,
    label: int | None = None,
    settings: DemoSettings | None = None,
    *,
    advance: Callable[[float], None] | None = None,
) -> DemoResult:
    """Attack an image and ask both networks about it, before and after.

    One seed gives one result. The networks are shared between calls, and their noise is seeded
    here, so two calls must not run at the same time.

    Args:
        pair: The two networks.
        image: One image in [0, 1].
        label: Its class, which the attack leads away from. Without one, the attack leads away from
            what the attacked network says of the image.
        settings: How to attack; by default ``DemoSettings()``.
        advance: Called with the share of the work that is done, from 0 to 1.

    Shape:
        - image: C x H x W, as ``pair.image_shape``

    Returns:
        What both networks say, and the attacked images.

    Raises:
        TypeError: The label is not an integer.
        ValueError: The image has another shape, or the label is no class.

    Example::

        from enresnet.demo import DemoSettings, attack_pair, list_pairs

        pair = list_pairs()[0]
        images, labels = pair.test_images().batch(slice(1))
        result = attack_pair(pair, images[0], int(labels), DemoSettings(attack="fgsm", epsilon=51))
    """
    start, settings = time.perf_counter(), settings or DemoSettings()
    if tuple(image.shape) != pair.image_shape:
        raise ValueError(
            f"image must have the shape {pair.image_shape}, found {tuple(image.shape)}; "
            "read_upload converts image files"
        )
    if label is not None and checks.integer("label", label, low=0) >= len(pair.classes):
        raise ValueError(f"label must be below {len(pair.classes)}, found {label}")
    images = image[None].float()
    models = dict(zip(("base", "ensemble"), pair.models(), strict=True))
    for name, model in models.items():
        seed_noise(model, named_generator(settings.seed, f"demo {name}"))
    before = {name: _ask(model, images, settings.draws) for name, model in models.items()}
    seen = [settings.against] if settings.against != "each" else list(models)
    share = _Share(advance, len(seen))
    attacked = {}
    for name in seen:
        attack = attack_at(
            settings.attack_name, settings.epsilon / 255, eot=settings.eot, seed=settings.seed
        )
        led_from = before[name].top if label is None else label
        attacked[name] = attack(
            models[name],
            images,
            torch.tensor([led_from]),
            advance=share.of(attack.passes),
        )
    sides = {}
    for name, card in (("base", pair.base), ("ensemble", pair.ensemble)):
        shown = attacked[name if settings.against == "each" else settings.against]
        sides[name] = Side(
            network=card.name,
            before=before[name],
            after=_ask(models[name], shown, settings.draws),
            attacked=shown[0],
            largest_change=255 * float((shown - images).abs().max()),
        )
    seconds = time.perf_counter() - start
    return DemoResult(
        pair, settings, image, label, sides["base"], sides["ensemble"], seconds=seconds
    )


def _ask(model: nn.Module, images: Tensor, draws: int) -> Answer:
    """Return what a model says of the one image in a batch."""
    places = [place for place in noise_modules(model) if place.noise > 0]
    if not places:
        logits = drawn_logits(model, images, 1)[0]
    elif all(place.std_over == "example" for place in places):
        logits = drawn_logits(model, images.expand(draws, -1, -1, -1), 1)[0]
    else:  # copies of one image in a batch would change its noise
        logits = torch.cat(drawn_logits(model, images, draws))
    found = probabilities(logits)
    wins = found.argmax(dim=1).bincount(minlength=found.shape[1])
    return Answer(tuple(found.mean(dim=0).tolist()), tuple(wins.tolist()))


class _Share:
    """Turns the passes of several attacks into the share of the work that is done."""

    def __init__(self, advance: Callable[[float], None] | None, attacks: int) -> None:
        self._advance, self._attacks, self._ended = advance, attacks, 0

    def of(self, passes: int) -> Callable[[int], None]:
        """Return what the next attack tells of its passes, of which there are so many."""
        done, before = 0, self._ended / self._attacks
        self._ended += 1

        def passed(number: int) -> None:
            nonlocal done
            done += number
            if self._advance is not None:
                self._advance(before + done / passes / self._attacks)

        return passed
