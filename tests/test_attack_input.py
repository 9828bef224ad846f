"""Bad input gets an error that names the argument; nothing is computed."""

import inspect

import numpy as np
import pytest
import torch

from enresnet.attacks import (
    FGSM,
    FMN,
    IFGSM,
    PGD,
    CarliniWagner,
    attack_at,
    create_attack,
    list_attacks,
)
from enresnet.attacks.registry import ATTACKS, AttackOptions
from problems import SmallNet, every_attack, random_problem, seeded

IMAGES, LABELS = random_problem()


def changed(index, value):
    images = IMAGES.clone()
    images[index] = value
    return images


@pytest.mark.parametrize("attack", every_attack(), ids=repr)
@pytest.mark.parametrize(
    ("images", "labels", "error", "words"),
    [
        (changed((0, 0, 0, 0), 1.001), LABELS, ValueError, r"images must lie in \[0, 1\].*1\.001"),
        (changed((0, 0, 0, 0), -0.1), LABELS, ValueError, r"images must lie in \[0, 1\]"),
        (changed((4, 2, 7, 7), torch.nan), LABELS, ValueError, r"images must lie in \[0, 1\].*nan"),
        (changed((4, 2, 7, 7), torch.inf), LABELS, ValueError, r"images must lie in \[0, 1\].*inf"),
        ((IMAGES * 255).to(torch.uint8), LABELS, TypeError, "images.*uint8.*255"),
        (IMAGES.numpy(), LABELS, TypeError, "images must be a dense tensor"),
        (IMAGES.flatten(), LABELS, ValueError, "labels must be one class number an image"),
        (IMAGES[0, 0, 0], LABELS, ValueError, r"images must be N x \.\.\."),
        (IMAGES, LABELS[:-1], ValueError, "labels must be one class number an image, here 5"),
        (IMAGES, LABELS[:, None], ValueError, "labels must be one class number an image"),
        (IMAGES, LABELS.float(), TypeError, "labels must be a tensor of integers.*float32"),
        (IMAGES, LABELS.bool(), TypeError, "labels must be a tensor of integers.*bool"),
        (IMAGES, LABELS.tolist(), TypeError, "labels must be a tensor of integers.*list"),
        (IMAGES, LABELS - 4, ValueError, "labels must be class numbers from 0 up"),
    ],
)
def test_images_and_labels(attack, images, labels, error, words):
    if isinstance(images, torch.Tensor) and images.ndim == 1 and len(images) > 8:
        words = r"images must be N x \.\.\."
    calls = []

    def model(x):
        calls.append(x)
        return SmallNet()(x)

    with pytest.raises(error, match=words):
        attack(model, images, labels)
    assert not calls


@pytest.mark.parametrize("attack", every_attack(), ids=repr)
@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda x: x, r"N x classes, here 5 x classes; found \(5, 3, 8, 8\)"),
        (lambda x: x.sum(dim=(1, 2, 3)), "N x classes"),
        (lambda x: x.mean(dim=(2, 3))[:-1], "N x classes"),
        (lambda x: [x.mean(dim=(2, 3))], "N x classes, here 5 x classes; found list"),
        (lambda x: x.mean(dim=(1, 2, 3))[:, None], "at least 2 classes"),
        (lambda x: x.mean(dim=(2, 3)).long(), "floating-point"),
        (lambda x: x.mean(dim=(2, 3)), "targets must be below the model's 3 classes, found 3"),
    ],
)
def test_outputs(attack, output, words):
    labels = torch.tensor([0, 1, 2, 1, 3])
    with pytest.raises(ValueError, match=words):
        attack(output, IMAGES, labels)


def test_a_model_without_gradient_is_named():
    model = SmallNet()

    def hidden(images):
        with torch.no_grad():
            return model(images)

    with pytest.raises(ValueError, match="model gives no gradient"):
        FGSM()(hidden, IMAGES, LABELS)


def test_a_model_that_ignores_the_images_is_named():
    weight = torch.ones(5, 4, requires_grad=True)
    with pytest.raises(ValueError, match="model gives no gradient"):
        FGSM()(lambda _: weight * 1, IMAGES, LABELS)


def test_other_kinds_of_tensors():
    for images in (IMAGES.to(torch.float8_e4m3fn), torch.zeros(5, 3).to_sparse()):
        with pytest.raises(TypeError, match="images must be a dense tensor of float16"):
            FGSM()(SmallNet(), images, LABELS)
    with pytest.raises(ValueError, match="labels must be class numbers from 0 up"):
        FGSM()(SmallNet(), torch.zeros(2, 0), torch.tensor([0, -1]))


def test_a_model_that_cannot_be_called():
    with pytest.raises(TypeError, match="model must be an nn.Module or a callable, found str"):
        FGSM()("resnet20", IMAGES, LABELS)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (FGSM, {"epsilon": -0.1}, "epsilon must be finite and at least 0, found -0.1"),
        (FGSM, {"epsilon": 8}, "epsilon must be at most 1.*8/255"),
        (FGSM, {"epsilon": np.float32(8)}, "epsilon must be at most 1.*8/255"),
        (FGSM, {"epsilon": float("nan")}, "epsilon must be"),
        (FGSM, {"norm": "l1"}, "norm must be one of l2, linf"),
        (PGD, {"epsilon": float("inf"), "norm": "l2"}, "epsilon must be"),
        (IFGSM, {"steps": 0}, "steps must be at least 1, found 0"),
        (IFGSM, {"step_size": -1}, "step_size must be"),
        (PGD, {"restarts": 0}, "restarts must be at least 1"),
        (PGD, {"eot": 0}, "eot must be at least 1"),
        (PGD, {"targets": "random"}, "targets='random' is for goal='targeted', found goal='untar"),
        (PGD, {"goal": "targeted", "targets": "label"}, "targets must be one of all, least_likely"),
        (PGD, {"goal": "targetted"}, "goal must be one of.*Did you mean targeted"),
        (CarliniWagner, {"space": "fourier"}, "space must be one of pixel, tanh"),
        (CarliniWagner, {"kappa": -1}, "kappa must be"),
        (CarliniWagner, {"c": -1}, "c must be"),
        (FMN, {"max_epsilon": 8}, "max_epsilon must be at most 1 because.*8 grey levels are 8/255"),
        (FMN, {"gamma": 2}, "gamma must be"),
        (FMN, {"norm": "l1"}, "norm must be one of l2, linf"),
    ],
)
def test_values(kind, options, words):
    with pytest.raises(ValueError, match=words):
        kind(**options)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (FGSM, {"epsilon": "8/255"}, "epsilon must be a number"),
        (FGSM, {"epsilon": True}, "epsilon must be a number"),
        (IFGSM, {"steps": 2.5}, "steps must be an integer"),
        (IFGSM, {"eot": 2.0}, "eot must be an integer"),
        (PGD, {"generator": 0}, r"generator must be a torch.Generator.*manual_seed\(seed\)"),
    ],
)
def test_types(kind, options, words):
    with pytest.raises(TypeError, match=words):
        kind(**options)


def test_numbers_of_other_libraries_are_numbers():
    assert IFGSM(epsilon=np.float32(0.5), steps=np.int64(3)).steps == 3


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size(batch_size):
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        FGSM()(SmallNet(), IMAGES, LABELS, batch_size=batch_size)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("fgsm", "FGSM(epsilon=8/255, norm='linf', eot=None, goal='untargeted', precision='auto')"),
        (
            "ifgsm20",
            "IFGSM(epsilon=8/255, step_size=2/255, steps=20, norm='linf', eot=None, "
            "goal='untargeted', precision='auto')",
        ),
        (
            "pgd7_l2",
            "PGD(epsilon=0.5, step_size=0.125, steps=7, restarts=1, norm='l2', eot=None, "
            "goal='untargeted', precision='auto')",
        ),
        (
            "cw",
            "CarliniWagner(c=10, kappa=0, steps=50, step_size=0.0006, space='tanh', eot=None, "
            "goal='untargeted')",
        ),
    ],
)
def test_names_give_the_papers_settings(name, shown):
    assert repr(create_attack(name)) == shown
    assert create_attack(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        *list_attacks(),
        "cw100_pixel",
        "cw_kappa0.5",
        "cw100_pixel_kappa2_targeted_random",
        "ifgsm5_l2",
        "pgd7_l2_targeted",
        "cw_pixel_runner_up",
        "fgsm_targeted",
        "fgsm_targeted_random",
        "pgd7_l2_targeted_least_likely",
        "cw_pixel_targeted_runner_up",
        "square_targeted_all",
        "noise_l2_runner_up",
    ],
)
def test_names_come_back(name):
    options = {} if name.startswith("autoattack") else {"eot": 3}
    assert create_attack(name, **options).name == name
    assert attack_at(name, 0.1, eot=2, seed=1).name == name


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pgd20", {"steps": 5}),
        ("pgd20_l2", {"norm": "linf"}),
        ("cw_pixel", {"space": "tanh"}),
        ("cw_kappa1", {"kappa": 2.0}),
        ("fgsm_targeted", {"goal": "untargeted"}),
    ],
)
def test_options_that_contradict_the_name(name, options):
    with pytest.raises(ValueError, match="contradicts the name"):
        create_attack(name, **options)


@pytest.mark.parametrize("kappa", [0.25, 1 / 255, 1e-5, 1e30])
def test_a_confidence_is_in_the_name(kappa):
    """So results of two confidences have two entries; the name creates the attack again."""
    name = CarliniWagner(kappa=kappa).name
    assert name != CarliniWagner().name
    assert create_attack(name).kappa == pytest.approx(kappa, rel=1e-5)
    assert create_attack(name).name == name


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fgsm", {"steps": 5}, "steps is not an option of fgsm, which takes epsilon, norm, eot"),
        ("ifgsm20_l2", {"restarts": 2}, "restarts is not an option of ifgsm20_l2, which takes"),
        ("pgd20", {"restart": 2}, "restart is not an option of pgd20.*Did you mean restarts"),
        ("strongest", {"norm": "l2"}, "norm is not an option of strongest, which takes epsilon"),
        ("autoattack", {"eot": 5}, "eot is not an option of autoattack, which takes epsilon, ver"),
    ],
)
def test_options_that_an_attack_does_not_have(name, options, words):
    with pytest.raises(TypeError, match=words):
        create_attack(name, **options)


def test_the_type_of_options_names_those_of_all_attacks():
    taken = {name for kind in ATTACKS.values() for name in inspect.signature(kind).parameters}
    assert set(AttackOptions.__annotations__) == taken


def test_an_attack_at_another_size():
    assert attack_at("ifgsm20", 0.2).step_size == pytest.approx(0.05)
    assert attack_at("cw", 16 / 255).step_size == pytest.approx(1.2e-3)
    assert attack_at("fgsm_l2", 0.2).epsilon == 0.5
    assert attack_at("fmn100", 0.2).max_epsilon == 0.2
    assert attack_at("fmn100_l2", 0.2).max_epsilon == 0.5
    assert attack_at("fmn100_l2", 0.2, epsilon_l2=1.5).max_epsilon == 1.5
    assert create_attack("fmn20").max_epsilon is None


@pytest.mark.parametrize(
    "name",
    ["fgsm20", "ifgms20", "cw_l2", "pgd_pixel", "pgd7_pixel", "", "noise5", "pgd２０", None],
)
def test_unknown_names_list_the_known_ones(name):
    with pytest.raises(ValueError, match="unknown attack.*known are fgsm, ifgsm20"):
        create_attack(name)


def test_another_epsilon_brings_its_step():
    assert IFGSM(epsilon=0.2).step_size == pytest.approx(0.05)
    assert IFGSM(epsilon=0.2, step_size=0.01).step_size == 0.01


@pytest.mark.parametrize("option", ["epsilon", "step_size"])
def test_lengths_that_float32_cannot_hold_are_refused(option):
    with pytest.raises(ValueError, match=rf"{option} must be .*1e\+15, found 1e\+300"):
        PGD(norm="l2", **{option: 1e300})
    images, labels = random_problem((2, 3, 8, 8))
    for norm in ("l2", "linf"):
        lengths = {"epsilon": 1e15 if norm == "l2" else 1.0, "step_size": 1e15}
        found = PGD(norm=norm, steps=2, generator=seeded(), **lengths)(SmallNet(), images, labels)
        assert found.isfinite().all()
