"""Targeted attacks: targets are given or chosen, and are never the label."""

import json

import pytest
import torch

from enresnet.attacks import FGSM, FMN, IFGSM, PGD, CarliniWagner, Square, attack_at, create_attack
from enresnet.attacks.targets import TARGETS
from enresnet.cli import main
from enresnet.evaluation import evaluate, transfer
from enresnet.models import create_model, save_model
from problems import Linear, random_problem, seeded

IMAGES, _ = random_problem((40, 1, 8, 8))
MODEL = Linear(64, classes=5)
LABELS = MODEL(IMAGES).argmax(dim=1)  # all are right, so that an attack can only harm


def answers(attack, **options):
    return MODEL(attack(MODEL, IMAGES, LABELS, **options)).argmax(dim=1)


@pytest.mark.parametrize("kind", [FGSM, IFGSM, PGD, CarliniWagner, FMN, Square])
def test_targets_must_be_given_or_chosen(kind):
    with pytest.raises(ValueError, match=r"targets must be given.*or chosen: targets='random'"):
        kind(goal="targeted")(MODEL, IMAGES, LABELS)
    with pytest.raises(ValueError, match="targets must not be the labels: found class"):
        kind(goal="targeted")(MODEL, IMAGES, LABELS, targets=LABELS)
    one = (LABELS + 1) % 5
    one[7] = LABELS[7]
    with pytest.raises(ValueError, match=f"class {int(LABELS[7])} as target of image 7"):
        kind(goal="targeted")(MODEL, IMAGES, LABELS, targets=one)


AIMED = {"goal": "targeted"}


@pytest.mark.parametrize(
    ("options", "targets", "error", "words"),
    [
        ({}, (LABELS + 1) % 5, ValueError, "has the goal 'untargeted'"),
        ({"goal": "runner_up"}, (LABELS + 1) % 5, ValueError, "has the goal 'runner_up'"),
        (AIMED | {"targets": "all"}, (LABELS + 1) % 5, ValueError, "chooses its own, 'all'"),
        (AIMED, LABELS.float(), TypeError, "targets must be a tensor of integers"),
        (AIMED, LABELS[:3], ValueError, "targets must be one class number an image, here 40"),
        (AIMED, LABELS - 9, ValueError, "targets must be class numbers from 0 up"),
        (AIMED, LABELS + 9, ValueError, "must be below the model's 5 classes"),
    ],
)
def test_targets_that_do_not_fit(options, targets, error, words):
    with pytest.raises(error, match=words):
        FGSM(**options)(MODEL, IMAGES, LABELS, targets=targets)


def test_given_targets_are_reached():
    targets = (LABELS + 2) % 5
    assert torch.equal(answers(IFGSM(epsilon=0.5, goal="targeted"), targets=targets), targets)


def test_chosen_targets_are_what_they_are_called():
    rest = MODEL(IMAGES).scatter(1, LABELS[:, None], torch.nan)
    first = rest.nan_to_num(-torch.inf).argmax(dim=1)
    last = rest.nan_to_num(torch.inf).argmin(dim=1)
    for name, expected in (("runner_up", first), ("least_likely", last)):
        assert torch.equal(answers(IFGSM(epsilon=0.5, goal="targeted", targets=name)), expected)
    one, same, other = (
        answers(IFGSM(epsilon=0.5, goal="targeted", targets="random", generator=seeded(seed)))
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert set(((one - LABELS) % 5).tolist()) == {1, 2, 3, 4}  # every other class, never the label


def test_all_others_is_at_least_as_strong_as_any_one_of_them():
    every = IFGSM(epsilon=0.02, goal="targeted", targets="all")
    left = (answers(every) == LABELS).double().mean()
    assert 0 < left < 1
    for offset in range(1, 5):
        found = answers(IFGSM(epsilon=0.02, goal="targeted"), targets=(LABELS + offset) % 5)
        assert left <= (found == LABELS).double().mean()
    alone, whole = every(MODEL, IMAGES[:3], LABELS[:3]), every(MODEL, IMAGES, LABELS)
    torch.testing.assert_close(alone, whole[:3])


@pytest.mark.parametrize("targets", TARGETS)
def test_no_choice_helps_the_model(targets):
    few = {Square: {"steps": 20}, CarliniWagner: {"steps": 10}, FMN: {"steps": 10}}
    for kind in (FGSM, IFGSM, PGD, CarliniWagner, FMN, Square):
        attack = kind(goal="targeted", targets=targets, **few.get(kind, {}))
        assert f"targets={targets!r}" in repr(attack)
        assert attack.name.endswith(f"_targeted_{targets}")
        result = evaluate(MODEL, (IMAGES, LABELS), [attack], seed=0)
        value = result.robust[attack.name]
        assert value.accuracy <= result.natural.accuracy
        assert value.settings["targets"] == targets


def test_an_evaluation_does_not_take_labels_for_targets():
    for name in ("fgsm_targeted", "pgd10_targeted"):
        attack = create_attack(name)
        with pytest.raises(ValueError, match=f"{name} needs targets.*{name}_random"):
            evaluate(MODEL, (IMAGES, LABELS), [attack])
        with pytest.raises(ValueError, match=f"{name} needs targets.*{name}_random"):
            transfer(MODEL, MODEL, (IMAGES, LABELS), [attack])


def test_names_and_settings():
    assert "targets" not in repr(FGSM())
    assert "targets" not in IFGSM().settings()
    assert "targets=9" in repr(create_attack("apgd100_t"))
    assert attack_at("fgsm_targeted", 0.1, targets="all").name == "fgsm_targeted_all"
    with pytest.raises(ValueError, match="targets='all' contradicts the name"):
        attack_at("fgsm_targeted_random", 0.1, targets="all")


def test_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = create_model("resnet8", in_channels=1, generator=seeded()).eval()
    save_model(model, "net.safetensors")
    words = ["--data", "digits", "--limit", "30", "--json", "found.json"]
    evaluation = ["evaluate", "net.safetensors", *words]
    assert main([*evaluation, "--attacks", "fgsm_targeted", "pgd3_targeted"]) == 2
    assert "fgsm_targeted needs targets" in capsys.readouterr().err
    assert main([*evaluation, "--attacks", "fgsm", "--targets", "random"]) == 2
    assert "--targets random is for attacks that aim at a class" in capsys.readouterr().err
    for word in ("label", "None"):  # to leave them out is to leave out the option
        with pytest.raises(SystemExit) as ended:
            main([*evaluation, "--attacks", "fgsm", "--targets", word])
        assert ended.value.code == 2
        said = " ".join(capsys.readouterr().err.replace("│", "").split())
        assert f"'{word}'" in said
        assert "('random', 'least_likely', 'runner_up', 'all')" in said
    attacks = ["--attacks", "fgsm_targeted", "pgd3_targeted", "--targets", "random"]
    assert main([*evaluation, *attacks]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["robust"]) == {"fgsm_targeted_random", "pgd3_targeted_random"}
    matrix = ["transfer", "--matrix", "net.safetensors", *words]
    assert main([*matrix, "--attacks", "fgsm_targeted"]) == 2
    assert main([*matrix, "--attacks", "fgsm_targeted", "--targets", "least_likely"]) == 0
    assert "fgsm_targeted_least_likely" in capsys.readouterr().out
