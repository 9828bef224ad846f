"""enresnet.evaluate from Python: what it takes, and what can be done with what it returns."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import enresnet
from enresnet.attacks import FGSM
from enresnet.cli import main
from enresnet.cli.attack_choice import AttackOptions
from enresnet.data import load_data
from enresnet.evaluation import Diagnosis
from enresnet.evaluation.inputs import as_images, named_attacks
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

    def test_all_sections_print_as_the_command_shows_them(
        self, result, tmp_path, capsys, monkeypatch
    ):
        monkeypatch.setenv("COLUMNS", "150")
        result.save(tmp_path / "evaluation.json")
        result.save(tmp_path / "evaluation.json", section="last", model="mine")
        results = enresnet.load_results(tmp_path)
        assert main(["results", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"{results}\n"
        assert list(results) == ["best", "last"]
        assert results["last"] == result
        assert [row["section"] for row in results.rows()] == ["best", "best", "last", "last"]
        assert results._repr_html_().count("<table>") == 2
        only = enresnet.load_results(tmp_path / "evaluation.json", section="last")
        assert only.to_json() == {"last": results.to_json()["last"]}
        with pytest.raises(FileNotFoundError, match="no evaluation of 'first'"):
            enresnet.load_results(tmp_path, section="first")

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


def test_a_diagnosis_prints_and_is_kept(model):
    found = enresnet.diagnose(model, PAIRS, limit=4, draws=1, queries=2)
    assert Diagnosis.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert "many steps beat one" in " ".join(str(found).split())
    assert all(check.meaning in str(found) for check in found.warnings)
    assert found._repr_html_().count("<tr>") == 1 + len(found.rows())
    assert {row["verdict"] for row in found.rows()} <= {"pass", "warn", "undecided", "skipped"}
    assert found.undecided  # four images
    assert all(row["reason"] for row in found.rows() if row["verdict"] == "undecided")


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


class TestSaved:
    """What is saved belongs together: figures, and the scores that comparisons are made of."""

    def evaluations(self):
        data = random_problem((20, 3, 8, 8))
        return [
            enresnet.evaluate(SmallNet(seed=seed), data, "fgsm", seed=0) for seed in (0, 1)
        ], data

    def test_scores_are_those_of_the_figures(self, tmp_path):
        (one, two), _ = self.evaluations()
        for name, result in (("a", one), ("b", two)):
            (tmp_path / name).mkdir()
            result.save(tmp_path / name / "evaluation.json")
        in_memory = enresnet.compare(one, two).rows()
        stored = enresnet.compare(tmp_path / "a", tmp_path / "b").rows()
        assert [row["difference"] for row in stored] == [row["difference"] for row in in_memory]
        two.save(tmp_path / "a" / "evaluation.json", overwrite=True)
        same = enresnet.compare(tmp_path / "a", tmp_path / "b").rows()
        assert all(row["difference"] == 0 for row in same)

    def test_nothing_is_replaced_in_silence(self, tmp_path):
        (one, two), _ = self.evaluations()
        path = tmp_path / "evaluation.json"
        one.save(path)
        before = path.read_bytes(), (tmp_path / "scores.safetensors").read_bytes()
        with pytest.raises(FileExistsError, match="holds 'best' already.*overwrite=True"):
            two.save(path)
        assert before == (path.read_bytes(), (tmp_path / "scores.safetensors").read_bytes())
        two.save(path, section="other")
        assert set(enresnet.load_results(path)) == {"best", "other"}

    def test_figures_without_scores_leave_none_of_others(self, tmp_path):
        (one, two), _ = self.evaluations()
        one.save(tmp_path / "evaluation.json")
        two.save(tmp_path / "file.json")
        loaded = enresnet.Evaluation.load(tmp_path / "file.json")
        loaded.save(tmp_path / "evaluation.json", overwrite=True)
        with pytest.raises(ValueError, match="scores"):
            enresnet.compare(tmp_path, one)

    def test_what_is_known_of_the_evaluation_is_kept_and_shown(self, tmp_path):
        digits = load_data("digits").test
        model = enresnet.create_model("en2_resnet8", in_channels=1).eval()
        attacks = ["fgsm", "cw", "pgd2_l2"]
        found = enresnet.evaluate(model, digits, attacks, limit=4, draws=2, epsilon=0.1)
        found.save(tmp_path / "evaluation.json")
        results = enresnet.load_results(tmp_path)
        (title,) = results.tables()
        assert title.endswith("en2_resnet8 on digits, 4 images, epsilon = 0.1 and 0.5 in l2")
        assert [(row["epsilon"], row["norm"]) for row in results.rows()] == [
            (None, None),
            (0.1, "linf"),
            (None, None),
            (0.5, "l2"),
        ]
        again = enresnet.Evaluation.load(tmp_path)
        assert (again.model, again.data) == ("en2_resnet8", "digits")
        again.save(tmp_path / "evaluation.json", section="other", model="mine")
        other = enresnet.load_results(tmp_path).sections["other"]
        assert other.title.startswith("mine on digits")

    def test_what_has_no_name_is_told_by_its_class_and_number(self, tmp_path):
        (one, _), _ = self.evaluations()
        one.save(tmp_path / "evaluation.json")
        (title,) = enresnet.load_results(tmp_path).tables()
        assert ": SmallNet on 20 images" in title
        assert "None" not in title

    def test_a_file_of_before_still_opens(self, tmp_path):
        (one, _), _ = self.evaluations()
        one.save(tmp_path / "evaluation.json")
        stored = json.loads((tmp_path / "evaluation.json").read_text())
        stored["best"] |= {"model": "model", "data_name": "data", "epsilon": None}
        (tmp_path / "evaluation.json").write_text(json.dumps(stored))
        results = enresnet.load_results(tmp_path)
        assert results["best"] == one
        assert results.sections["best"].title.startswith("model on data, 20 images")

    def test_a_file_of_another_name_is_no_results_folder(self, tmp_path):
        (one, _), _ = self.evaluations()
        one.save(tmp_path / "mine.json")
        with pytest.raises(ValueError, match=r"Evaluation\.load reads"):
            enresnet.load_results(tmp_path / "mine.json")


def test_the_table_says_how_far_attacks_went():
    data = random_problem((4, 3, 8, 8))
    result = enresnet.evaluate(SmallNet(), data, ["fgsm", "pgd2_l2"], epsilon=0.2, seed=0)
    assert result.robust["fgsm"].settings["epsilon"] == 0.2
    assert "epsilon = 0.2 and 0.5 in l2; EOT over 1." in " ".join(str(result).split())
    with pytest.raises(ValueError, match="epsilon is for attacks by name"):
        enresnet.evaluate(SmallNet(), data, FGSM(), epsilon=0.2)


def test_the_table_says_which_attack_went_how_far():
    data = random_problem((4, 3, 8, 8))
    attacks = {"weak": FGSM(epsilon=0.1), "strong": FGSM(epsilon=0.2)}
    rows = enresnet.evaluate(SmallNet(), data, attacks, seed=0).table()
    assert [row["epsilon"] for row in rows] == ["", "0.1", "0.2"]
    by_name = enresnet.evaluate(SmallNet(), data, ["fgsm"], epsilon=[0.1, 0.2], seed=0).table()
    assert [row["images"] for row in by_name] == ["clean", "fgsm at 0.1", "fgsm at 0.2"]
    assert "epsilon" not in by_name[0], "the names say it"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, d: enresnet.evaluate(m, d, FGSM), r"found the class FGSM"),
        (lambda m, d: enresnet.evaluate(m, d, 3), r"found 3"),
        (lambda m, d: enresnet.transfer_matrix(m, {"m": m}, d, "fgsm"), "sources must be models"),
        (lambda *_: enresnet.train("resnet8", "out"), "config must be a RunConfig"),
    ],
)
def test_what_is_not_an_argument_gets_a_sentence(call, message):
    with pytest.raises(TypeError, match=message):
        call(SmallNet(), random_problem((4, 3, 8, 8)))


class TestSeveralRadii:
    radii = (2 / 255, 0.1)

    def test_each_attack_by_name_is_run_at_each(self):
        model = SmallNet().eval()
        names = ["fgsm", "cw5", "noise", "fgsm_l2"]
        result = enresnet.evaluate(model, PAIRS, names, epsilon=self.radii, draws=1, seed=0)
        assert list(result.robust) == [
            *(f"{name} at {radius}" for name in names[:3] for radius in ("2/255", "0.1")),
            "fgsm_l2",
        ]
        for name, value in result.robust.items():
            attack, _, radius = name.partition(" at ")
            epsilon = {"2/255": 2 / 255, "0.1": 0.1}.get(radius)
            alone = enresnet.evaluate(model, PAIRS, attack, epsilon=epsilon or 0.3, draws=1, seed=0)
            assert torch.equal(result.natural.scores, alone.natural.scores)
            assert torch.equal(value.scores, alone.robust[attack].scores)
            assert value.settings == alone.robust[attack].settings

    def test_clean_images_are_scored_once(self):
        calls, net = [], SmallNet().eval()

        def model(images):
            calls.append(len(images))
            return net(images)

        counts = []
        for radii in ([0.1], [0.1, 0.2, 0.3]):
            calls.clear()
            enresnet.evaluate(model, PAIRS, "noise", epsilon=radii, draws=1, seed=0, warn=False)
            counts.append(sum(calls))
        assert counts[1] == counts[0] + 2 * 2 * len(PAIRS)  # judged, and scored, at two more radii

    def test_names_are_those_of_the_command_line(self):
        chosen = AttackOptions(epsilon=self.radii).choose(["fgsm", "cw", "fmn5"], usual=0.2)
        made = named_attacks(["fgsm", "cw", "fmn5"], None, epsilon=self.radii)
        assert list(made) == [one.name for one in chosen]
        assert [a.settings() for a in made.values()] == [one.attack.settings() for one in chosen]

    def test_names_of_ones_own_and_attack_objects(self):
        made = named_attacks({"mine": "fgsm", "its": FGSM()}, None, epsilon=self.radii)
        assert list(made) == ["mine at 2/255", "mine at 0.1", "its"]
        made = named_attacks(["fgsm", FGSM(epsilon=0.3)], None, epsilon=np.array(self.radii))
        assert list(made) == ["fgsm at 2/255", "fgsm at 0.1", "fgsm at 0.3"]
        assert list(named_attacks("fgsm", None, epsilon=[0.1])) == ["fgsm"]

    @pytest.mark.parametrize(
        ("epsilon", "words"),
        [
            ([], "epsilon must be a radius or several, each once, found none"),
            ([0.1, 0.1], "each once, found 0.1, 0.1"),
            ([0.1, "0.2"], "epsilon must be a number"),
            ([0.1, 8], "epsilon must be at most 1"),
            ("0.1", "epsilon must be a number"),
            ([0.12345, 0.123451], "found 'fgsm at 0.1235' twice"),
        ],
    )
    def test_others_are_refused(self, epsilon, words):
        with pytest.raises((TypeError, ValueError), match=words):
            enresnet.evaluate(SmallNet(), PAIRS, "fgsm", epsilon=epsilon)

    def test_transfer_takes_them_too(self):
        model = SmallNet().eval()
        result = enresnet.transfer(model, model, PAIRS, "fgsm", epsilon=self.radii, draws=1, seed=0)
        assert list(result.robust) == ["fgsm at 2/255", "fgsm at 0.1"]
