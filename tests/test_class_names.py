"""A model is tested on the classes that it was trained on, whatever their order in a folder."""

import pytest
import torch
from PIL import Image

from enresnet.cli import main
from enresnet.data import Images, load_test_images
from enresnet.training import Run

PIXELS, LABELS = torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 1, 0])


def images(*classes):
    return Images(PIXELS, LABELS, classes)


def test_numbers_follow_names():
    found = images("cat", "dog").in_terms_of(("bird", "dog", "cat"))
    assert found.classes == ("bird", "dog", "cat")
    assert found.labels.tolist() == [2, 1, 1, 2]
    assert images("cat", "dog").in_terms_of(("cat", "dog")).labels.tolist() == [0, 1, 1, 0]


def test_numbers_are_names_like_others():
    assert images("2", "3").in_terms_of(("1", "2", "3")).labels.tolist() == [1, 2, 2, 1]
    for own, known in ((("0", "1"), ("cat", "dog")), (("cat", "dog"), ("0", "1"))):
        with pytest.raises(ValueError, match="does not know"):
            images(*own).in_terms_of(known)


def test_folders_named_by_numbers_are_in_their_order(tmp_path):
    write(tmp_path / "all", {str(number): (number, 0, 0) for number in range(12)}, 1)
    found = load_test_images(tmp_path / "all", size=8)
    assert found.classes == tuple(map(str, range(12)))
    pixels, labels = found.batch(slice(None))
    assert torch.equal((255 * pixels[:, 0, 0, 0]).round().long(), labels)


def test_unknown_classes_are_named():
    with pytest.raises(ValueError, match="does not know: wolf; it was trained on cat, dog"):
        images("cat", "wolf").in_terms_of(("cat", "dog"))


def write(folder, colours, count=4):
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            shade = tuple(min(255, part + 8 * number) for part in colour)
            Image.new("RGB", (8, 8), shade).save(folder / name / f"{number}.png")
    return str(folder)


def test_a_run_knows_its_classes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = write(tmp_path / "all", {"a": (0, 0, 0), "b": (90, 0, 0), "c": (200, 200, 200)}, 12)
    words = ["--model", "resnet8", "--data", train, "--size", "8", "--recipe", "quickstart"]
    assert main(["train", *words, "--epochs", "1", "--out", "run"]) == 0
    assert Run.open(tmp_path / "run").config.classes == ("a", "b", "c")
    fewer = write(tmp_path / "fewer", {"b": (90, 0, 0), "c": (200, 200, 200)})
    other = write(tmp_path / "other", {"a": (0, 0, 0), "z": (90, 0, 0)})
    capsys.readouterr()
    # Without b, which is class 1, labels 0 and 1 would have meant a and b.
    assert main(["evaluate", "run", "--data", fewer, "--attacks", "fgsm"]) == 0
    assert main(["evaluate", "run", "--data", other, "--attacks", "fgsm"]) == 2
    assert "does not know: z" in capsys.readouterr().err
