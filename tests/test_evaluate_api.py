"""enresnet.evaluate from Python: what it takes, and what can be done with what it returns."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import enresnet
from enresnet.attacks import FGSM
from enresnet.cli import main
from enresnet.data import load_data
from enresnet.evaluation.inputs import as_images
from problems import SmallNet, random_problem

PIXELS = torch.randint(256, (24, 3, 8, 8), dtype=torch.uint8)
LABELS = random_problem((24, 3, 8, 8))[1]
FLOATS = PIXELS / 255
PAIRS = TensorDataset(FLOATS, LABELS)


@pytest.fixture(scope="module")
def model():
    return SmallNet().eval()


@pytest.mark.parametrize(
    "data",
    [
        (FLOATS, LABELS),
        [FLOATS, LABELS],
        (PIXELS, LABELS),
        (FLOATS.numpy(), LABELS.numpy()),
        (PIXELS.numpy(), LABELS.numpy().astype(">i4")),
        (FLOATS, LABELS.tolist()),
        PAIRS,
        DataLoader(PAIRS, batch_size=5),
        DataLoader(PAIRS, batch_size=5, shuffle=True),
        DataLoader(TensorDataset(PIXELS, LABELS), batch_size=7),
    ],
)
def test_the_same_images_in_any_form(data):
    found = as_images(data)
    images, labels = found.batch(slice(None))
    assert torch.equal(labels, LABELS)
    assert torch.allclose(images, FLOATS)


def test_a_loader_of_some_images_gives_some(model):
    rows = [3, 1, 2]
    for loader in (
        DataLoader(Subset(PAIRS, rows)),
        DataLoader(PAIRS, sampler=rows),
        DataLoader(PAIRS, batch_sampler=[[3, 1], [2]]),
    ):
        images, labels = as_images(loader).batch(slice(None))
        assert torch.equal(labels, LABELS[rows])
        assert torch.equal(images, FLOATS[rows])
    left = DataLoader(PAIRS, batch_size=10, drop_last=True)
    assert enresnet.evaluate(model, left).natural.images == 20


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((PIXELS, LABELS[:3]), ValueError, "labels must be one class number an image"),
        ((PIXELS[0], LABELS[:3]), ValueError, "pixels must be N x C x H x W"),
        ((FLOATS.numpy() * 2, LABELS), ValueError, r"images must lie in \[0, 1\]"),
        (DataLoader(TensorDataset(FLOATS)), TypeError, "pairs"),
        (DataLoader(TensorDataset(FLOATS), sampler=[1, 2]), TypeError, "images and labels"),
        (DataLoader(PAIRS, sampler=[]), ValueError, "at least one image"),
    ],
)
def test_bad_data(model, data, error, words):
    with pytest.raises(error, match=words):
        enresnet.evaluate(model, data)


def test_attacks_by_name_alone_or_several(model):
    whole = enresnet.evaluate(model, PAIRS, ["fgsm", FGSM(epsilon=0.1), "pgd3"], seed=0)
    assert list(whole.robust) == ["fgsm at 8/255", "fgsm at 0.1", "pgd3"]
    for attacks in ("pgd3", ["pgd3"], ("pgd3",)):
        found = enresnet.evaluate(model, PAIRS, attacks, seed=0)
        assert found.robust["pgd3"].accuracy == whole.robust["pgd3"].accuracy
    one = enresnet.evaluate(model, PAIRS, FGSM(), seed=0)
    assert list(one.robust) == ["fgsm"]
    named = enresnet.evaluate(model, PAIRS, {"mine": "fgsm", "yours": FGSM(epsilon=0.1)}, seed=0)
    assert list(named.robust) == ["mine", "yours"]
    with pytest.raises(ValueError, match="unknown attack 'fsgm'"):
        enresnet.evaluate(model, PAIRS, "fsgm")
    with pytest.raises(TypeError, match="names such as 'fgsm'"):
        enresnet.evaluate(model, PAIRS, [3])


@pytest.fixture(scope="module")
def result():
    return enresnet.evaluate(SmallNet(noise=0.3).eval(), PAIRS, "fgsm", seed=0, draws=3)


class TestResult:
    def test_it_prints_as_a_table(self, result, monkeypatch):
        monkeypatch.setenv("COLUMNS", "100")
        text = str(result)
        assert "clean" in text
        assert "always right" in text
        assert "on 24 images" in text
        assert max(map(len, text.splitlines())) <= 100
        assert "<td>fgsm</td>" in result._repr_html_()

    def test_its_rows_are_numbers(self, result):
        first, second = result.rows()
        assert (first["images"], second["images"]) == ("clean", "fgsm")
        assert first["low"] <= first["accuracy"] <= first["high"]
        assert second["attack"].startswith("FGSM(")

    def test_it_is_saved_and_loaded(self, result, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        path = tmp_path / "evaluation.json"
        result.save(path)
        assert enresnet.Evaluation.load(path) == result
        assert enresnet.Evaluation.load(tmp_path) == result
        result.save(path, section="other", model="mine", data="noise")
        with pytest.raises(ValueError, match="section must be one of best, other"):
            enresnet.Evaluation.load(path)
        assert enresnet.Evaluation.load(path, section="other") == result
        assert main(["results", str(tmp_path)]) == 0
        assert "mine on noise" in capsys.readouterr().out

    def test_damaged_files(self, result, tmp_path):
        path = tmp_path / "evaluation.json"
        damages = {"{": "is not JSON", "[]": "must hold sections", '{"a": 3}': "is damaged"}
        for text, words in damages.items():
            path.write_text(text)
            with pytest.raises(ValueError, match=words):
                enresnet.Evaluation.load(path)
        path.write_text("[]")
        with pytest.raises(ValueError, match="must hold sections"):
            result.save(path)
        assert path.read_text() == "[]"


def test_data_shows_itself_in_a_line():
    data = load_data("digits")
    assert repr(data.test) == "Images(500 x 1 x 8 x 8, uint8, 10 classes: 0, 1, 2, 3, 4, ...)"
    assert "\n" not in repr(data)
    assert len(repr(data)) < 200
    assert np.isfinite(len(repr(as_images((PIXELS, LABELS)))))


def test_what_is_public():
    names = {name for name in dir(enresnet) if not name.startswith("_")}
    assert {"evaluate", "diagnose", "Evaluation", "pde", "attacks", "create_model"} <= names
    assert not {"version", "TYPE_CHECKING", "load_on_first_use", "annotations"} & names
    assert enresnet.pde.__name__ == "enresnet.pde"
