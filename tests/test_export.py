"""Exported networks: the same logits elsewhere, with the noise off, given, or drawn there."""

import json
import subprocess
import sys

import pytest
import torch

from enresnet import load_model
from enresnet.cli import main
from enresnet.models import create_model, feynman_kac, set_noise, without_noise
from enresnet.publish import Exported, export_model, open_onnx
from enresnet.publish.noise_in_graphs import WithoutStreams
from problems import SmallNet, seeded

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
IMAGES = torch.rand(5, 1, 8, 8, generator=seeded())


def ensemble(**options):
    return create_model("en2_resnet8", in_channels=1, generator=seeded(), **options).eval()


def loaded(path):
    with path.open("rb") as file:
        return torch.export.load(file).module()


class TestProgram:
    def test_noise_off(self, tmp_path):
        model = ensemble(mean=(0.5,), std=(0.2,))
        before = model(IMAGES).shape
        written = export_model(model, tmp_path / "m.pt2", example=IMAGES, classes=["a", "b"])
        assert (written.format, written.noise, written.numbers) == ("pt2", "off", 0)
        assert written.difference < 1e-5
        again = loaded(written.path)
        for count in (1, 2, 5):  # any number of images
            with without_noise(model), torch.no_grad():
                torch.testing.assert_close(again(IMAGES[:count]), model(IMAGES[:count]))
        assert model(IMAGES).shape == before
        assert not torch.equal(model(IMAGES), model(IMAGES))  # its own noise is as it was

    def test_facts_in_the_file(self, tmp_path):
        written = export_model(
            ensemble(), tmp_path / "m.pt2", noise="input", example=IMAGES, classes=["a", "b"]
        )
        facts = {"enresnet.json": ""}
        with written.path.open("rb") as file:
            torch.export.load(file, extra_files=facts)
        found = json.loads(facts["enresnet.json"])
        assert json.loads(found["classes"]) == ["a", "b"]
        assert found["images"] == "N x 1 x 8 x 8 in [0, 1]"
        assert int(found["numbers"]) == written.numbers

    @pytest.mark.parametrize("draws", [1, 2])
    @pytest.mark.parametrize("std_over", ["example", "batch"])
    def test_noise_as_an_input(self, tmp_path, std_over, draws):
        model = ensemble(std_over=std_over, draws=draws)
        written = export_model(model, tmp_path / "m.pt2", noise="input", example=IMAGES)
        # Two members of three blocks: 16 x 8 x 8, 32 x 4 x 4 and 64 x 2 x 2.
        assert written.numbers == draws * 2 * (16 * 64 + 32 * 16 + 64 * 4)
        again = loaded(written.path)
        numbers = torch.randn(400, 5, written.numbers, generator=seeded(1))
        with torch.no_grad():
            one = again(IMAGES, numbers[0])
            assert torch.equal(again(IMAGES, numbers[0]), one)
            assert not torch.equal(again(IMAGES, numbers[1]), one)
            there = torch.stack([again(IMAGES, n) for n in numbers])
            here = torch.stack([model(IMAGES) for _ in range(400)])
            with without_noise(model):
                quiet = again(IMAGES, torch.zeros(5, written.numbers))
                torch.testing.assert_close(quiet, model(IMAGES), rtol=1e-4, atol=1e-5)
        self.same_spread(there, here)

    def test_noise_drawn(self, tmp_path):
        model = ensemble()
        written = export_model(model, tmp_path / "m.pt2", noise="drawn", example=IMAGES)
        again = loaded(written.path)
        with torch.no_grad():
            there = torch.stack([again(IMAGES) for _ in range(400)])
            here = torch.stack([model(IMAGES) for _ in range(400)])
        assert not torch.equal(there[0], there[1])
        self.same_spread(there, here)

    def same_spread(self, there, here):
        error = 5 * ((there.var(dim=0) + here.var(dim=0)) / 400).sqrt()
        assert ((there.mean(dim=0) - here.mean(dim=0)).abs() < error).all()
        torch.testing.assert_close(there.std(dim=0), here.std(dim=0), rtol=0.25, atol=0.01)

    def test_networks_that_are_not_ours(self, tmp_path):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(1, 1, 3, padding=1)

            def forward(self, x):
                return x + torch.relu(self.conv(x))

        inner = torch.nn.Sequential(Block(), torch.nn.Flatten(), torch.nn.Linear(64, 4))
        model = feynman_kac(inner, members=2, noise=0.3, example=IMAGES).eval()
        written = export_model(model, tmp_path / "m.pt2", noise="input", example=IMAGES)
        assert written.numbers == 2 * 64
        assert written.difference < 1e-5


class TestRefused:
    def test_words(self, tmp_path):
        with pytest.raises(ValueError, match="format must be one of"):
            export_model(ensemble(), tmp_path / "m.tflite", example=IMAGES)
        with pytest.raises(ValueError, match=r"path must end in \.onnx for format='onnx', found m"):
            export_model(ensemble(), tmp_path / "m.pt2", format="onnx", example=IMAGES)
        with pytest.raises(ValueError, match="noise must be one of"):
            export_model(ensemble(), tmp_path / "m.pt2", noise="loud", example=IMAGES)
        with pytest.raises(TypeError, match="model must be an nn.Module"):
            export_model(len, tmp_path / "m.pt2", example=IMAGES)

    @pytest.mark.parametrize("noise", ["input", "drawn"])
    def test_a_model_without_noise(self, tmp_path, noise):
        model = ensemble()
        set_noise(model, 0.0)
        with pytest.raises(ValueError, match="is for a model with noise; this one has none"):
            export_model(model, tmp_path / "m.pt2", noise=noise, example=IMAGES)

    def test_what_torch_cannot_follow_leaves_no_file(self, tmp_path):
        class Asks(SmallNet):
            def forward(self, images):
                return super().forward(images) * (2 if float(images.sum()) > 3 else 1)

        path = tmp_path / "m.pt2"
        path.write_text("before")
        with pytest.raises(ValueError, match="model cannot be exported"):
            export_model(Asks(), path, example=torch.rand(2, 3, 8, 8))
        assert path.read_text() == "before"
        assert [p.name for p in tmp_path.iterdir()] == ["m.pt2"]


def test_the_noise_of_a_copy_alone_is_changed():
    model = ensemble()
    plain = WithoutStreams(model, "input", IMAGES)
    assert plain.numbers > 0
    assert not torch.equal(model(IMAGES), model(IMAGES))


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "export en3_resnet8@digits --format pt2 --noise input --size 8 --out m.pt2"
    assert main(words.split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "m.pt2 takes images, N x 1 x 8 x 8 in [0, 1], and noise, N x 5376" in said
    assert "its logits are the network's" in said
    assert main("export en3_resnet8@digits --size 8 --out n.pt2".split()) == 0
    assert main("export en3_resnet8@digits --size 8 --format pt2".split()) == 0
    assert main("export en3_resnet8@digits --size 8 --format pt2 --noise drawn".split()) == 0
    named = ("m", "n", "en3_resnet8@digits", "en3_resnet8@digits-noise-drawn")
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.pt2" for name in named}
    assert main("export en3_resnet8@digits --format pt2 --out no/such/m.pt2".split()) == 2
    assert main("export resnet8@digits --format pt2 --noise drawn --size 8".split()) == 2
    assert "this one has none" in capsys.readouterr().err


def test_the_command_says_how_to_get_fresh_noise_from_onnxruntime(tmp_path, monkeypatch, capsys):
    """Who opens the file without this package has to seed it."""
    monkeypatch.setattr(
        "enresnet.publish.export_model",
        lambda *_, **__: Exported(tmp_path / "m.onnx", "onnx", "drawn", 0, 0.0),
    )
    words = f"export en3_resnet8@digits --size 8 --out {tmp_path / 'm.onnx'} --noise"
    for noise, expected in (("drawn", True), ("off", False)):
        assert main([*words.split(), noise]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("onnxruntime.set_seed(secrets.randbits(31)) before" in said) is expected


def test_without_onnx_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"pip install .*onnxruntime"):
        export_model(ensemble(), tmp_path / "m.onnx", example=IMAGES)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
class TestOnnx:
    @pytest.fixture(autouse=True)
    def _installed(self):
        for name in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(name)

    def run(self, session, **inputs):
        named = {name: value.numpy() for name, value in inputs.items()}
        return torch.from_numpy(session.run(None, named)[0])

    def test_noise_off_and_any_number_of_images(self, tmp_path):
        model = ensemble()
        written = export_model(model, tmp_path / "m.onnx", example=IMAGES, classes=["a", "b"])
        assert written.difference < 1e-4
        session = open_onnx(written.path)
        with without_noise(model), torch.no_grad():
            for count in (1, 5):
                torch.testing.assert_close(
                    self.run(session, images=IMAGES[:count]),
                    model(IMAGES[:count]),
                    rtol=1e-3,
                    atol=1e-4,
                )
        facts = session.get_modelmeta().custom_metadata_map
        assert json.loads(facts["classes"]) == ["a", "b"]

    def test_noise_given_is_repeated(self, tmp_path):
        model = ensemble()
        written = export_model(model, tmp_path / "m.onnx", noise="input", example=IMAGES)
        numbers = torch.randn(5, written.numbers, generator=seeded(2))
        plain = WithoutStreams(model, "input", IMAGES)
        for _ in range(2):
            found = self.run(open_onnx(written.path), images=IMAGES, noise=numbers)
            torch.testing.assert_close(found, plain(IMAGES, numbers), rtol=1e-3, atol=1e-4)

    def test_noise_drawn_has_the_same_mean_and_spread_and_sessions_differ(self, tmp_path):
        model = ensemble()
        written = export_model(model, tmp_path / "m.onnx", noise="drawn", example=IMAGES)
        session = open_onnx(written.path)
        there = torch.stack([self.run(session, images=IMAGES) for _ in range(400)])
        with torch.no_grad():
            here = torch.stack([model(IMAGES) for _ in range(400)])
        TestProgram().same_spread(there, here)
        fresh = [self.run(open_onnx(written.path), images=IMAGES) for _ in range(3)]
        assert not torch.equal(fresh[0], fresh[1])
        assert not torch.equal(fresh[1], fresh[2])
        code = (
            "import onnxruntime, numpy, sys; "
            f"session = onnxruntime.InferenceSession({str(written.path)!r}); "
            "images = numpy.eye(8, dtype='float32').reshape(1, 1, 8, 8); "
            "print(session.run(None, {'images': images})[0].tolist())"
        )
        said = {
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout
            for _ in range(2)
        }
        assert len(said) == 2  # processes differ by themselves

    def test_weights_of_the_box(self, tmp_path):
        model = load_model("en3_resnet8@digits")
        written = export_model(model, tmp_path / "m.onnx", noise="input", example=IMAGES)
        assert written.difference < 1e-4
