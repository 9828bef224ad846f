"""Small models whose behaviour under attack is known, and the attacks that tests run over."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from enresnet.attacks import (
    APGD,
    FGSM,
    FMN,
    IFGSM,
    PGD,
    Attack,
    CarliniWagner,
    RandomNoise,
    Square,
    Strongest,
)
from enresnet.models import NoiseInjection


class Linear(nn.Module):
    """Logits W x + b: the worst case in a ball is known in closed form for two classes."""

    def __init__(
        self, features: int, classes: int = 2, *, seed: int = 0, bias: float = 0.0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(classes, features, generator=generator)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.full((classes,), bias))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        return images.flatten(1) @ self.weight.T + self.bias


class Noisy(Linear):
    """Logits W x + b plus Gaussian noise: fooled in half of the draws on the boundary."""

    scale = 0.3

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits = super().forward(images)
        return logits + self.scale * torch.randn(logits.shape)


class SmallNet(nn.Module):
    """A convolution, BatchNorm, dropout and optional noise: every state an attack could disturb."""

    def __init__(
        self, channels: int = 3, classes: int = 4, *, noise: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.conv = nn.utils.skip_init(nn.Conv2d, channels, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.5)
        self.noise = NoiseInjection(noise, generator=torch.Generator().manual_seed(seed))
        self.head = nn.utils.skip_init(nn.Linear, 8, classes)
        with torch.no_grad():
            for parameter in (*self.conv.parameters(), *self.head.parameters()):
                parameter.normal_(generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        features = self.noise(torch.tanh(self.bn(self.conv(images))))
        logits: Tensor = self.head(self.dropout(features.mean(dim=(2, 3))))
        return logits


def random_problem(
    shape: tuple[int, ...] = (5, 3, 8, 8), classes: int = 4, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return images in [0, 1], some pixels at exactly 0 and 1, and labels."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(shape, generator=generator) * 1.4 - 0.2
    labels = torch.randint(classes, (shape[0],), generator=generator)
    return images.clamp(0, 1), labels


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator with a seed."""
    return torch.Generator().manual_seed(seed)


BOUNDED = [FGSM, IFGSM, PGD, RandomNoise]


def every_attack() -> list[Attack]:
    """Return one attack of every kind, small enough for tests."""
    bounded: list[Attack] = [
        attack
        for norm in ("linf", "l2")
        for attack in (
            FGSM(norm=norm),
            IFGSM(norm=norm, steps=3),
            PGD(norm=norm, steps=3, restarts=2, generator=seeded()),
            RandomNoise(norm=norm, generator=seeded()),
        )
    ]
    return [
        *bounded,
        RandomNoise(restarts=3, generator=seeded()),
        PGD(steps=2, goal="runner_up", generator=seeded()),
        *(
            CarliniWagner(space=space, goal=goal, targets=targets, steps=4, generator=seeded())
            for space in ("tanh", "pixel")
            for goal, targets in (
                ("untargeted", None),
                ("targeted", "random"),
                ("targeted", "least_likely"),
                ("runner_up", None),
            )
        ),
        *(APGD(steps=4, loss=loss, generator=seeded()) for loss in ("ce", "dlr", "targeted_dlr")),
        *(Square(steps=6, goal=goal, generator=seeded()) for goal in ("untargeted", "runner_up")),
        *(
            FMN(norm=norm, max_epsilon=largest, goal=goal, steps=4, generator=seeded())
            for norm in ("linf", "l2")
            for largest, goal in ((None, "untargeted"), (0.1, "untargeted"), (None, "runner_up"))
        ),
        FMN(steps=3, goal="targeted", targets="all", generator=seeded()),
        Strongest(budget=100, generator=seeded()),
    ]


def fits(attack: Attack, images: Tensor) -> bool:
    """Return whether an attack takes images of this shape: squares need a height and a width."""
    return images.ndim == 4 or not isinstance(attack, Square)


def reseeded(attack: Attack, seed: int) -> Attack:
    """Return the attack with its random starts seeded anew."""
    if hasattr(attack, "generator"):
        attack.generator.manual_seed(seed)
    return attack


def seeds_of(attack: Attack, count: int) -> Tensor:
    """Return the seeds of an attack's next call."""
    return attack._draw_seeds(count, attack.generator)


def snapshot(model: nn.Module) -> dict[str, object]:
    """Return all of a model's state that an attack must leave alone, and torch's global RNG."""
    return {
        "tensors": {name: value.clone() for name, value in model.state_dict().items()},
        "grads": {
            name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
        },
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "training": {name: module.training for name, module in model.named_modules()},
        "rng": torch.random.get_rng_state(),
    }


def assert_same_state(before: dict[str, object], after: dict[str, object]) -> None:
    """Raise if two snapshots differ in any bit."""
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def plus(x, y):
    """Return a sum; in a file of its own, as helpers of networks are."""
    return x + y


class Net(nn.Module):
    """A stem, the blocks that a test is about, and a head: 3 channels in, 4 classes out."""

    def __init__(self, *blocks):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.blocks = nn.Sequential(*blocks)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
