"""Attacks on networks that are followed leave out the images that are lost, or ask less often."""

from functools import partial

import pytest
import torch

import enresnet
from enresnet.attacks import APGD, IFGSM, PGD, Square, Strongest
from enresnet.attacks.counting import Classifier
from problems import random_problem
from traced_networks import IMAGES, NETWORKS, Net, PostActivation, trained

pytestmark = pytest.mark.usefixtures("same_weights")


EPSILON = 0.008
ATTACKS = {
    "ifgsm": lambda **o: IFGSM(epsilon=EPSILON, steps=20, **o),
    "pgd": lambda **o: PGD(epsilon=EPSILON, steps=20, restarts=2, **o),
    "apgd": lambda **o: APGD(epsilon=EPSILON, steps=20, **o),
    "targeted apgd": lambda **o: APGD(epsilon=EPSILON, steps=20, loss="targeted_dlr", **o),
}


MEETING = {name: partial(attack, early_stop=True) for name, attack in ATTACKS.items()} | {
    "restarts": lambda: PGD(epsilon=EPSILON, steps=5, restarts=4),
    "targets": lambda: APGD(epsilon=EPSILON, steps=5, loss="targeted_dlr"),
    "square": lambda: Square(epsilon=EPSILON, steps=20),
    "strongest": lambda: Strongest(epsilon=EPSILON, budget=100),
}


class TestEarlyStop:
    """Of images that a deterministic model gets wrong."""

    def problem(self):
        images, labels = random_problem((60, 3, 12, 12), classes=4, seed=1)
        model = trained(NETWORKS["post-activation"]())
        with torch.no_grad():  # labels that it mostly gets right
            model.head.bias.sub_(model(images).mean(dim=0))
            right = model(images).argmax(dim=1)
        return model, images, torch.where(torch.arange(60) < 55, right, labels)

    @pytest.mark.parametrize("precision", ["32", "bf16"])
    @pytest.mark.parametrize("name", ATTACKS)
    def test_the_same_accuracy_with_fewer_gradients(self, name, precision):
        model, images, labels = self.problem()
        kept = []
        for early in (False, True):
            attack = ATTACKS[name](early_stop=early, precision=precision)
            result = attack.run(model, images, labels, seed=0)
            assert (result.images - images).abs().max() <= EPSILON
            with torch.no_grad():
                right = (model(result.images).argmax(dim=1) == labels).sum().item()
            kept.append((right, result.gradients))
        (whole, all_gradients), (early, fewer) = kept
        assert 5 < whole < 50
        assert abs(early - whole) <= 1
        assert fewer < 0.95 * all_gradients

    def test_images_that_are_wrong_already_stay(self):
        model, images, labels = self.problem()
        with torch.no_grad():
            wrong = model(images).argmax(dim=1) != labels
        assert wrong.any()
        attacked = ATTACKS["ifgsm"](early_stop=True)(model, images, labels)
        assert torch.equal(attacked[wrong], images[wrong])

    def test_a_model_that_may_be_random_is_attacked_to_the_end(self):
        model, images, labels = self.problem()
        results = [
            ATTACKS["ifgsm"](early_stop=early).run(lambda x: model(x), images, labels)
            for early in (False, True)
        ]
        assert torch.equal(results[0].images, results[1].images)
        assert results[0].gradients == results[1].gradients

    @pytest.mark.parametrize("wrapped", [False, True], ids=["module", "function"])
    @pytest.mark.parametrize("name", MEETING)
    def test_none_leaves_a_batch_whose_images_meet(self, name, wrapped, monkeypatch):
        class Centred(PostActivation):
            def forward(self, x):
                return super().forward(x - 0.1 * x.mean(dim=0, keepdim=True))

        images, labels = random_problem((8, 3, 12, 12), classes=4, seed=1)
        model = trained(Net(Centred()))
        with torch.no_grad():
            labels[2:] = model(images).argmax(dim=1)[2:]
        sizes = []
        checked = Classifier.checked
        monkeypatch.setattr(
            Classifier,
            "checked",
            lambda self, logits, n, **k: sizes.append(n) or checked(self, logits, n, **k),
        )
        given = (lambda x: model(x)) if wrapped else model
        MEETING[name]()(given, images, labels, seed=0)
        # A few images are asked about, whether they meet and whether answers stay the same.
        assert set(sizes) <= {8, *((4, 6) if name in ("square", "strongest") else ())}
        assert sizes.count(8) > 10

    def test_settings_tell_of_it_where_there_is_one(self):
        assert "early_stop" not in IFGSM().settings()
        assert IFGSM(early_stop=True).settings()["early_stop"] is True
        assert "early_stop=True" in repr(PGD(early_stop=True))

    def test_by_name(self):
        assert enresnet.create_attack("pgd10", early_stop=True).early_stop
        with pytest.raises(TypeError, match="early_stop must be True or False, found 1"):
            IFGSM(early_stop=1)
        with pytest.raises(TypeError, match="early_stop is not an option of fgsm"):
            enresnet.create_attack("fgsm", early_stop=True)


def test_square_asks_once_a_step_of_a_network_that_it_can_follow():
    model = trained(NETWORKS["post-activation"]())
    with torch.no_grad():
        labels = model(IMAGES).argmax(dim=1)
    attack = Square(epsilon=1e-4, steps=30)
    known = attack.run(model, IMAGES, labels, seed=0)
    asked = attack.run(lambda x: model(x), IMAGES, labels, seed=0)
    assert known.evaluations == 31 * len(IMAGES)
    assert asked.evaluations > 60 * len(IMAGES)
