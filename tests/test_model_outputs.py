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


ODD = {
    "device meta": lambda logits: logits.to("meta"),
    "layout torch.sparse_coo": lambda logits: logits.to_sparse(),
    "complex64": lambda logits: logits.to(torch.complex64),
    "a nested tensor": lambda logits: torch.nested.nested_tensor(list(logits)),
    "nested": lambda logits: torch.nested.nested_tensor(list(logits), layout=torch.jagged),
    "quantised": lambda logits: torch.quantize_per_tensor(logits.detach(), 0.1, 0, torch.qint8),
    "layout torch._mkldnn": lambda logits: logits.detach().to_mkldnn(),
}
NO_NUMBERS_TO_CLIMB = {
    "int64": lambda logits: logits.long(),
    "float8": lambda logits: logits.to(torch.float8_e4m3fn),
}


class Odd(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.inner, self.change = SmallNet(), change

    def forward(self, x):
        return self.change(self.inner(x))


CALLS = {
    "one draw": lambda model: FGSM(eot=1)(model, IMAGES, LABELS),
    "draws as the model decides": lambda model: FGSM()(model, IMAGES, LABELS),
    "long": lambda model: PGD(steps=20)(model, IMAGES, LABELS),
    "without gradients": lambda model: Square(steps=3)(model, IMAGES, LABELS),
    "strongest": lambda model: Strongest(budget=100)(model, IMAGES, LABELS),
    "evaluate": lambda model: evaluate(model, (IMAGES, LABELS)),
    "diagnose": lambda model: diagnose(model, (IMAGES, LABELS), draws=1, queries=2),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("odd", [*ODD, *NO_NUMBERS_TO_CLIMB])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_logits_that_are_no_plain_numbers_get_a_sentence(odd, call):
    change = {**ODD, **NO_NUMBERS_TO_CLIMB}[odd]
    model, inner = Odd(change).eval(), SmallNet().eval()
    if odd in NO_NUMBERS_TO_CLIMB and call is CALLS["evaluate"]:
        assert call(model).natural.images == len(IMAGES)  # they can be ranked
        return
    for form in (model, lambda x: change(inner(x))):
        with pytest.raises(ValueError, match=f"model must return .*{odd}"):
            call(form)
