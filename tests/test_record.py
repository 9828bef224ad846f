"""Results on disk: nothing is overwritten by less, compared with other, or taken for another's."""

import functools
import json
import math
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from enresnet.attacks import FGSM, IFGSM
from enresnet.common.reading import safetensors_digest
from enresnet.evaluation import evaluate, load_results
from enresnet.evaluation.comparison import compare_records
from enresnet.evaluation.model_identity import digest_of, identify
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.models import Normalized, create_model, load_model
from enresnet.training import Run
from problems import SmallNet, random_problem, seeded

IMAGES, LABELS = random_problem((40, 3, 8, 8))
SHAPE = IMAGES.shape[1:]


def result(attack=None, limit=40, network=None, draws=3):
    network = network or SmallNet().eval()
    attacks = [attack or FGSM(epsilon=0.1)]
    return evaluate(network, (IMAGES, LABELS), attacks, limit=limit, seed=0, draws=draws)


def facts(**changes):
    about = {"model": "m", "weights": "w1", "data_name": "d", "checkpoint": "best", "epsilon": 0.1}
    return {**about, **changes}


def add(record, found, data="all", section="best", **changes):
    return record.add(section, found, data=data, conditions=facts(**changes))


class TestKeeping:
    def test_fewer_images_do_not_replace_more(self, tmp_path):
        record = ResultsFolder(tmp_path)
        assert add(record, result()) == []
        said = add(record, result(limit=8))
        assert len(said) == 2
        assert "kept fgsm: images 40, now 8" in said[1]
        kept = record.sections()["best"]
        assert kept["natural"]["images"] == kept["robust"]["fgsm"]["images"] == 40
        scores, _ = record.scores()
        assert {len(value) for value in scores.values()} == {40}
        assert add(record, result()) == []

    def test_other_settings_are_told_of(self, tmp_path):
        record = ResultsFolder(tmp_path)
        add(record, result())
        (word,) = add(record, result(FGSM(epsilon=0.2)))
        assert "replaced fgsm" in word
        assert "epsilon=0.1" in word
        assert "epsilon=0.2" in word

    def test_other_images_have_sections_of_their_own(self, tmp_path):
        record = ResultsFolder(tmp_path)
        add(record, result())
        before = record.sections()["best"]
        add(record, result(limit=39), data="others", data_name="sets/fgsm")
        assert record.sections()["best"] == before
        assert record.sections()["best on sets/fgsm"]["natural"]["images"] == 39
        add(record, result(limit=38), data="thirds", data_name="sets/fgsm")
        assert len(record.sections()) == 3

    def test_results_of_other_weights_are_put_aside(self, tmp_path):
        record = ResultsFolder(tmp_path)
        add(record, result())
        before = record.path.read_text()
        (word,) = add(record, result(limit=8), weights="w2")
        assert "evaluation.w1-1.json" in word
        assert (tmp_path / "evaluation.w1-1.json").read_text() == before
        assert (tmp_path / "evaluation.w1-1.safetensors").is_file()
        assert record.sections()["best"]["natural"]["images"] == 8


class TestDamage:
    @pytest.fixture
    def record(self, tmp_path):
        record = ResultsFolder(tmp_path)
        add(record, result())
        return record

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[" * 100_000,
            "3",
            '{"best": 3}',
            '{"best": {}}',
            '{"best": {"natural": {}, "robust": []}}',
            '{"best": {"natural": [], "robust": {}}}',
            '{"best": {"natural": {"accuracy": "much"}, "robust": {}}}',
            '{"best": {"natural": {"images": 3}, "robust": {}}}',
            '{"best": {"natural": {}, "robust": {"fgsm": 3}}}',
            '{"best": {"natural": {"accuracy": 1, "images": "all"}, "robust": {}}}',
        ],
    )
    def test_of_evaluation_json(self, text, record):
        record.path.write_text(text)
        for action in (record.check, record.sections, lambda: record.section("best")):
            with pytest.raises(ValueError, match=r"evaluation\.json"):
                action()

    def test_a_section_that_is_not_whole(self, record):
        for missing in ("model", "broken_in", "interval"):
            stored = json.loads(record.path.read_text())
            stored["best"].pop(missing, None)
            stored["best"]["natural"].pop(missing, None)
            copy = ResultsFolder(record.folder / missing)
            copy.folder.mkdir()
            copy.path.write_text(json.dumps(stored))
            with pytest.raises(
                ValueError, match=r"evaluation\.json is damaged: its section 'best'"
            ):
                copy.section("best")

    @pytest.mark.parametrize(
        "about",
        [
            "[]",
            "{}",
            '{"best/natural": 3}',
            '{"best/natural": {"draws": 3}}',
            '{"best/natural": {"draws": 0, "data": "all"}}',
            '{"best/natural": {"draws": "x", "data": "all"}}',
            '{"best/natural": {"draws": 1, "data": "all"}}',  # and two right answers
            '{"best/natural": {"draws": 3, "data": "all", "settings": 3}}',
        ],
    )
    def test_of_scores(self, about, record):
        content = save({"best/natural": torch.tensor([0, 2, 1])}, {"about": about})
        (record.folder / "scores.safetensors").write_bytes(content)
        for action in (record.check, record.scores, lambda: compare_records(record, record)):
            with pytest.raises(ValueError, match=r"scores\.safetensors is damaged"):
                action()

    def test_evaluate_notices_before_the_work(self, tmp_path, monkeypatch, capsys):
        from enresnet.cli import main

        def work(*_, **__):
            raise AssertionError("worked first")

        monkeypatch.setattr("enresnet.evaluation.evaluate", work)
        words = ["evaluate", "resnet8@digits", "--out", str(tmp_path)]
        for name, text in (
            ("evaluation.json", '{"best": []}'),
            ("scores.safetensors", "no tensors"),
        ):
            (tmp_path / name).write_text(text)
            assert main(words) == 2
            assert f"{name} is damaged" in capsys.readouterr().err
            (tmp_path / name).unlink()
        (tmp_path / "evaluation.json").mkdir()
        assert main(words) == 2
        assert "evaluation.json is no file" in capsys.readouterr().err


class TestComparing:
    def pair(self, tmp_path, *results, tries=1):
        records = [ResultsFolder(tmp_path / name) for name in "ab"]
        for record, found in zip(records, results, strict=True):
            record.folder.mkdir()
            add(record, found)
        return compare_records(*records, tries=tries)

    @pytest.mark.parametrize(
        ("one", "two", "word"),
        [
            (IFGSM(epsilon=0.1), IFGSM(epsilon=0.2), "epsilon 0.1 and 0.2"),
            (IFGSM(epsilon=0.1), IFGSM(epsilon=0.1 + 1e-9), "epsilon 0.1 and 0.100000001"),
            (IFGSM(step_size=0.1), IFGSM(step_size=0.2), "step_size 0.1 and 0.2"),
        ],
    )
    def test_other_settings_are_not_compared(self, tmp_path, one, two, word):
        found, skipped = self.pair(tmp_path, result(one), result(two))
        assert list(found) == ["natural"]
        assert word in skipped["ifgsm20"]

    def test_draws_and_eot_matter_to_a_random_model_alone(self, tmp_path):
        noisy = [SmallNet(noise=0.2, seed=seed).eval() for seed in (0, 1)]
        few = result(FGSM(eot=1), network=noisy[0], draws=2)
        many = result(FGSM(eot=5), network=noisy[1], draws=4)
        found, skipped = self.pair(tmp_path, few, many)
        assert not found
        assert skipped["natural"] == "draws 2 and 4"
        assert skipped["fgsm"] == "draws 2 and 4, eot 1 and 5"
        fixed = result(FGSM(eot=1))
        (tmp_path / "c").mkdir()
        found, skipped = self.pair(tmp_path / "c", fixed, many)
        assert set(found) == {"natural", "fgsm"}
        assert not skipped

    def test_an_attacker_with_several_tries(self, tmp_path):
        network = create_model("en1_resnet8", noise=0.5, generator=seeded()).eval()
        noisy = result(network=network, draws=6)
        plain = result()
        for tries in (1, 3, 6):
            (tmp_path / str(tries)).mkdir()
            found, skipped = self.pair(tmp_path / str(tries), noisy, plain, tries=tries)
            assert not skipped
            for name, value in (("natural", noisy.natural), ("fgsm", noisy.robust["fgsm"])):
                other = plain.natural if name == "natural" else plain.robust[name]
                right = (6 * value.scores).round().long()
                stand = sum(math.comb(int(r), tries) for r in right) / math.comb(6, tries)
                expected = stand / len(right) - other.accuracy
                assert found[name].difference == pytest.approx(expected, abs=1e-6)
        (tmp_path / "7").mkdir()
        found, skipped = self.pair(tmp_path / "7", noisy, plain, tries=7)
        assert not found
        assert skipped["fgsm"] == "6 draws tell nothing of 7 tries"

    def test_noise_that_images_share_says_nothing_of_several_tries(self, tmp_path):
        noisy = result(network=SmallNet(noise=0.5).eval(), draws=6)
        found, skipped = self.pair(tmp_path, noisy, result(), tries=2)
        assert not found
        assert "share their noise" in skipped["natural"]

    def test_files_without_settings_are_not_compared(self, tmp_path):
        one, two = result(), result()
        object.__setattr__(one.robust["fgsm"], "settings", None)
        found, skipped = self.pair(tmp_path, one, two)
        assert list(found) == ["natural"]
        assert "evaluate again" in skipped["fgsm"]


class Scaled(nn.Module):
    """A plain attribute decides what it answers."""

    def __init__(self, factor, note=None):
        super().__init__()
        self.inner, self.factor, self.note = SmallNet(), factor, note

    def forward(self, images):
        return self.inner(images) * self.factor


def closure(network, scale=1.0):
    return lambda images: scale * network(images)


NETWORK = SmallNet().eval()


def by_global(images):
    return NETWORK(images)


class Opaque:
    """Stands for a session of another library, which shows nothing of itself."""

    __slots__ = ("network",)

    def __init__(self, network):
        self.network = network

    def __call__(self, images):
        return self.network(images)


def usual_layers(activation=nn.ReLU, norm=nn.BatchNorm2d):
    layers = [nn.Conv2d(3, 2, 3), norm(2, affine=True, track_running_stats=True), activation()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 4))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.5)
    return net.eval()


def digest(model):
    return digest_of(model, SHAPE)


class TestModelsAreToldApart:
    @pytest.mark.parametrize("name", ["resnet20", "en1_resnet20", "en2_resnet20", "en5_resnet20"])
    def test_recorded_results_are_still_recognised(self, name):
        folder = Path(__file__).parent.parent / "results" / "cifar10" / name
        recorded = json.loads((folder / "evaluation.json").read_text())["best"]["weights"]
        network = Run.open(folder).load("best")
        assert digest_of(network) == digest_of(network, (3, 32, 32)) == recorded

    def test_recorded_networks_carry_a_digest_and_are_those_that_were_measured(self, tmp_path):
        found = sorted((Path(__file__).parent.parent / "results").rglob("best.safetensors"))
        assert len(found) >= 10
        for path in found:
            load_model(path)  # which compares the digest
            assert safetensors_digest(path), path
            if (path.parent / "evaluation.json").exists():
                assert load_results(path.parent).outdated == ()
        content = bytearray(found[0].read_bytes())
        content[-1000] ^= 1
        (tmp_path / "flipped.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="does not match its digest"):
            load_model(tmp_path / "flipped.safetensors")

    @pytest.mark.parametrize("name", ["resnet20", "en1_resnet20"])
    def test_other_weights_beside_recorded_results_are_noticed(self, name, tmp_path):
        results = Path(__file__).parent.parent / "results" / "cifar10"
        shutil.copy(results / name / "evaluation.json", tmp_path)
        shutil.copy(results / "en2_resnet20" / "best.safetensors", tmp_path)
        (said,) = load_results(tmp_path).outdated
        assert "was measured with other weights than best.safetensors holds now" in said

    def test_so_are_those_of_networks_of_torchs_usual_layers(self):
        assert digest_of(usual_layers()) == "ef45030ac10078d0"

    def test_layers_that_show_nothing_of_themselves_must_answer(self):
        """Weights and extra_repr of these are the same."""
        found = [usual_layers(), usual_layers(nn.Tanh), usual_layers(nn.ReLU, nn.InstanceNorm2d)]
        assert len({digest(network) for network in found}) == 3
        with pytest.raises(ValueError, match="shape, C x H x W, must be given"):
            digest_of(usual_layers(nn.Tanh))

    def test_plain_attributes_count(self):
        assert digest(Scaled(1)) == digest(Scaled(1))
        assert digest(Scaled(1)) != digest(Scaled(2))
        assert digest(Scaled(1, note="a")) != digest(Scaled(1, note="b"))

    def test_training_mode_and_counts_of_batches_do_not(self):
        network = Scaled(1).train()
        assert digest(network) == digest(network.eval())

    def test_functions_are_known_by_their_answers(self):
        one, two = SmallNet(seed=1).eval(), SmallNet(seed=2).eval()
        assert digest(closure(one)) == digest(closure(SmallNet(seed=1).eval()))
        assert digest(closure(one)) != digest(closure(two))
        assert digest(closure(one)) != digest(closure(one, 2.0))
        assert digest(closure(one)) != digest(closure(one, 1 + 1e-6))
        assert digest(functools.partial(by_global)) != digest(by_global)

    def test_so_are_functions_inside_our_modules(self):
        one, two = (closure(SmallNet(seed=seed).eval()) for seed in (1, 2))
        assert digest(Normalized(one, 0.5, 0.5)) != digest(Normalized(two, 0.5, 0.5))

    def test_a_hook_or_a_forward_of_its_own_must_answer(self):
        before = digest(usual_layers())
        hooked, changed = usual_layers(), usual_layers()
        hooked[2].register_forward_hook(lambda *values: values[-1] + 1)
        changed[2].forward = torch.tanh
        assert len({before, digest(hooked), digest(changed)}) == 3

    def test_globals_count_where_they_change_an_answer(self, monkeypatch):
        before = digest(by_global)
        monkeypatch.setattr(sys.modules[__name__], "NETWORK", SmallNet(seed=5).eval())
        assert digest(by_global) != before

    def test_code_counts_where_it_changes_an_answer(self):
        def module(body):
            made = types.ModuleType("made")
            exec(f"def model(x):\n    x = x.flatten(1)[:, :4]\n    return {body}", made.__dict__)
            return made.model

        assert digest(module("x + 1")) == digest(module("x + 1"))
        assert digest(module("x + 1")) != digest(module("x - 1"))
        assert digest(module("x + 1")) != digest(module("x + 2"))

    def test_what_cannot_be_seen_must_answer(self):
        one, two = (Opaque(SmallNet(seed=seed).eval()) for seed in (1, 2))
        assert digest(one) != digest(two)
        assert identify(one, SHAPE).certain
        assert not identify(Opaque(SmallNet(noise=0.5)), SHAPE).certain

    def test_noise_from_torchs_generators_is_fixed_for_the_question(self):
        def noisy(scale):
            return lambda images: images.flatten(1)[:, :4] + scale * torch.randn(len(images), 4)

        state = torch.get_rng_state()
        assert identify(noisy(1), SHAPE).certain
        assert digest(noisy(1)) == digest(noisy(1)) != digest(noisy(2))
        assert digest(closure(SmallNet(noise=0.5))) != digest(closure(SmallNet(noise=0.6)))
        assert torch.equal(torch.get_rng_state(), state)

    def test_other_noise_tells_nothing(self):
        def noisy(images):
            return torch.from_numpy(np.random.default_rng().random((len(images), 4)))

        assert not identify(noisy, SHAPE).certain

    def test_noise_does_not_count_where_it_stands(self):
        network = create_model("en2_resnet8", num_classes=4, generator=seeded()).eval()
        before = digest(closure(network)), digest(network)
        network(torch.rand(2, 3, 16, 16))
        assert (digest(closure(network)), digest(network)) == before

    def test_threads_do_not_count(self):
        threads, network = torch.get_num_threads(), closure(SmallNet().eval())
        try:
            found = set()
            for number in (1, 2):
                torch.set_num_threads(number)
                found.add(digest(network))
                assert torch.get_num_threads() == number
        finally:
            torch.set_num_threads(threads)
        assert len(found) == 1

    def test_a_journal_does_not_mix_two(self, tmp_path):
        options = {"seed": 0, "journal": tmp_path / "j"}
        evaluate(closure(SmallNet(seed=1).eval()), (IMAGES, LABELS), **options)
        with pytest.raises(FileExistsError, match="targets"):
            evaluate(closure(SmallNet(seed=2).eval()), (IMAGES, LABELS), **options)
        evaluate(closure(SmallNet(seed=1).eval()), (IMAGES, LABELS), **options)

    def test_a_journal_of_a_model_that_nothing_tells_apart_is_not_resumed(self, tmp_path):
        options = {"seed": 0, "draws": 2, "journal": tmp_path / "j"}
        evaluate(Opaque(SmallNet(noise=0.5)), (IMAGES, LABELS), **options)
        with pytest.raises(ValueError, match="remove the journal"):
            evaluate(Opaque(SmallNet(noise=0.5)), (IMAGES, LABELS), **options)


def test_the_journal_knows_settings_to_the_last_digit(tmp_path):
    options = {"seed": 0, "journal": tmp_path / "j", "limit": 8}
    evaluate(SmallNet(), (IMAGES, LABELS), [FGSM(epsilon=0.03)], **options)
    with pytest.raises(FileExistsError, match="attacks"):
        evaluate(SmallNet(), (IMAGES, LABELS), [FGSM(epsilon=0.0300001)], **options)
    header = json.loads((tmp_path / "j" / "header.json").read_text())
    assert header["attacks"]["fgsm"]["epsilon"] == 0.03
    assert "8/255" in repr(FGSM())
