"""Models that return more than a tensor: an object with logits, a mapping, a tuple."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from enresnet.attacks import FGSM, PGD, CarliniWagner, Square, Strongest
from enresnet.evaluation import diagnose, evaluate
from problems import SmallNet, random_problem, seeded

IMAGES, LABELS = random_problem((12, 3, 8, 8))
KINDS = {
    "object": lambda logits: SimpleNamespace(logits=logits, loss=None),
    "mapping": lambda logits: {"logits": logits, "features": logits[:, :1]},
    "tuple": lambda logits: (logits, logits[:, :1]),
}


class Wrapped(nn.Module):
    def __init__(self, kind, noise=0.0):
        super().__init__()
        self.inner, self.kind, self.noise = SmallNet(), kind, noise

    def forward(self, x):
        logits = self.inner(x)
        if self.noise:
            logits = logits + self.noise * torch.randn_like(logits)
        return KINDS[self.kind](logits)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_attacked_as_if_they_returned_logits(kind):
    model, plain = Wrapped(kind).eval(), SmallNet().eval()
    for attack in (
        FGSM(),
        CarliniWagner(steps=3),
        Square(steps=5, generator=seeded()),
        Strongest(budget=100, generator=seeded()),
    ):
        expected = attack(plain, IMAGES, LABELS, seed=1)
        assert torch.equal(attack(model, IMAGES, LABELS, seed=1), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_they_are_evaluated_and_diagnosed(kind, noise):
    model = Wrapped(kind, noise).eval()
    attacks = [PGD(steps=2, eot=None, generator=seeded()), Strongest(budget=100, eot=None)]
    found = evaluate(model, (IMAGES, LABELS), attacks, draws=3, seed=0)
    assert found.natural.deterministic == (noise == 0)
    if kind == "object":
        assert diagnose(model, (IMAGES, LABELS), epsilon=0.1, draws=2, queries=5, seed=0).checks


@pytest.mark.parametrize("output", [None, [torch.zeros(12, 4)], {"scores": torch.zeros(12, 4)}, ()])
def test_what_holds_no_logits_is_refused(output):
    for call in (
        lambda model: FGSM()(model, IMAGES, LABELS),
        lambda model: evaluate(model, (IMAGES, LABELS)),
    ):
        with pytest.raises(ValueError, match="model must return logits N x classes"):
            call(lambda _: output)
