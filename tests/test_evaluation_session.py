"""One session for all evaluations: options, what is asked of a model, matrices."""

import json
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

from enresnet.attacks import FGSM
from enresnet.cli import main
from enresnet.evaluation import (
    EvaluationOptions,
    Journals,
    Session,
    Shard,
    TransferMatrix,
    diagnose,
    evaluate,
    first_look,
    transfer,
    transfer_matrix,
)
from enresnet.evaluation.adversarial_sets import AdversarialSets, with_eight_bit
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.evaluation.sections import ChosenAttack, Sections
from problems import SmallNet, random_problem

IMAGES, LABELS = random_problem((20, 3, 8, 8))
DATA = (IMAGES, LABELS)


@pytest.fixture
def asked(monkeypatch):
    """How often a model was identified, and asked whether it is deterministic."""
    counts = Counter()

    def count(name, original):
        def counted(*values, **options):
            counts[name] += 1
            return original(*values, **options)

        monkeypatch.setattr(first_look, name, counted)

    for name in ("identify", "answers_alike", "looks_deterministic"):
        count(name, getattr(first_look, name))
    return counts


class TestAskedOnce:
    """Both are asked of each model once in an evaluation, however many attacks and measurements."""

    def test_evaluate(self, asked, tmp_path):
        evaluate(SmallNet(), DATA, ["fgsm", "ifgsm2"], seed=0, journal=tmp_path / "j")
        assert asked == {"identify": 1, "answers_alike": 1, "looks_deterministic": 1}

    def test_transfer_matrix(self, asked, tmp_path):
        models = {name: SmallNet(seed=seed) for seed, name in enumerate("ab")}
        transfer_matrix(models, models, DATA, ["fgsm"], seed=0, journal=tmp_path / "j")
        assert asked == {"identify": 2, "answers_alike": 2, "looks_deterministic": 2}

    def test_diagnose(self, asked, tmp_path):
        sources = {"other": SmallNet(seed=1)}
        diagnose(SmallNet(), DATA, sources=sources, queries=2, limit=4, journal=tmp_path / "j")
        assert asked["identify"] == 2
        assert (
            asked["answers_alike"] == asked["looks_deterministic"] == 1
        )  # the source's EOT is set

    def test_the_command(self, asked, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "own.py").write_text(
            "import torch\ndef model(x):\n    return x.flatten(1)[:, :10]\n"
        )
        words = ["--data", "digits", "--limit", "20", "--attacks", "fgsm", "pgd2"]
        assert main(["evaluate", "own:model", *words]) == 0
        assert asked == {"identify": 1, "answers_alike": 1, "looks_deterministic": 1}

    @pytest.mark.parametrize("roles", [["--matrix"], ["--oracle", "own:one", "--target"]])
    def test_models_that_are_sources_and_targets(self, asked, roles, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "own.py").write_text(
            "import torch\nfrom torch import nn\n\n"
            "def one():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())\n\n"
            "def two():\n    return nn.Sequential(*one(), nn.Tanh())\n"
        )
        monkeypatch.delitem(sys.modules, "own", raising=False)
        words = ["own:one", "own:two", "--data", "digits", "--limit", "20", "--json", "m.json"]
        assert main(["transfer", *roles, *words, "--attacks", "fgsm"]) == 0
        assert asked == {"identify": 2, "answers_alike": 2, "looks_deterministic": 2}

    def test_the_first_answer_is_that_of_the_clean_images(self):
        """A deterministic model is not asked again for what the first look has seen."""
        seen = Counter()

        def model(images):
            seen.update(torch.equal(images, part) * name for name, part in parts.items())
            return images.flatten(1)[:, :4]

        parts = {"first": IMAGES[:12], "second": IMAGES[12:]}
        found = evaluate(model, DATA, batch_size=12, seed=0)
        assert seen["first"] == 2  # the first look, and another to see whether it answers alike
        assert seen["second"] == 1
        right = IMAGES.flatten(1)[:, :4].argmax(dim=1) == LABELS
        assert torch.equal(found.natural.scores, right.float())
        assert found.natural.seconds_a_prediction > 0


def test_a_model_that_is_both_draws_noise_of_its_own():
    """As two that were opened apart do; what is found of one holds for the other."""
    options = EvaluationOptions(draws=3, batch_size=8, seed=0, progress=False)

    def scores(source, target, **own):
        session = Session.between({"a": source}, {"a": target}, DATA, options, **own)
        matrix = session.measure("pgd2")
        return session, [matrix.natural["a"].scores, matrix.accuracy("a", "a", "pgd2").scores]

    one, two = (SmallNet(noise=0.5) for _ in range(2))
    _, apart = scores(one, two)
    session, both = scores(one, one, own_noise=True)
    assert session.sources["a"] is not one
    assert all(map(torch.equal, both, apart))
    _, shared = scores(one, one)
    assert not all(map(torch.equal, shared, apart))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"draws": 0}, "draws must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"journal": "j"}, "seed must be given with a journal"),
        ({"shard": Shard(0, 2)}, "journal must be given where several processes"),
    ],
)
def test_options_are_checked_in_one_place(options, error):
    with pytest.raises(ValueError, match=error):
        EvaluationOptions(**options)
    for measured in (evaluate, lambda model, *rest, **own: transfer(model, model, *rest, **own)):
        with pytest.raises(ValueError, match=error):
            measured(SmallNet(), DATA, ["fgsm"], **options)


@pytest.fixture(scope="module")
def matrix():
    models = {"one": SmallNet(), "two": SmallNet(seed=1)}
    return transfer_matrix(models, {"two": models["two"]}, DATA, ["fgsm", "ifgsm2"], seed=0)


class TestTransferMatrix:
    def test_it_knows_what_is_in_it(self, matrix):
        assert matrix.sources == ["one", "two"]
        assert matrix.targets == ["two"]
        assert matrix.attacks == ["fgsm", "ifgsm2"]
        alone = transfer(SmallNet(), SmallNet(seed=1), DATA, ["fgsm", "ifgsm2"], seed=0)
        assert matrix.natural["two"].accuracy == alone.natural.accuracy
        found = matrix.accuracy("one", "two", "fgsm")
        assert torch.equal(found.scores, alone.robust["fgsm"].scores)
        assert matrix.evaluation("one", "two").robust["fgsm"] == found

    def test_a_wrong_name_is_told(self, matrix):
        with pytest.raises(ValueError, match="target must be one of two; found 'tow'. Did you"):
            matrix.accuracy("one", "tow", "fgsm")

    def test_it_prints_as_tables_and_becomes_rows(self, matrix):
        text = str(matrix)
        assert "made against" in text
        assert "fgsm, EOT over 1: accuracy in %" in text
        assert "<table" in matrix._repr_html_()
        rows = matrix.rows()
        assert [row["source"] for row in rows] == ["", "one", "two", "one", "two"]
        assert [row["images"] for row in rows] == ["clean", *["fgsm"] * 2, *["ifgsm2"] * 2]
        assert rows[1]["accuracy"] == matrix.accuracy("one", "two", "fgsm").accuracy

    def test_it_is_stored_as_the_command_line_does(self, matrix):
        values = json.loads(json.dumps(matrix.to_json()))
        assert {(cell["oracle"], cell["target"]) for cell in values["robust"]["fgsm"]} == {
            ("one", "two"),
            ("two", "two"),
        }
        assert TransferMatrix.from_json(values) == matrix


def test_what_the_command_does_is_possible_in_python(tmp_path):
    """Known results, adversarial sets, rescoring in 8 bits, and the end of the journal."""
    journals = Journals(tmp_path / "journal")
    options = EvaluationOptions(draws=2, batch_size=8, seed=0, journal=journals, progress=False)
    session = Session.open(SmallNet(), DATA, options)
    chosen = [ChosenAttack("fgsm", FGSM(epsilon=0.1), 0.1, "fgsm")]
    conditions = {
        "model": "small",
        "weights": session.identity().digest,
        "data_name": "random",
        "checkpoint": None,
        "seed": 0,
        "draws": 2,
        "limit": None,
        "batch_size": 8,
        "eot": session.usual_eot(),
    }
    sets = AdversarialSets.at(tmp_path / "sets", session.data, chosen, conditions, png=True)
    session = replace(session, options=replace(options, image_sink=sets))
    kept = Sections(
        ResultsFolder(tmp_path),
        lambda radius: f"at {radius}",
        chosen,
        [0.1],
        session.data.fingerprint(),
        len(session.data),
        conditions,
    )
    assert kept.known() == {}
    result = session.complete({"fgsm": chosen[0].attack}, {})
    result = with_eight_bit(result, session, chosen, sets)
    assert list(result.robust) == ["fgsm", "fgsm_8bit"]
    assert kept.add(result) == []
    assert session.finish() == []
    assert not (tmp_path / "journal").exists()
    assert kept.known()["fgsm"].accuracy == result.robust["fgsm"].accuracy
    assert set(kept.known()) == {"natural", "fgsm"}
    other = replace(kept, conditions={**conditions, "eot": 5})
    assert set(other.known()) == {"natural"}  # the model decided otherwise
