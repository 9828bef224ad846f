"""Weights on disk: what is loaded is what was saved, or an error."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from enresnet.models import (
    Ensemble,
    create_model,
    feynman_kac,
    load_model,
    save_model,
    seed_noise,
)
from enresnet.models.storage import _needed, describe
from problems import SmallNet, seeded

IMAGES = torch.rand(2, 1, 8, 8, generator=seeded())
OPTIONS = {"in_channels": 1, "num_classes": 3}


def same_predictions(one, two):
    for model in (one, two):
        seed_noise(model.eval(), seeded(9))
    return torch.equal(one(IMAGES), two(IMAGES))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet8", {"mean": [0.1], "std": [0.3]}),
        ("resnet11", {}),
        ("wrn10_2", {}),
        ("en2_resnet8", {"noise": 0.3, "std_over": "batch", "draws": 2}),
        ("en2_resnet8", {"weights": [1, 3], "average": "probabilities"}),
        ("en2_resnet8+resnet14+en1_wrn10_1", {"weights": [1, 2, 1]}),
    ],
)
def test_a_model_comes_back_whole(tmp_path, name, options):
    model = create_model(name, **OPTIONS, **options)
    model.train()(IMAGES)  # moves the BatchNorm statistics
    save_model(model, tmp_path / "model.safetensors")
    again = load_model(tmp_path / "model.safetensors")
    assert not again.training
    assert repr(again) == repr(model)
    assert same_predictions(model, again)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_loaded_noise_is_seedable(tmp_path):
    save_model(create_model("en1_resnet8", **OPTIONS), tmp_path / "m")
    one, two = (load_model(tmp_path / "m", generator=seeded(2))(IMAGES) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("stored", "loaded"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_narrow_weights_are_widened(tmp_path, stored, loaded):
    save_model(create_model("en2_resnet8", **OPTIONS).to(stored), tmp_path / "m")
    model = load_model(tmp_path / "m")
    assert {p.dtype for p in model.parameters()} == {loaded}
    assert model(IMAGES.to(loaded)).isfinite().all()


def test_a_wide_buffer_says_nothing_of_the_weights(tmp_path):
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = create_model("resnet8", **OPTIONS)
            self.register_buffer("temperature", torch.ones((), dtype=torch.float64))

        def forward(self, x):
            z = self.inner(x)
            return x.new_tensor(self.temperature.item()) * z + torch.zeros_like(z)

    network = Tempered()
    save_model(feynman_kac(network, members=1, init="copy"), tmp_path / "m")
    model = load_model(tmp_path / "m", network=network)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    buffers = dict(model.named_buffers())
    (name,) = [name for name in buffers if name.endswith("temperature")]
    assert buffers[name].dtype == torch.float64
    assert model(IMAGES).isfinite().all()


def test_a_member_given_twice_is_stored_twice(tmp_path):
    net = create_model("resnet8", **OPTIONS)
    save_model(Ensemble([net, net]), tmp_path / "m")
    assert same_predictions(load_model(tmp_path / "m"), Ensemble([net, net]))


def test_noise_that_differs_between_blocks_is_refused(tmp_path):
    model = create_model("en1_resnet8")
    model.members[0].stages[1][0].noise.noise = 0.7
    with pytest.raises(ValueError, match="noise differs between the blocks.*set_noise"):
        save_model(model, tmp_path / "m")


def test_files_get_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    save_model(create_model("resnet8"), tmp_path / "m")
    assert (tmp_path / "m").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_other_modules_are_refused_and_nothing_is_written(tmp_path):
    for model in (nn.Linear(2, 2), Ensemble([SmallNet()])):
        with pytest.raises(TypeError, match="model must be made by enresnet.create_model"):
            save_model(model, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    model, path = create_model("resnet8", **OPTIONS), tmp_path / "m"
    save_model(model, path)
    before = path.read_bytes()

    def fail(filename, content):
        with filename.open("wb") as file:
            file.write(content[:10])
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        save_model(model, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_weights_give_the_same_bytes(tmp_path):
    """In other processes too, whose hashes differ."""
    code = (
        "import sys, torch; from enresnet.models import create_model, save_model;"
        "save_model(create_model('en2_resnet8', generator=torch.Generator().manual_seed(3)), "
        "sys.argv[1])"
    )
    for name in "ab":
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True)
    contents = {(tmp_path / name).read_bytes() for name in "ab"}
    for number in range(8):
        save_model(load_model(tmp_path / "a"), tmp_path / str(number))
        contents.add((tmp_path / str(number)).read_bytes())
    assert len(contents) == 1
    content = contents.pop()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    header = json.loads(content[8 : 8 + size])
    assert list(header) == sorted(header)
    assert list(header["__metadata__"]) == ["format", "model", "sha256"]


def test_files_without_a_digest_still_open(tmp_path):
    model = create_model("en2_resnet8", **OPTIONS)
    save_model(model, tmp_path / "new")
    with safe_open(tmp_path / "new", framework="pt") as file:
        header = file.metadata()
    del header["sha256"]
    save_file(load_file(tmp_path / "new"), tmp_path / "old", header)
    assert same_predictions(load_model(tmp_path / "old"), model)


class TestDamage:
    @pytest.fixture
    def path(self, tmp_path):
        save_model(create_model("resnet8", **OPTIONS), tmp_path / "m")
        return tmp_path / "m"

    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no model at .*nothing"):
            load_model(tmp_path / "nothing")
        with pytest.raises(FileNotFoundError, match="its folder does not exist"):
            save_model(create_model("resnet8"), tmp_path / "no" / "m")

    @pytest.mark.parametrize("keep", [0, 7, 100, -1])
    def test_truncated(self, path, keep):
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(ValueError, match="is not a whole safetensors file"):
            load_model(path)

    @pytest.mark.parametrize("place", [-1, -1000, "model"])
    def test_a_single_bit(self, path, place):
        content = bytearray(path.read_bytes())
        if place == "model":
            content = content.replace(b'blocks\\": 1', b'blocks\\": 2')
        else:
            content[place] ^= 1
        assert content != path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged|is not a whole safetensors file"):
            load_model(path)

    def test_pickle(self, path):
        torch.save({"weight": torch.ones(1)}, path)
        with pytest.raises(ValueError, match="is not a whole safetensors file"):
            load_model(path)

    def test_made_by_others(self, path):
        save_file({"x": torch.ones(1)}, path)
        with pytest.raises(ValueError, match="not written by enresnet.save_model"):
            load_model(path)

    @pytest.mark.parametrize(
        "description",
        [
            "not json",
            "3",
            "{}",
            '{"resnet": {"blocks": 1, "gain": 2}}',
            '{"resnet": {"blocks": -1}}',
            '{"resnet": {"blocks": 2, "in_channels": 1, "num_classes": 3}}',
            '{"ensemble": {}, "members": []}',
            '{"resnet": {"blocks": 100000000, "widths": [16], "num_classes": 3, "in_channels": 1}}',
            '{"resnet": {"blocks": 1, "widths": [9999999], "num_classes": 3, "in_channels": 1}}',
        ],
    )
    def test_another_description(self, path, description):
        save_file(load_file(path), path, {"format": "enresnet-model-1", "model": description})
        with pytest.raises(ValueError, match="does not describe a model we can build"):
            load_model(path)

    @pytest.mark.parametrize(
        ("description", "words"),
        [
            ("[]", r"holds resnet, external, or ensemble and members; found \[\]"),
            ('{"x": 1}', "holds resnet, external, or ensemble and members; found {'x': 1}"),
            ('{"resnet": {}}', "resnet must be a mapping with blocks, num_classes, .* found {}"),
            ('{"resnet": 3}', "resnet must be a mapping with blocks, .* found 3"),
            ('{"external": {"kind": "x"}}', "external must be a mapping with source, kind, noise"),
            ('{"ensemble": [], "members": []}', r"ensemble must be a mapping; found \[\]"),
            ('{"ensemble": {}, "members": 3}', "members must be a list, found 3"),
            ('{"ensemble": {}, "members": [{}]}', "holds resnet, .* found {}"),
            (None, "found None"),
        ],
    )
    def test_what_was_expected_is_said(self, path, description, words):
        header = {"format": "enresnet-model-1"}
        header |= {} if description is None else {"model": description}
        save_file(load_file(path), path, header)
        with pytest.raises(ValueError, match=f"{path.name} does not describe .*{words}"):
            load_model(path)

    @pytest.mark.parametrize("members", [1, 3])
    @pytest.mark.parametrize("kind", ["basic", "bottleneck"])
    def test_a_large_network_without_its_tensors(self, path, members, kind):
        """Tensors with a long side and nothing in them once vouched for 3 GB."""
        network = {"widths": [9000, 9000], "num_classes": 3, "in_channels": 1, "block": kind}
        description = {
            "ensemble": {},
            "members": [{"resnet": {"blocks": 1, **network}}] * members,
        }
        tensors = {str(number): torch.empty(9000, 0) for number in range(200)}
        metadata = {"format": "enresnet-model-1", "model": json.dumps(description)}
        save_file(tensors, path, metadata)
        with pytest.raises(ValueError, match="larger than the tensors.*found 200 with 0"):
            load_model(path)

    @pytest.mark.parametrize("name", ["resnet8", "resnet11", "resnet29", "wrn10_2", "en2_resnet14"])
    def test_the_least_that_a_network_needs_is_most_of_it(self, name):
        model = create_model(name, **OPTIONS)
        layers, numbers = _needed(describe(model))
        stored = model.state_dict().values()
        assert layers <= len(stored)
        assert 0.5 < numbers / sum(tensor.numel() for tensor in stored) <= 1

    def test_other_tensors(self, path):
        tensors = load_file(path)
        tensors.pop("stem.weight")
        config = json.dumps({"resnet": create_model("resnet8", **OPTIONS).config})
        save_file(tensors, path, {"format": "enresnet-model-1", "model": config})
        with pytest.raises(ValueError, match=r"stem\.weight"):
            load_model(path)
