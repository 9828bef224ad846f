"""Models that seem deterministic and are not, or that give no gradient and are noisy."""

import os
import random
import subprocess
import sys
import uuid

import numpy as np
import pytest
import torch
from torch import nn

from enresnet.attacks import Strongest
from enresnet.attacks.determinism import ASKED
from enresnet.attacks.strongest import search as strongest
from enresnet.data import load_data
from enresnet.evaluation import evaluate
from enresnet.evaluation.first_look import looks_deterministic
from enresnet.evaluation.inputs import as_images
from enresnet.evaluation.scoring import score
from problems import Linear, random_problem, seeded


class Moody(nn.Module):
    """Answers wrongly in one call of seven, for all images alike, after a while of good conduct."""

    def __init__(self, inner, *, conduct=0):
        super().__init__()
        self.inner, self.calls, self.conduct = inner, 0, conduct

    def forward(self, images):
        self.calls += 1
        logits = self.inner(images)
        moody = self.calls > self.conduct and self.calls % 7 == 0
        return logits.roll(1, 1) if moody else logits


def linear_problem(count=24):
    """Return a linear model that is right on all images, and these."""
    images, _ = random_problem((count, 1, 4, 4))
    model = Linear(16, classes=4)
    return model, images, model(images).argmax(dim=1)


def test_a_call_that_goes_wrong_for_all_images_breaks_none():
    """Seen when the model is asked, or later, when an image that is lost must be lost again."""
    inner, images, labels = linear_problem()
    attack = Strongest(epsilon=0.3, budget=200, generator=seeded())
    expected = score(inner, attack(inner, images, labels), labels).mean()
    for conduct in (0, ASKED[1] + 4, ASKED[1] + 40):
        found = attack(Moody(inner, conduct=conduct), images, labels)
        assert score(inner, found, labels).mean() <= expected + 0.05


def test_many_calls_tell_that_a_model_is_not_deterministic():
    inner, images, labels = linear_problem()
    moody = Moody(inner, conduct=10)
    # As a function: what a module counts would be seen, and it would not be asked so often.
    result = evaluate(lambda points: moody(points), (images, labels), [], draws=14)
    assert not result.natural.deterministic
    assert result.natural.draws == 14
    assert result.natural.accuracy == pytest.approx(6 / 7)
    assert evaluate(inner, (images, labels), []).natural.draws == 1
    assert looks_deterministic(inner, as_images((images, labels)))


class Patient(nn.Module):
    """Answers the same for a million calls; counts them in one of several places."""

    def __init__(self, inner, place):
        super().__init__()
        self.inner, self.place = inner, place
        self._calls, self.listed = 0, [0]
        self.register_buffer("counted", torch.tensor(0))

    def forward(self, images):
        if self.place == "field":
            self._calls += 1
        elif self.place == "list":
            self.listed[0] += 1
        elif self.place == "buffer":
            self.counted += 1
        elif self.place == "input":
            self.listed[0] = images
        late = max(self._calls, int(self.counted)) > 10**6
        return self.inner(images).roll(1, 1) if late else self.inner(images)


@pytest.mark.parametrize("place", ["field", "list", "buffer"])
def test_a_model_that_counts_its_calls_is_not_taken_for_deterministic(place, caplog):
    inner, images, labels = linear_problem()
    with caplog.at_level("INFO", "enresnet"):
        result = evaluate(Patient(inner, place), (images, labels), [], draws=3)
    assert not result.natural.deterministic
    assert result.natural.draws == 3
    assert "not taken for deterministic: the forward of Patient changes the module" in caplog.text


@pytest.mark.parametrize("place", ["nowhere", "input"])
def test_a_model_may_keep_what_it_was_last_given(place):
    inner, images, labels = linear_problem()
    assert evaluate(Patient(inner, place), (images, labels), []).natural.deterministic


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.rand, lambda: float(torch.rand(()))],
    ids=["python", "numpy", "torch"],
)
@pytest.mark.parametrize("kind", ["function", "module"])
def test_a_model_that_draws_is_not_taken_for_deterministic(draw, kind):
    """However seldom a draw changes the answer."""
    inner, images, labels = linear_problem()

    def answer(points):
        return inner(points) if draw() > 1e-12 else inner(0 * points)

    class Drawing(nn.Module):
        def forward(self, points):
            return answer(points)

    model = answer if kind == "function" else Drawing()
    result = evaluate(model, (images, labels), [], draws=3)
    assert not result.natural.deterministic
    assert result.natural.draws == 3


class Stored:
    """What a library's base class may have beside a forward."""

    def store(self):
        return str(uuid.uuid4())

    def __getattr__(self, name):
        return super().__getattr__(name)


@pytest.mark.parametrize("call", ["none", "named", "getattr", "through another"])
def test_the_clock_and_entropy_count_where_a_forward_may_call_them(call):
    inner, images, labels = linear_problem()

    class Storing(Stored, nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def helper(self):
            return self.store()

    class Named(Storing):
        def forward(self, x):
            return self.inner(x) if self.store() else x

    class Getting(Storing):
        def forward(self, x):
            return self.inner(x) if getattr(self, "store")() else x  # noqa: B009

    class Through(Storing):
        def forward(self, x):
            return self.inner(x) if self.helper() else x

    class Plain(Storing):
        def forward(self, x):
            return self.inner(x)

    kind = {"none": Plain, "named": Named, "getattr": Getting, "through another": Through}[call]
    result = evaluate(kind(), (images, labels), [], draws=3)
    assert result.natural.deterministic is (call == "none")


@pytest.mark.parametrize("place", ["nowhere", "field"])
def test_strongest_averages_where_a_model_counts_its_calls(monkeypatch, place):
    inner, images, labels = linear_problem(6)
    asked = []
    own = strongest.Strongest._searched

    def searched(attack, batch, *args, **options):
        asked.append(batch.deterministic)
        return own(attack, batch, *args, **options)

    monkeypatch.setattr(strongest.Strongest, "_searched", searched)
    attack = Strongest(epsilon=0.05, budget=100, eot=2, generator=seeded())
    attack(Patient(inner, place), images, labels)
    assert asked == [place == "nowhere"]


class Blind(nn.Module):
    """Noise, then rounding: a gradient that is 0, or none at all."""

    def __init__(self, inner, *, gradient):
        super().__init__()
        self.inner, self.gradient = inner, gradient

    def forward(self, images):
        with torch.set_grad_enabled(self.gradient and torch.is_grad_enabled()):
            noisy = images + 0.1 * torch.randn(images.shape)
            return self.inner((4 * noisy).round() / 4)


@pytest.mark.filterwarnings("ignore:model gives no gradient")
@pytest.mark.parametrize("gradient", [True, False])
def test_where_there_is_no_gradient_square_has_all_steps_and_draws(monkeypatch, gradient):
    inner, images, labels = linear_problem(6)
    asked = []

    class Recorded(strongest.Square):
        def __init__(self, **options):
            asked.append((options["steps"], options["eot"]))
            super().__init__(**options)

    monkeypatch.setattr(strongest, "Square", Recorded)
    Strongest(epsilon=0.05, budget=100, eot=5, generator=seeded())(
        Blind(inner, gradient=gradient), images, labels
    )
    assert asked == [(100, 5)]


def sure_network():
    """Return a network that is sure of what it says, and test images."""
    data = load_data("digits")
    images, labels = data.train.batch(slice(len(data.train)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimiser = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(300):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimiser.step()
    return net.eval(), *data.test.batch(slice(128))


def test_draws_that_are_surely_right_are_heard():
    """Cross-entropy follows the few that are wrong, and makes them worse still."""
    inner, images, labels = sure_network()
    luck = seeded()

    def model(points):
        logits = inner(points)
        return logits.roll(1, 1) if torch.rand((), generator=luck) < 0.15 else logits

    found = Strongest(epsilon=0.2, generator=seeded())(model, images, labels)
    assert score(inner, found, labels).sum() <= 1


def test_what_the_command_says_of_them(tmp_path):
    """In plain words, without the line of code that says it."""
    (tmp_path / "odd.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "wrong = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))\n\n"
        "@torch.no_grad()\ndef hard(images):\n"
        "    return images.flatten(1)[:, :20].reshape(-1, 10, 2).sum(2).round()\n"
    )

    def run(model, *options):
        command = [sys.executable, "-m", "enresnet", "evaluate", model, "--data", "digits"]
        return subprocess.run(
            [*command, "--limit", "60", "--out", "here", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            capture_output=True,
            text=True,
            check=False,
        )

    wrong = run("odd:wrong")
    assert wrong.returncode == 2
    assert "enresnet: model fails on images of 1 x 8 x 8: mat1 and mat2" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    hard = run("odd:hard", "--attacks", "strongest", "--budget", "100")
    assert hard.returncode == 0, hard.stderr
    assert "enresnet: model gives no gradient: strongest is Square alone" in hard.stderr
    assert "UserWarning" not in hard.stderr
