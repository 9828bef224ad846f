"""Our attacks beside those of other libraries, on the same robustly trained network."""

import pytest
import torch

from enresnet.attacks import (
    APGD,
    FGSM,
    IFGSM,
    PGD,
    AutoAttack,
    CarliniWagner,
    Strongest,
    create_attack,
)
from enresnet.data import load_data
from enresnet.evaluation import evaluate, score
from enresnet.models import create_model, without_noise
from enresnet.training import Trainer, load_recipe
from problems import assert_same_state, seeded, snapshot

torchattacks = pytest.importorskip("torchattacks")
pyautoattack = pytest.importorskip("pyautoattack")
foolbox = pytest.importorskip("foolbox")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EPSILON = 0.15


@pytest.fixture(scope="module")
def problem():
    """Return a small robust network with noise, and test images."""
    data = load_data("digits")
    model = create_model("en1_resnet8", in_channels=1, generator=seeded())
    recipe = load_recipe("fast", epochs=5, epsilon=EPSILON, batch_size=64)
    list(Trainer(model, data, recipe).epochs())
    return model.eval(), *data.test.batch(slice(200))


OURS = {
    "fgsm": FGSM(epsilon=EPSILON, precision="32"),
    "ifgsm": IFGSM(epsilon=EPSILON, step_size=0.02, steps=10, precision="32"),
}


@pytest.mark.parametrize("name", OURS)
def test_images_are_those_of_torchattacks(problem, name):
    """In float64, where no gradient is 0 by rounding."""
    model, images, labels = problem
    model, images = create_copy(model).double(), images.double()
    theirs = {
        "fgsm": torchattacks.FGSM(model, eps=EPSILON),
        "ifgsm": torchattacks.PGD(model, eps=EPSILON, alpha=0.02, steps=10, random_start=False),
    }
    with without_noise(model):
        mine = OURS[name](model, images, labels)
        other = theirs[name](images, labels)
    # Without gradient, at a dead unit, their sign is 0 as is ours: nowhere do they differ.
    assert (mine - other).abs().max() < 1e-6


def create_copy(model):
    import copy

    return copy.deepcopy(model)


def test_pgd_is_as_strong_as_theirs(problem):
    """From random starts, so two images of two hundred may go either way."""
    model, images, labels = problem
    with without_noise(model), torch.random.fork_rng([]):
        torch.manual_seed(0)  # theirs draw from the global generator
        ours = PGD(epsilon=EPSILON, steps=20, generator=seeded())(model, images, labels)
        theirs = torchattacks.PGD(model, eps=EPSILON, alpha=EPSILON / 4, steps=20)(images, labels)
        attack = foolbox.attacks.LinfPGD(abs_stepsize=EPSILON / 4, steps=20)
        _, third, _ = attack(
            foolbox.PyTorchModel(model, bounds=(0, 1)), images, labels, epsilons=EPSILON
        )
        mine, *others = (score(model, x, labels).mean() for x in (ours, theirs, third))
    assert mine <= min(others) + 0.0101


@pytest.mark.parametrize("loss", ["ce", "dlr", "targeted_dlr"])
def test_apgd_is_as_strong_as_theirs(problem, loss):
    model, images, labels = problem
    options = {"n_iter": 50, "n_restarts": 1, "norm": "Linf", "eps": EPSILON, "seed": 0}
    with without_noise(model):
        ours = APGD(epsilon=EPSILON, steps=50, loss=loss, generator=seeded())
        package = pyautoattack.autopgd_base
        if loss == "targeted_dlr":
            theirs = package.APGDAttack_targeted(model, **options, device="cpu")
            theirs.n_target_classes = 9
        else:
            theirs = package.APGDAttack(model, **options, loss=loss, device="cpu")
        mine = score(model, ours(model, images, labels), labels).mean()
        with torch.random.fork_rng([]):  # it seeds the global generator
            other = score(model, theirs.perturb(images, labels), labels).mean()
    assert mine <= other + 0.0101


@pytest.mark.slow
def test_carlini_wagner_fools_as_many_within_the_same_bound_as_theirs(problem):
    """ART's, with one solve an image; tanh space, in which both work, hardly moves black pixels."""
    evasion = pytest.importorskip("art.attacks.evasion")
    from art.estimators.classification import PyTorchClassifier

    model, images, labels = problem
    images, labels = 0.25 + images[:48] / 2, labels[:48]
    classifier = PyTorchClassifier(
        model,
        loss=torch.nn.CrossEntropyLoss(),
        input_shape=(1, 8, 8),
        nb_classes=10,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    once = {"initial_const": 10, "largest_const": 10.1, "decrease_factor": 1e-3, "verbose": False}
    theirs = evasion.CarliniLInfMethod(classifier, max_iter=100, learning_rate=5e-3, **once)
    ours = CarliniWagner(c=10, steps=100, step_size=5e-3)
    with without_noise(model):
        shares = []
        for found in (
            ours(model, images, labels),
            torch.from_numpy(theirs.generate(images.numpy(), labels.numpy())),
        ):
            fooled = score(model, found, labels) == 0
            size = (found - images).abs().flatten(1).amax(dim=1)
            bounds = torch.tensor([0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 1.0])
            shares.append([(fooled & (size <= bound)).float().mean().item() for bound in bounds])
    assert shares[1][-1] > 0.3, "ART's attack did nothing: there is nothing to compare"
    for mine, other in zip(*shares, strict=True):
        assert mine >= other


class TestAutoAttack:
    def test_on_a_deterministic_model_both_figures_agree(self, problem):
        model, images, labels = problem
        attack = AutoAttack(epsilon=EPSILON, generator=seeded())
        short = (images[:96], labels[:96])
        before = snapshot(model)
        with without_noise(model):
            attack = _quick(attack)
            found = evaluate(
                model, short, [attack, Strongest(epsilon=EPSILON, eot=1, generator=seeded())]
            )
        value = found.robust["autoattack"]
        assert value.claimed == pytest.approx(value.accuracy)
        assert value.accuracy < found.natural.accuracy
        assert found.robust["strongest"].accuracy <= value.accuracy + 0.0105  # an image
        assert_same_state(before, snapshot(model))  # torch's own generator among it
        delta = attack(model, *short) - short[0]
        assert delta.abs().max() <= EPSILON + 1e-6

    def test_one_unlucky_draw_is_not_robustness_lost(self):
        """A model that no image can fool, but that errs in one draw of five."""
        generator = seeded(3)

        def coin(images):
            wrong = torch.rand(len(images), generator=generator) < 0.2
            logits = torch.stack([1.0 - 2 * wrong, 0.0 * wrong, 0.0 * wrong - 1], dim=1)
            return logits + 0 * images.sum(dim=(1, 2, 3))[:, None]

        images, labels = torch.rand(40, 1, 4, 4), torch.zeros(40, dtype=torch.int64)
        attack = _quick(AutoAttack(epsilon=0.1, version="rand", generator=seeded()))
        value = evaluate(coin, (images, labels), [attack], draws=40).robust["autoattack_rand"]
        assert value.claimed < 0.7  # about a half, give or take eight points
        assert value.accuracy == pytest.approx(0.8, abs=0.03)

    @pytest.mark.parametrize(("version", "classes"), [("standard", 3), ("rand", 2)])
    def test_too_few_classes_are_named(self, version, classes):
        attack = AutoAttack(epsilon=0.1, version=version, generator=seeded())
        with pytest.raises(ValueError, match=f"classes, found {classes}; use strongest"):
            attack(
                lambda x: x.flatten(1)[:, :classes], torch.rand(2, 1, 4, 4), torch.tensor([0, 1])
            )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_fewer_than_ten_classes_and_any_float(self, dtype):
        """In the ball to the last bit, and its gradients are counted."""
        images = torch.rand(6, 1, 4, 4, generator=seeded()).to(dtype)
        weight = torch.randn(16, 5, generator=seeded(1)).to(dtype)

        def model(x):
            return x.flatten(1) @ weight

        labels = model(images).argmax(dim=1)
        attack = _quick(AutoAttack(epsilon=0.1, generator=seeded()))
        result = attack.run(model, images, labels)
        found = result.images
        assert found.dtype == dtype
        assert (found.double() - images.double()).abs().max() <= 0.1
        assert result.gradients > 0
        assert result.claimed.shape == labels.shape

    def test_by_name(self):
        assert create_attack("autoattack_rand").version == "rand"
        assert repr(create_attack("autoattack")) == "AutoAttack(epsilon=8/255, version='standard')"
        with pytest.raises(ValueError, match="version must be one of"):
            AutoAttack(version="plus")

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(ValueError, match="needs the package pyautoattack"):
            AutoAttack()(lambda x: x.flatten(1), torch.rand(1, 2), torch.zeros(1).long())


def _quick(attack):
    """Shorten AutoAttack's own attacks for a test."""
    original = pyautoattack.AutoAttack

    class Quick(original):
        def _set_version(self, version="standard"):
            super()._set_version(version)
            self.apgd.n_iter = self.apgd_targeted.n_iter = 10
            self.apgd.eot_iter = min(self.apgd.eot_iter, 2)
            self.fab.n_iter, self.square.n_queries = 3, 50

    class Package:
        AutoAttack = Quick
        __spec__ = pyautoattack.__spec__

    import sys

    class Patched(type(attack)):
        def perturb(self, batch):
            sys.modules["pyautoattack"], kept = Package, sys.modules["pyautoattack"]
            try:
                return super().perturb(batch)
            finally:
                sys.modules["pyautoattack"] = kept

    attack.__class__ = Patched
    return attack
