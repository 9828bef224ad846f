"""Networks of which a traced copy may be another function: they are called as they are."""

import logging
import random
import re
import time
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional

from enresnet.attacks import IFGSM
from enresnet.attacks.known_networks import is_batch_independent, is_deterministic
from enresnet.models.frozen import FrozenCall, frozen, traced
from traced_networks import (
    IMAGES,
    LABELS,
    Net,
    PostActivation,
    trained,
)

pytestmark = pytest.mark.usefixtures("same_weights")


class Branching(PostActivation):
    def forward(self, x):
        return x if float(x.detach().mean()) > 1e9 else super().forward(x)


class TorchNoise(PostActivation):
    def forward(self, x):
        return super().forward(x) + 0.1 * torch.randn_like(x)


class ConstantNoise(PostActivation):
    """Of a fixed shape, so that a tracer takes what it drew for a constant."""

    def forward(self, x):
        return super().forward(x) + 0.1 * torch.randn(8, 12, 12)


class PythonNoise(PostActivation):
    def forward(self, x):
        return super().forward(x) * (1 + random.random())


class Dice(PostActivation):
    """One of two networks, by chance."""

    def forward(self, x):
        return super().forward(x) if random.random() < 0.5 else x


class Counting(PostActivation):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Listing(PostActivation):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return super().forward(x)


class RareDice(PostActivation):
    """Another network, so seldom that a few calls may not meet it."""

    def forward(self, x):
        return super().forward(x) if random.random() < 0.9 else super().forward(0 * x)


class NumpyDice(PostActivation):
    def forward(self, x):
        draw = np.random.rand()  # noqa: NPY002
        return super().forward(x) if draw < 0.999 else x


class OwnDice(PostActivation):
    def __init__(self):
        super().__init__()
        self._dice = random.Random(0)

    def forward(self, x):
        return super().forward(x) if self._dice.random() < 0.999 else x


class Late(PostActivation):
    """Turns its answer round after 20 calls, which it counts where nobody looks."""

    def __init__(self):
        super().__init__()
        self._calls, self.listed, self.named = 0, [0], {"calls": [0]}
        self.register_buffer("counted", torch.tensor(0))
        self._tensor = torch.zeros(())

    def sign(self):
        raise NotImplementedError

    def forward(self, x):
        return super().forward(x) if self.sign() < 20 else -super().forward(x)


class LatePrivate(Late):
    def sign(self):
        self._calls += 1
        return self._calls


class LateList(Late):
    def sign(self):
        self.listed[0] += 1
        return self.listed[0]


class LateNested(Late):
    def sign(self):
        self.named["calls"][0] += 1
        return self.named["calls"][0]


class LateBuffer(Late):
    def sign(self):
        self.counted += 1
        return float(self.counted)


class LateTensor(Late):
    def sign(self):
        self._tensor.add_(1)
        return float(self._tensor)


class NeverOff(PostActivation):
    def forward(self, x):
        return functional.dropout(super().forward(x), 0.5, training=True)


class Silent(PostActivation):
    """Changes what it was given and says nothing of it."""

    def forward(self, x):
        y = self.conv1(x)
        y.add_(1.0)
        return x + self.bn1(y)


FILE_DICE, FILE_COUNT = random.Random(0), [0]


def scale():
    return 0.5 if FILE_DICE.random() < 1e-9 else 1.0


class FileDice(PostActivation):
    """Draws, by another function, from a generator of its file."""

    def forward(self, x):
        return super().forward(x) * scale()


class FileCount(PostActivation):
    def forward(self, x):
        FILE_COUNT[0] += 1
        return super().forward(x) * (1 if FILE_COUNT[0] < 10**6 else 0)


class Clock(PostActivation):
    def forward(self, x):
        return super().forward(x) * (1 if time.time() > 0 else 0)


class Entropy(PostActivation):
    def forward(self, x):
        import os

        return super().forward(x) * (1 if os.urandom(1) else 0)


class HalfBlind(PostActivation):
    """A part without gradient, which a graph would not know."""

    def forward(self, x):
        with torch.no_grad():
            gate = torch.sigmoid(self.conv1(x))
        return super().forward(x) * gate


class Exact(PostActivation):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


class Hooked(PostActivation):
    def __init__(self):
        super().__init__()
        self.conv1.register_forward_hook(lambda *_: None)


class ClassCount(PostActivation):
    """Counts its calls on the class."""

    counted_calls: ClassVar[list[int]] = [0]

    def forward(self, x):
        self.counted_calls[0] += 1
        return super().forward(x)


class DefaultCount(PostActivation):
    """Counts its calls in a default argument."""

    def forward(self, x, count=[0]):  # noqa: B006
        count[0] += 1
        return super().forward(x)


def count_here():
    count_here.times += 1
    return 1.0


count_here.times = 0


class FunctionCount(PostActivation):
    """Counts its calls on a function."""

    def forward(self, x):
        return count_here() * super().forward(x)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Branching, "cannot be traced"),
        (TorchNoise, "randn_like"),
        (ConstantNoise, "draws random numbers"),
        (PythonNoise, "draws random numbers"),
        (Dice, "draws random numbers"),
        (RareDice, "draws random numbers"),
        (NumpyDice, "draws random numbers"),
        (OwnDice, "forward of OwnDice changes the module"),
        (LatePrivate, "forward of LatePrivate changes the module"),
        (LateList, "changes the module"),
        (LateNested, "changes the module"),
        (LateBuffer, "changes the module"),
        (LateTensor, "changes the module"),
        (Counting, "changes the module"),
        (Listing, "changes the module"),
        (NeverOff, "dropout that is never off"),
        (Silent, "not used"),
        (FileDice, "draws random numbers"),
        (FileCount, "changes FILE_COUNT, which its file holds"),
        (ClassCount, "changes counted_calls, which the class ClassCount holds"),
        (DefaultCount, "changes a default argument of DefaultCount.forward"),
        (FunctionCount, "changes an attribute of count_here"),
        (Clock, "reads the clock or the system's entropy .time.time"),
        (Entropy, "reads the clock or the system's entropy .os.urandom"),
        (HalfBlind, "switches autograd off for a part"),
        (Exact, "switches autocast for a part"),
        (Hooked, "hooks"),
    ],
)
def test_what_may_be_another_function_is_called_as_it_is(block, reason, caplog, monkeypatch):
    monkeypatch.setattr(traced, "_said", set())
    random.seed(3)
    model = trained(Net(block()))
    with caplog.at_level(logging.INFO, "enresnet"):
        for _ in range(2):
            with frozen(model, few=IMAGES) as call:
                assert not isinstance(call, FrozenCall)
                assert not is_deterministic(model, call)
                assert not is_batch_independent(model, call)
    (record,) = caplog.records  # once
    assert "attacks call Net as it is, which is slower" in record.message
    assert re.search(reason, record.message)
    assert getattr(model.blocks[0], "calls", 0) == 0
    assert not getattr(model.blocks[0], "seen", [])
    assert float(getattr(model.blocks[0], "counted", 0)) == 0  # tracing left the buffer alone
    assert not any(name.startswith("_tensor_constant") for name in vars(model))
    IFGSM(steps=10)(model, IMAGES, LABELS)


def test_a_gradient_that_is_not_the_networks_is_noticed(caplog, monkeypatch):
    monkeypatch.setattr(traced, "_said", set())
    monkeypatch.setattr(traced, "switched_mode", lambda *_: "")
    with caplog.at_level(logging.INFO, "enresnet"), frozen(trained(Net(HalfBlind())), few=IMAGES):
        assert "its gradient differs once it is traced" in caplog.text
