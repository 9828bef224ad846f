"""Files that others wrote are read within bounds, and refused in a sentence."""

import json
import os
import struct
import warnings
import zlib

import pytest
import yaml

from enresnet.cli import main
from enresnet.common.reading import parse_yaml, read_yaml, regular_file
from enresnet.data import load_data
from enresnet.data.attacked import AdversarialSet, load_adversarial_set
from enresnet.data.decoding import read_square
from enresnet.data.registry import load_test_images
from enresnet.evaluation.journal import Journal
from enresnet.models import load_model
from enresnet.training import Run, RunConfig, load_recipe
from enresnet.training.checkpoint import newest_checkpoint

BOMB = "epochs: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "is refused: more than 10000 values"),
        ("a: &a [*a]", r"is refused: \*a holds itself"),
        ("[" * 5000, "is refused: nested more than 16 deep"),
        ("- " * 5000, "is refused: nested more than 16 deep"),
        ("epochs: 3\nsteps: 1\nepochs: 4", "is refused: 'epochs' is there twice"),
        ("recipe: {epochs: 3, epochs: 4}", "is refused: 'epochs' is there twice"),
        ("epochs: " + "9" * 5000, "is refused: an integer of 5000 digits in line 1, column 9"),
        ("epochs: 0x" + "f" * 5000, "is refused: an integer of 5002 digits"),
        ("epochs: 2001-99-99", "is not YAML"),
        ("epochs: [", "is not YAML"),
        ("#" * 70_000, "must be at most 65536 bytes"),
    ],
)
def test_yaml_is_bounded(tmp_path, text, words):
    for path, read in (
        (tmp_path / "x.yaml", lambda: load_recipe(str(tmp_path / "x.yaml"))),
        (tmp_path / "config.yaml", lambda: Run.open(tmp_path)),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=words) as raised:
            read()
        assert path.name in str(raised.value)
        assert len(str(raised.value)) < 1000


def test_what_yaml_may_do():
    text = "a: &a {x: 1, y: [1, 2.5, null]}\nb: *a\nc: {<<: *a, x: 2}"
    plain = {"x": 1, "y": [1, 2.5, None]}
    assert parse_yaml(text, name="x") == {"a": plain, "b": plain, "c": {**plain, "x": 2}}


@pytest.mark.parametrize("value", ["[" + "x, " * 3000 + "]", "x" * 60_000])
def test_errors_show_little_of_a_large_value(tmp_path, value):
    path = tmp_path / "x.yaml"
    for field in ("objective", "milestones", "awp", "epochs"):
        path.write_text(f"{field}: {value}")
        with pytest.raises((ValueError, TypeError)) as raised:
            load_recipe(str(path))
        assert len(str(raised.value)) < 1000


def test_what_is_no_file_is_refused_at_once(tmp_path, capsys):
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(ValueError, match=r"x\.yaml must be a plain file, found a pipe"):
        read_yaml(tmp_path / "x.yaml")
    with pytest.raises(ValueError, match="found a folder"):
        regular_file(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing does not exist"):
        regular_file(tmp_path / "nothing")
    words = ["--model", "resnet8", "--data", "digits", "--recipe", str(tmp_path / "x.yaml")]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 2
    assert "must be a plain file" in capsys.readouterr().err


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a pipe"), (os.mkdir, "a folder")])
def test_a_configuration_that_is_no_file_is_not_a_missing_one(make, kind, tmp_path, capsys):
    make(tmp_path / "config.yaml")
    with pytest.raises(ValueError, match=rf"config\.yaml must be a plain file, found {kind}"):
        Run.open(tmp_path)
    words = ["--model", "resnet8", "--data", "digits", "--epochs", "1", "--out", str(tmp_path)]
    for command in (["train", *words], ["resume", str(tmp_path)], ["evaluate", str(tmp_path)]):
        assert main(command) == 2
        assert f"must be a plain file, found {kind}" in capsys.readouterr().err


def test_a_pipe_in_place_of_a_network_is_not_a_missing_one(tmp_path, capsys):
    path = tmp_path / "net.safetensors"
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"net\.safetensors must be a plain file, found a pipe"):
        load_model(path)
    assert main(["evaluate", str(path), "--data", "digits"]) == 2
    assert "must be a plain file, found a pipe" in capsys.readouterr().err


def test_an_image_too_large_is_refused_without_warnings_of_others(tmp_path):
    header = struct.pack(">IIBBBBB", 13_000, 13_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    (tmp_path / "large.png").write_bytes(content)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="it claims 13000 x 13000 pixels, and at most"):
            read_square(tmp_path / "large.png", 32, gray=False)
    assert not told


def test_pipes_among_checkpoints_journals_and_sets_are_refused(tmp_path):
    for name in ("step-0000000001.safetensors", "0.jsonl", "00000000.safetensors", "set.json"):
        os.mkfifo(tmp_path / name)
    with pytest.warns(UserWarning, match="must be a plain file"):
        assert newest_checkpoint(tmp_path) is None
    for read in (
        Journal(tmp_path, {}).entries,
        lambda: AdversarialSet(tmp_path, classes=("a",), about={}),
    ):
        with pytest.raises(ValueError, match="must be a plain file, found a pipe"):
            read()
    with (
        pytest.raises(ValueError, match="must be a plain file, found a pipe"),
        Journal(tmp_path, {}).writer(0),
    ):
        pass
    (tmp_path / "set.json").unlink()
    about = {"format": "enresnet-adversarial-set-1", "kind": "float32", "classes": ["a"]}
    (tmp_path / "set.json").write_text(json.dumps(about))
    (tmp_path / "step-0000000001.safetensors").unlink()
    with pytest.raises(ValueError, match="must be a plain file, found a pipe"):
        load_adversarial_set(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("data", None, "data must be the name of a data set"),
        ("data", 7, "data must be the name of a data set"),
        ("seed", "x", "seed must be an integer"),
        ("limit", 0.5, "limit must be an integer"),
        ("size", -1, "size must be at least 1"),
        ("gray", 3, "gray must be true or false"),
        ("fingerprint", [], "fingerprint must be a text"),
        ("parts", 1, "parts must be the names"),
        ("parts", [None], "parts must be the names"),
        ("weights", True, "weights must be numbers"),
        ("weights", ["a"], "weights must be a number"),
        ("model", "x" * 5000, "unknown model"),
        ("model", [1] * 5000, "name must be a string"),
    ],
)
def test_a_malformed_configuration_gets_a_sentence(field, value, words, tmp_path):
    run = Run.create(tmp_path / "run", RunConfig("resnet8", "digits", load_recipe("fast")))
    path = run.folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), field: value}))
    with pytest.raises(ValueError, match=f"config.yaml: {words}") as caught:
        Run.open(run.folder)
    assert len(str(caught.value)) < 1000


def test_a_name_too_long_for_a_path_is_no_folder(tmp_path):
    config = RunConfig("resnet8", "x" * 5000, load_recipe("fast"))
    assert Run.open(Run.create(tmp_path / "run", config).folder).config == config
    for read in (load_data, load_test_images):
        with pytest.raises(ValueError, match="unknown data set 'xxx") as caught:
            read("x" * 5000)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("field", "value"), [("epsilon", 10**400), ("epochs", -(10**400)), ("teacher", 5)]
)
def test_numbers_beyond_all_floats_and_teachers_that_are_no_path(field, value, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({field: value}))
    with pytest.raises((ValueError, TypeError), match=f"{field} must be") as caught:
        load_recipe(str(path))
    assert len(str(caught.value)) < 1000
