"""The passes of an attack: in bfloat16, shared between draws, none wasted."""

import copy
from functools import partial
from inspect import signature

import pytest
import torch

from enresnet.attacks import APGD, FGSM, FMN, IFGSM, PGD, CarliniWagner, RandomNoise, Square
from enresnet.attacks import batch as batch_module
from enresnet.attacks.batch import Batch
from enresnet.models import (
    Ensemble,
    create_model,
    seed_noise,
    without_noise,
)
from enresnet.models.frozen.networks import _Fold
from problems import random_problem, seeded


@pytest.mark.parametrize("name", ["resnet8", "en2_resnet8"])
def test_gradients_in_bfloat16_point_the_same_way(name):
    images, labels = random_problem((8, 3, 16, 16), classes=10)
    model = create_model(
        name, noise=0 if name.startswith("en") else None, generator=seeded()
    ).eval()
    one, two = (IFGSM(steps=1, precision=p)(model, images, labels) for p in ("32", "bf16"))
    inside = (images > 0.05) & (images < 0.95)
    agree = ((one - images).sign() == (two - images).sign())[inside].double().mean()
    assert agree > 0.9
    assert IFGSM().precision == "auto"
    with pytest.raises(ValueError, match="precision must be one of"):
        IFGSM(precision="16")


@pytest.mark.parametrize("name", ["resnet8", "en2_resnet8"])
def test_bfloat16_does_not_lose_small_gradients(name, monkeypatch):
    """Confident networks have losses next to 0: an attack must be as strong as in float32."""
    images, _ = random_problem((8, 3, 16, 16), classes=10)
    model = create_model(name, generator=seeded()).eval()
    with torch.no_grad(), without_noise(model):
        logits = model(images)
    labels, (one, two) = logits.argmax(dim=1), logits.topk(2).values.T
    # The other class has the probability exp(-95), which float32 has only as a denormal number.
    attacks = {p: IFGSM(steps=1, precision=p, generator=seeded()) for p in ("32", "bf16")}
    for row in range(len(images)):
        x, y = images[row : row + 1], labels[row : row + 1]
        sure = copy.deepcopy(model)
        with torch.no_grad(), without_noise(sure):
            for member in getattr(sure, "members", [sure]):
                for value in member.classifier.parameters():
                    value *= 95 / (one - two)[row]
        with without_noise(sure):
            full, reduced = (attack(sure, x, y) for attack in attacks.values())
        assert ((full - x).sign() == (reduced - x).sign()).double().mean() > 0.8
    gradients = []
    for lift in (1.0, batch_module.LIFT):
        monkeypatch.setattr(batch_module, "LIFT", lift)
        seed_noise(model, seeded())
        monkeypatch.setattr(Batch, "_finite", lambda _, g: (gradients.append(g.clone()), g)[1])
        attacks["bf16"](model, images, labels)
    assert torch.equal(*gradients)


def test_other_models_are_attacked_in_their_own_precision():
    from enresnet.attacks.precision import wants_bfloat16

    images = torch.rand(1, 3, 16, 16)
    other = Ensemble([torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10))])
    assert not wants_bfloat16(other, None, images, "auto")
    assert wants_bfloat16(other, None, images, "bf16")
    assert not wants_bfloat16(create_model("resnet8"), None, images.double(), "auto")


def test_examples_that_are_fooled_are_not_started_again():
    """The same images are fooled as by trying all again, with fewer passes."""
    images, labels = random_problem((32, 3, 16, 16), classes=10)
    model = create_model("resnet8", generator=seeded()).eval()
    labels[:16] = model(images[:16]).argmax(dim=1)
    seen, fooled = {}, {}
    for kind in ("ours", "any"):
        attack = PGD(epsilon=1 / 255, steps=3, restarts=4, precision="32", generator=seeded())
        result = attack.run(model if kind == "ours" else lambda x: model(x), images, labels)
        seen[kind] = result.evaluations
        fooled[kind] = model(result.images).argmax(dim=1) != labels
    assert torch.equal(fooled["ours"], fooled["any"])
    assert seen["ours"] < seen["any"]


def test_draws_share_what_comes_before_the_noise(monkeypatch):
    images, labels = random_problem((4, 3, 16, 16), classes=10)
    model = create_model("en2_resnet8", generator=seeded()).eval()
    sizes = {"before_noise": [], "after_noise": []}
    for name, seen in sizes.items():
        whole = getattr(_Fold, name)

        def counted(self, x, whole=whole, seen=seen):
            seen.append(len(x))
            return whole(self, x)

        monkeypatch.setattr(_Fold, name, counted)
    FGSM(eot=5)(model, images, labels)
    assert sizes == {"before_noise": [4, 4], "after_noise": [20, 20]}  # two members
    monkeypatch.undo()
    monkeypatch.setattr("enresnet.attacks.gradient.TOGETHER", 2 * 4 * 256)
    FGSM(eot=5)(model, images, labels)
    seen = []
    model.register_forward_hook(lambda *_: seen.append(1))
    FGSM(eot=5)(model, images, labels)
    assert len(seen) == 5  # who listens hears every draw
    quiet = create_model("en2_resnet8", noise=1e-9, generator=seeded()).eval()
    one, five = (FGSM(eot=eot, norm="l2", precision="32")(quiet, images, labels) for eot in (1, 5))
    torch.testing.assert_close(one, five, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "attack",
    [
        FGSM,
        partial(IFGSM, steps=3),
        partial(PGD, steps=3, restarts=2),
        partial(APGD, steps=5, loss="targeted_dlr", targets=2),
        partial(CarliniWagner, steps=3),
        partial(FMN, steps=3),
        partial(Square, steps=5),
        partial(RandomNoise, restarts=3),
    ],
)
def test_one_draw_is_enough_where_there_is_no_noise(attack):
    images, labels = random_problem((4, 3, 16, 16), classes=10)
    model = create_model("en2_resnet8", generator=seeded()).eval()
    found = []
    with without_noise(model):
        for eot in (1, 5):
            chance = {"generator": seeded()} if "generator" in signature(attack).parameters else {}
            made = attack(eot=eot, **chance)
            told = []
            found.append(made.run(model, images, labels, advance=told.append))
            assert sum(told) == made.passes * len(images)
    one, five = found
    assert torch.equal(one.images, five.images)
    assert (one.gradients, one.evaluations) == (five.gradients, five.evaluations)


def test_shared_draws_have_the_gradient_of_separate_ones(monkeypatch):
    """The mean over many draws agrees, far closer than single draws do."""
    images, labels = random_problem((3, 3, 16, 16), classes=10)
    model = create_model("en2_resnet8", noise=0.3, generator=seeded()).eval()
    found = {}
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr("enresnet.attacks.base.is_batch_independent", lambda *_: False)
        for repeat in (0, 1):
            seed_noise(model, seeded(10 + repeat + 2 * shared))
            attacked = FGSM(epsilon=1.0, norm="l2", eot=400, precision="32")(model, images, labels)
            found[shared, repeat] = (attacked - images).flatten(1)
    same = (found[True, 0] - found[True, 1]).norm(dim=1)
    across = (found[True, 0] - found[False, 0]).norm(dim=1)
    assert (across < 2 * same + 0.02).all()


def test_many_draws_do_not_stall_in_bfloat16(monkeypatch):
    """The mean over many draws has the length of the mean over few."""
    images, labels = random_problem((2, 3, 16, 16), classes=10)
    model = create_model("en1_resnet8", noise=0.01, generator=seeded()).eval()
    monkeypatch.setattr("enresnet.attacks.gradient.TOGETHER", 1)
    sizes = []
    for eot in (2, 600):
        seen = []
        original = Batch._finite
        monkeypatch.setattr(
            Batch, "_finite", lambda self, g, o=original, s=seen: s.append(g.norm()) or o(self, g)
        )
        FGSM(eot=eot, precision="bf16")(model, images, labels)
        monkeypatch.setattr(Batch, "_finite", original)
        sizes.append(float(seen[0]))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)
