"""Attacked images on disk: exact in float32, inside the ball in 8 bits, for any model."""

import json

import pytest
import torch
from safetensors.torch import save_file

from enresnet.attacks import FGSM, IFGSM
from enresnet.cli import main
from enresnet.data import Images
from enresnet.data.attacked import (
    AdversarialSet,
    describe_adversarial_set,
    eight_bit,
    load_adversarial_set,
)
from enresnet.data.registry import load_data, load_test_images
from enresnet.report.figures import transfer_heat_map
from problems import SmallNet, seeded


@pytest.fixture
def clean():
    pixels = torch.randint(256, (10, 3, 8, 8), generator=seeded(), dtype=torch.uint8)
    return Images(pixels, torch.arange(10) % 3, ("cat", "dog", "a/b"))


def attacked(clean, epsilon=8 / 255):
    images, labels = clean.batch(slice(None))
    return IFGSM(epsilon=epsilon, steps=5)(SmallNet().eval(), images, labels), images, labels


@pytest.mark.parametrize("kind", ["float32", "png"])
def test_a_set_comes_back(clean, tmp_path, kind):
    images, original, labels = attacked(clean)
    about = {"attack": "IFGSM(...)", "model": "resnet8"}
    made = AdversarialSet(tmp_path / "set", classes=clean.classes, about=about, kind=kind)
    for start in (0, 4, 8):
        rows = slice(start, start + 4)
        made.write(start, images[rows], labels[rows], original[rows])
    found = load_test_images(tmp_path / "set")
    assert found.classes == clean.classes
    assert torch.equal(found.labels, labels)
    again, _ = found.batch(slice(None))
    if kind == "float32":
        assert torch.equal(again, images)
    else:
        assert (again - original).abs().max() <= 8 / 255 + 1e-6
        assert (again - images).abs().max() < 1 / 255
        assert ((again - original).abs() > 7.5 / 255).any()  # nothing of the attack is lost
    told = describe_adversarial_set(tmp_path / "set")
    assert told["attack"] == "IFGSM(...)"
    assert told["model"] == "resnet8"
    assert len(load_adversarial_set(tmp_path / "set", limit=3)) == 3


def test_rounding_stays_inside_the_ball():
    generator = seeded(1)
    clean = torch.randint(256, (50, 1, 8, 8), generator=generator) / 255
    for epsilon in (8 / 255, 0.031, 2.5 / 255, 0.4 / 255):
        delta = epsilon * (2 * torch.rand(clean.shape, generator=generator) - 1)
        moved = (clean + delta).clamp(0, 1)
        rounded = eight_bit(moved, clean).float() / 255
        assert (rounded - clean).abs().max() <= epsilon + 1e-6
        assert ((rounded - clean) * (moved - clean) >= 0).all()
    corner = eight_bit((clean + 8 / 255).clamp(0, 1), clean).int() - (clean * 255).round().int()
    assert corner[(clean < 0.9)].unique().tolist() == [8]


def test_a_set_of_another_making_is_left_alone(clean, tmp_path):
    images, original, labels = attacked(clean)
    made = AdversarialSet(tmp_path / "s", classes=clean.classes, about={"attack": "one"})
    made.write(0, images, labels, original)
    with pytest.raises(FileExistsError, match="holds a set made otherwise"):
        AdversarialSet(tmp_path / "s", classes=clean.classes, about={"attack": "two"})
    AdversarialSet(tmp_path / "s", classes=clean.classes, about={"attack": "one"})
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x").write_text("mine")
    with pytest.raises(FileExistsError, match="is no set of images"):
        AdversarialSet(tmp_path / "t", classes=clean.classes, about={})
    with pytest.raises(ValueError, match="for evaluating, not for training"):
        load_data(tmp_path / "s")


def test_damage_is_named(clean, tmp_path):
    images, original, labels = attacked(clean)
    made = AdversarialSet(tmp_path / "s", classes=clean.classes, about={})
    made.write(4, images[4:], labels[4:], original[4:])
    with pytest.raises(ValueError, match="is not whole: images 0 to 3 are missing"):
        load_adversarial_set(tmp_path / "s")
    made.write(0, images[:4], labels[:4], original[:4])
    (tmp_path / "s" / "00000004.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_adversarial_set(tmp_path / "s")
    save_file({"labels": labels}, tmp_path / "s" / "00000004.safetensors")
    (tmp_path / "s" / "set.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load_adversarial_set(tmp_path / "s")
    with pytest.raises(FileNotFoundError, match="no set of attacked images"):
        describe_adversarial_set(tmp_path)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[]", "must tell what made the set"),
        ("3", "must tell what made the set"),
        ('"x"', "must tell what made the set"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "must have the format"),
        ({"classes": None}, "must list the names of the classes"),
        ({"classes": [1, 2, 3]}, "must list the names of the classes"),
        ({"classes": ["cat"]}, "names 1 classes"),
        ({"count": "all"}, "must count its images"),
        ({"count": 4}, "its set.json says 4"),
        ({"count": 40}, "images 10 to 39 are missing"),
    ],
)
def test_a_malformed_set_gets_a_sentence(text, word, clean, tmp_path):
    images, original, labels = attacked(clean)
    made = AdversarialSet(tmp_path / "s", classes=clean.classes, about={"attack": "one"})
    made.write(0, images, labels, original)
    path = tmp_path / "s" / "set.json"
    if isinstance(text, dict):
        text = json.dumps({**json.loads(path.read_text()), **text})
    path.write_text(text)
    with pytest.raises(ValueError, match=word):
        load_adversarial_set(tmp_path / "s")
    with pytest.raises((ValueError, FileExistsError), match="set.json"):
        AdversarialSet(tmp_path / "s", classes=clean.classes, about={"attack": "one"})


def test_malformed_parts_of_a_set_get_a_sentence(clean, tmp_path):
    images, original, labels = attacked(clean)
    made = AdversarialSet(tmp_path / "s", classes=clean.classes, about={})
    made.write(0, images, labels, original)
    path = tmp_path / "s" / "00000000.safetensors"
    for tensors in (
        {"labels": labels},
        {"images": images},
        {"images": images[:4], "labels": labels},
        {"images": images, "labels": labels.float()},
        {"images": images, "labels": labels[None]},
        {"images": images, "labels": labels + 7},
    ):
        save_file(tensors, path)
        with pytest.raises(ValueError, match="whole safetensors file|a label an image|classes"):
            load_adversarial_set(tmp_path / "s")
    path.rename(path.with_name("first.safetensors"))
    with pytest.raises(ValueError, match="'first' is no number; remove it"):
        load_adversarial_set(tmp_path / "s")
    made = AdversarialSet(tmp_path / "p", classes=clean.classes, about={}, kind="png")
    made.write(0, images, labels, original)
    (tmp_path / "p" / "0000").rename(tmp_path / "p" / "cat")
    with pytest.raises(ValueError, match="'cat' is no number; remove it"):
        load_adversarial_set(tmp_path / "p")
    # What made it is told after an evaluation, and may be missing.
    assert describe_adversarial_set(tmp_path / "s")["attack"] == "an unknown attack"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in ("0", "1"):
        words = ["--data", "digits", "--recipe", "fast", "--epochs", "2", "--seed", seed]
        assert main(["train", "--model", "en1_resnet8", *words, "--out", str(folder / seed)]) == 0
    return folder / "0", folder / "1"


def test_from_the_command_line(runs, tmp_path, capsys):
    """Saved by one run, classified by another: the same as the transfer command finds."""
    limit = ["--limit", "60", "--draws", "4"]
    sets = tmp_path / "sets"
    arguments = ["evaluate", str(runs[0]), "--attacks", "fgsm", *limit]
    assert main([*arguments, "--save", str(sets), "--out", str(tmp_path / "a")]) == 0
    words = ["evaluate", str(runs[1]), "--data", str(sets / "fgsm"), "--attacks", "noise", *limit]
    assert main([*words, "--out", str(tmp_path / "b"), "--json", str(tmp_path / "b.json")]) == 0
    blind = json.loads((tmp_path / "b.json").read_text())["natural"]["accuracy"]
    kept = json.loads((tmp_path / "b" / "evaluation.json").read_text())
    assert set(kept) == {f"best on {sets / 'fgsm'}"}  # no natural accuracy of the run
    words = ["transfer", "--oracle", str(runs[0]), "--target", str(runs[1]), "--attacks", "fgsm"]
    out = ["--json", str(tmp_path / "t.json"), "--journal", str(tmp_path / "j")]
    assert main([*words, *limit, *out]) == 0
    (cell,) = json.loads((tmp_path / "t.json").read_text())["robust"]["fgsm"]
    assert blind == pytest.approx(cell["accuracy"], abs=0.05)  # other draws of the noise
    capsys.readouterr()
    png = ["--save", str(tmp_path / "png"), "--png", "--out", str(tmp_path / "c")]
    assert main([*arguments, *png]) == 0
    kept = json.loads((tmp_path / "c" / "evaluation.json").read_text())["best"]["robust"]
    assert kept["fgsm_8bit"]["accuracy"] == pytest.approx(kept["fgsm"]["accuracy"], abs=0.1)
    assert len(list((tmp_path / "png" / "fgsm").glob("*/*.png"))) == 60
    assert main([*arguments, "--png"]) == 2
    assert "--png is for --save" in capsys.readouterr().err


def test_the_matrix(runs, tmp_path, capsys):
    names = [str(run) for run in runs]
    options = ["--attacks", "fgsm", "ifgsm3", "--limit", "40", "--draws", "2"]
    out = ["--json", str(tmp_path / "m.json"), "--picture", str(tmp_path / "m.png")]
    journal = ["--journal", str(tmp_path / "j")]
    assert main(["transfer", "--matrix", *names, *options, *out, *journal]) == 0
    values = json.loads((tmp_path / "m.json").read_text())
    assert set(values["natural"]) == set(names)
    cells = {(c["oracle"], c["target"]): c["accuracy"] for c in values["robust"]["ifgsm3"]}
    assert len(cells) == 4
    for name in names:
        others = [value for (oracle, target), value in cells.items() if target == name != oracle]
        assert cells[name, name] <= min(others) + 0.05
    assert (tmp_path / "m-fgsm.png").is_file()
    assert (tmp_path / "m-ifgsm3.png").is_file()
    assert not (tmp_path / "j").exists()
    assert main(["transfer", "--matrix", names[0], "--oracle", names[1]]) == 2
    assert "give --oracle and --target, or --matrix" in capsys.readouterr().err
    assert main(["transfer", "--matrix", names[0], names[0]]) == 2
    assert "each model must be given once" in capsys.readouterr().err


def test_two_runs_are_compared(runs, tmp_path, capsys):
    for run, out in zip(runs, "ab", strict=True):
        words = ["--attacks", "fgsm", "--draws", "2", "--out", str(tmp_path / out)]
        limit = "60" if out == "a" else "50"
        assert main(["evaluate", str(run), *words, "--limit", limit]) == 0
    capsys.readouterr()
    words = [
        "compare",
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        "--json",
        str(tmp_path / "c.json"),
    ]
    assert main(words) == 0
    values = json.loads((tmp_path / "c.json").read_text())["compared"]
    assert set(values) == {"natural", "fgsm"}
    assert values["fgsm"]["images"] == 50
    assert 0 < values["fgsm"]["p_value"] <= 1
    capsys.readouterr()
    assert main([*words, "--tries", "2"]) == 0
    assert "Images that 2 tries all get right" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "c.json").read_text())["tries"] == 2
    other = ["--attacks", "fgsm", "--draws", "2", "--eot", "2", "--limit", "50"]
    assert main(["evaluate", str(runs[1]), *other, "--out", str(tmp_path / "b")]) == 0
    assert "replaced fgsm" in capsys.readouterr().err
    assert main(words) == 0
    assert set(json.loads((tmp_path / "c.json").read_text())["compared"]) == {"natural"}
    assert "fgsm is not compared: eot 5 and 2" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "a"), str(runs[0])]) == 2
    assert "run enresnet evaluate first" in capsys.readouterr().err


def test_later_attacks_join_earlier_ones(runs, tmp_path):
    base = ["evaluate", str(runs[0]), "--draws", "2", "--out", str(tmp_path / "r")]
    assert main([*base, "--attacks", "fgsm", "--limit", "50"]) == 0
    assert main([*base, "--attacks", "ifgsm3", "--limit", "20"]) == 0
    assert main([*base, "--attacks", "fgsm", "--limit", "20", "--epsilon", "0.3"]) == 0
    kept = json.loads((tmp_path / "r" / "evaluation.json").read_text())
    assert set(kept) == {"best", "best at epsilon 0.3"}
    assert set(kept["best"]["robust"]) == {"fgsm", "ifgsm3"}
    assert kept["best"]["robust"]["fgsm"]["images"] == 50
    assert kept["best"]["natural"]["images"] == 50
    assert kept["best"]["robust"]["ifgsm3"]["images"] == 20


MODULE = """
import torch

class Bright(torch.nn.Module):
    def forward(self, images):
        level = images.flatten(1).mean(dim=1)
        return torch.stack([level * k for k in range(10)], dim=1)

def build():
    return Bright()

def function(images):
    return Bright()(images)

made = Bright()
number = 3

def odd():
    return 3
"""


@pytest.mark.parametrize("name", ["build", "function", "made", "Bright"])
def test_any_model(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_model.py").write_text(MODULE)
    words = ["--data", "digits", "--attacks", "fgsm", "--limit", "150", "--json", "r.json"]
    with pytest.warns(UserWarning, match="chance level"):
        assert main(["evaluate", f"own_model:{name}", *words]) == 0
    values = json.loads((tmp_path / "r.json").read_text())
    assert values["robust"]["fgsm"]["images"] == 150
    assert values["natural"]["draws"] == 1
    assert (tmp_path / "evaluations" / f"own_model.{name}" / "evaluation.json").is_file()
    for source, error in (
        ("own_model:nothing", "has no nothing"),
        ("own_model:number", "must be a model or a function"),
        ("own_model:odd", "must return a model"),
        ("no_such_module:x", "no module no_such_module"),
        ("nowhere", "is not there"),
    ):
        assert main(["evaluate", source, *words]) == 2
        assert error in capsys.readouterr().err
    assert main(["evaluate", f"own_model:{name}"]) == 2
    assert "--data must be given" in capsys.readouterr().err


def test_tables_and_pictures(runs, tmp_path):
    endings = {"markdown": "md", "latex": "tex", "picture": "png"}
    files = {name: tmp_path / f"t.{ending}" for name, ending in endings.items()}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    arguments = ["evaluate", str(runs[0]), "--attacks", "fgsm", "--limit", "30", "--draws", "3"]
    assert main([*arguments, *words, "--out", str(tmp_path / "o")]) == 0
    lines = files["markdown"].read_text().splitlines()
    assert lines[0].startswith("| images | accuracy | averaged |")
    assert lines[3].startswith("| fgsm |")
    latex = files["latex"].read_text()
    assert r"\toprule" in latex
    assert latex.count(r"\\") == 6
    assert "%" not in latex.replace(r"\%", "")
    assert files["picture"].read_bytes()[1:4] == b"PNG"
    assert FGSM().name in latex


@pytest.mark.parametrize("count", [1, 2, 5])
def test_names_as_long_as_paths_leave_room_for_the_picture(count):
    names = [f"{'/a-folder' * 20}/{number}" for number in range(count)]
    figure = transfer_heat_map([[0.5] * count] * count, names, names, "a title " * 12)
    figure.draw_without_rendering()  # matplotlib warns where nothing is left
    assert min(figure.axes[0].get_position().size * figure.get_size_inches()) > 0.5
