"""Malformed inputs of every kind that the package reads, a generator each.

A generator is a pair: what it prepares once, and a function that makes one input, hands it over and
checks what came out. An error is judged by :mod:`torture.outcomes`; a result that is wrong raises
``AssertionError``, which is a loss.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from enresnet.attacks import create_attack
from enresnet.cli import COMMANDS, main
from enresnet.data.archive import read_archive
from enresnet.data.attacked import AdversarialSet, load_adversarial_set
from enresnet.data.folder import load_folder
from enresnet.data.plain_pickle import read_pickle
from enresnet.evaluation import evaluate
from enresnet.evaluation.comparison import compare_records
from enresnet.evaluation.journal import Journal
from enresnet.evaluation.results_folder import ResultsFolder
from enresnet.models import create_model, load_model, save_model
from enresnet.training import Callback, Recipe, Run, RunConfig, load_recipe, train
from enresnet.training.checkpoint import checkpoints, newest_checkpoint, write_checkpoint
from enresnet.training.events import Step
from torture.mutations import ODD, damaged_bytes, damaged_values
from torture.outcomes import RefusedError

Attempt = Callable[[Any, random.Random], str]


def _fresh(name: str) -> Path:
    """Return an empty folder of this name."""
    folder = Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _fill(name: str, files: dict[str, bytes], draw: random.Random, chosen: str) -> Path:
    """Return a fresh folder of these files, one of them damaged: its values, or its bytes."""
    folder = _fresh(name)
    for file, content in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_damaged_file(file, content, draw) if file == chosen else content)
    return folder


def _damaged_file(name: str, content: bytes, draw: random.Random) -> bytes:
    if name.endswith(".json") and draw.random() < 0.6:
        return json.dumps(damaged_values(json.loads(content), draw)).encode()
    return damaged_bytes(content, draw)


def _contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in a folder, by their path inside it."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _check_whole(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise unless all tensors are as they were before the damage."""
    assert all(torch.equal(found[name], expected[name]) for name in expected), "damaged tensors"


def _small() -> torch.nn.Module:
    return create_model(
        "resnet8", in_channels=1, num_classes=3, generator=torch.Generator().manual_seed(0)
    ).eval()


# Recipes and configurations -----------------------------------------------------------------------


def _prepare_recipes() -> dict[str, Any]:
    return load_recipe("fast").to_dict()


def _try_recipe(values: dict[str, Any], draw: random.Random) -> str:
    path = Path("recipe.yaml")
    path.write_bytes(_yaml(values, draw))
    recipe = load_recipe(str(path))
    assert recipe.epochs >= 1
    assert 0 <= recipe.epsilon <= 1
    return "read"


def _yaml(values: dict[str, Any], draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        text = yaml.safe_dump(damaged_values(values, draw), sort_keys=False)
        return text.encode(errors="replace")
    if draw.random() < 0.1:  # nested aliases, each line twice the one before
        lines = ["a0: &a0 [x, x]"]
        lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, draw.randrange(5, 40))]
        return "\n".join(lines).encode()
    return damaged_bytes(yaml.safe_dump(values, sort_keys=False).encode(), draw)


def _prepare_configs() -> tuple[dict[str, Any], bytes]:
    shutil.rmtree("seed-run", ignore_errors=True)
    run = Run.create(Path("seed-run"), RunConfig("resnet8", "digits", load_recipe("fast")))
    values = yaml.safe_load((run.folder / "config.yaml").read_text())
    buffer = io.StringIO()
    names = "epoch learning_rate train_loss validation_natural validation_robust note kept".split()
    writer = csv.writer(buffer)
    writer.writerow(names)
    writer.writerows([[n, 0.1, 1.5, 0.5, 0.3, "", ""] for n in range(1, 4)])
    return values, buffer.getvalue().encode()


def _try_config(material: tuple[dict[str, Any], bytes], draw: random.Random) -> str:
    values, metrics = material
    folder = _fresh("run")
    whole = draw.random() < 0.4
    text = yaml.safe_dump(values).encode() if whole else _yaml(values, draw)
    (folder / "config.yaml").write_bytes(text)
    (folder / "metrics.csv").write_bytes(damaged_bytes(metrics, draw) if whole else metrics)
    run = Run.open(folder)
    assert type(run.config.seed) is int, "a seed that is no number"
    rows, kept = run.metrics(), run.kept_epoch()
    assert kept is None or kept["epoch"] in [row["epoch"] for row in rows]
    return f"opened, {run.state}"


# Checkpoints, weights, journals, results ----------------------------------------------------------


SHORT = Recipe(objective="natural", batch_size=20, epochs=1)
TINY = RunConfig("resnet8", "digits", SHORT, limit=40)


def _prepare_checkpoints() -> tuple[bytes, dict[str, Tensor], dict[str, Any]]:
    shutil.rmtree("seed-run", ignore_errors=True)
    with contextlib.suppress(_EnoughError):
        train(TINY, Path("seed-run"), checkpoint_every=0, callbacks=[_TwoSteps()])
    found = newest_checkpoint(Path("seed-run/last"))
    assert found is not None
    tensors, facts, _ = found
    return checkpoints(Path("seed-run/last"))[-1].read_bytes(), tensors, facts


class _EnoughError(Exception):
    """Ends the training that makes a checkpoint."""


class _TwoSteps(Callback):
    def step(self, step: Step) -> None:
        if step.step == 2:
            raise _EnoughError


def _try_checkpoint(material: tuple[bytes, dict[str, Tensor], Any], draw: random.Random) -> str:
    content, tensors, facts = material
    if draw.random() < 0.1:
        return _try_facts(tensors, facts, draw)
    folder = _fresh("last")
    (folder / "step-0000000007.safetensors").write_bytes(damaged_bytes(content, draw))
    found = newest_checkpoint(folder)
    if found is None:
        return "seen as damaged"
    assert found[1] == facts, "damaged facts were taken"
    _check_whole(found[0], tensors)
    return "whole after all"


def _try_facts(tensors: dict[str, Tensor], facts: Any, draw: random.Random) -> str:
    """Go on from a checkpoint that is whole and says something else."""
    shutil.rmtree("run", ignore_errors=True)
    shutil.copytree("seed-run", "run")
    odd = damaged_values(facts, draw)
    write_checkpoint(_fresh("run/last"), 1, tensors, odd if isinstance(odd, dict) else {})
    run = train(TINY, Path("run"))
    assert run.state == "finished"
    return "went on"


def _prepare_weights() -> tuple[bytes, dict[str, Tensor]]:
    save_model(_small(), "seed.safetensors")
    return Path("seed.safetensors").read_bytes(), dict(_small().state_dict())


def _try_weights(material: tuple[bytes, dict[str, Tensor]], draw: random.Random) -> str:
    content, tensors = material
    path = Path("weights.safetensors")
    if draw.random() < 0.3:
        with contextlib.suppress(Exception):  # what the library refuses to write is no input
            description = damaged_values({"resnet": _small().config}, draw)
            header = {"format": "enresnet-model-1", "model": json.dumps(description)}
            save_file({"odd": torch.zeros(draw.choice([0, 1, 7]))}, path, header)
    else:
        path.write_bytes(damaged_bytes(content, draw))
    _check_whole(load_model(path).state_dict(), tensors)
    return "whole after all"


HEADER = {"images": 10, "attacks": {"fgsm": {"epsilon": 0.1}}, "seed": 0}


def _prepare_journals() -> tuple[dict[str, bytes], dict[str, Any]]:
    journal = Journal(_fresh("seed-journal"), HEADER)
    journal.start()
    with journal.writer(0) as append:
        for number in range(5):
            append(f"unit {number}", {"seconds": 1.5 * number, "scored": {}})
    return _contents(journal.folder), journal.entries()


def _try_journal(material: tuple[dict[str, bytes], dict[str, Any]], draw: random.Random) -> str:
    files, entries = material
    journal = Journal(_fill("journal", files, draw, draw.choice(list(files))), HEADER)
    journal.start()
    found = journal.entries()
    assert all(entries[name] == value for name, value in found.items()), "a damaged entry"
    return f"{len(found)} entries"


def _prepare_results() -> dict[str, bytes]:
    images = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(12) % 3
    result = evaluate(_small(), (images, labels), [create_attack("fgsm")], seed=0, warn=False)
    about = {"model": "m", "weights": "w", "data_name": "d", "checkpoint": "best", "epsilon": 0.1}
    record = ResultsFolder(_fresh("seed-results"))
    record.add("best", result, data="images", conditions=about)
    return _contents(record.folder)


def _try_results(files: dict[str, bytes], draw: random.Random) -> str:
    record = ResultsFolder(_fill("results", files, draw, draw.choice(list(files))))
    for name in record.names():
        record.section(name)
    found, _ = compare_records(record, ResultsFolder(Path("seed-results")))
    return f"{len(found)} rows"


# Images, archives, sets ---------------------------------------------------------------------------

FORMATS = ("png", "jpeg", "bmp", "gif", "tiff", "ppm", "webp")


def _prepare_images() -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    found = {}
    for kind in FORMATS:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        found[kind] = buffer.getvalue()
    root = _fresh("images")
    for part in ("train", "test"):
        for name in ("a", "b"):
            (root / part / name).mkdir(parents=True)
            (root / part / name / "good.png").write_bytes(found["png"])
    return found


def _try_image(formats: dict[str, bytes], draw: random.Random) -> str:
    kind = draw.choice(list(formats))
    path = Path("images/train/a") / f"odd.{draw.choice(['png', 'jpg', 'tif', 'gif', kind])}"
    path.write_bytes(damaged_bytes(formats[kind], draw))
    try:
        train, _, test = load_folder(Path("images"), size=8)
    finally:
        path.unlink()
    assert len(train) == 3
    assert len(test) == 2
    assert train.pixels.shape[1:] == (3, 8, 8)
    return "read"


def _prepare_archives() -> tuple[bytes, bytes]:
    import pickle

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in ("data/one.bin", "data/two.bin"):
            member = tarfile.TarInfo(name)
            member.size = 40
            archive.addfile(member, io.BytesIO(bytes(range(40))))
    arrays = {b"data": np.arange(12, dtype=np.uint8).reshape(2, 6), b"labels": [1, 2]}
    return buffer.getvalue(), pickle.dumps(arrays, protocol=2)


def _try_archive(material: tuple[bytes, bytes], draw: random.Random) -> str:
    import gzip

    packed, pickled = material
    if draw.random() < 0.3:
        read_pickle(damaged_bytes(pickled, draw), "a pickle")
        return "a pickle"
    path = Path("archive.tar.gz")
    plain = draw.random() < 0.6  # otherwise nearly all damage is gzip's
    path.write_bytes(
        damaged_bytes(gzip.decompress(packed), draw) if plain else damaged_bytes(packed, draw)
    )
    found = read_archive(path, ["one.bin", "two.bin"])
    assert set(found) == {"one.bin", "two.bin"}
    return "an archive"


def _prepare_sets() -> dict[str, dict[str, bytes]]:
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(6) % 3
    found = {}
    for kind in ("float32", "png"):
        made = AdversarialSet(
            _fresh(f"seed-set-{kind}"),
            classes=("a", "b", "c"),
            kind=kind,
            about={"attack": "FGSM()", "model": "m", "images": "i", "count": 6},
            epsilon=0.1,
            norm="linf",
        )
        made.check(images)
        made.write(0, images, labels, images)
        found[kind] = _contents(made.folder)
    return found


def _try_set(sets: dict[str, dict[str, bytes]], draw: random.Random) -> str:
    kind = draw.choice(list(sets))
    files = sets[kind]
    chosen = draw.choice(["set.json", draw.choice(list(files))])
    images = load_adversarial_set(_fill("set", files, draw, chosen))
    assert len(images) == 6
    return "read"


# Tensors and command lines ------------------------------------------------------------------------

ATTACKS = ("fgsm", "ifgsm2", "pgd2", "fgsm_l2", "apgd2", "square5", "cw")
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8),
    *(torch.bool, torch.complex64),
)


def _try_tensor(model: torch.nn.Module, draw: random.Random) -> str:
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    images, labels = _odd_images(draw, generator), _odd_labels(draw, generator)
    name = draw.choice(ATTACKS)
    options = {"epsilon": draw.choice(ODD)} if draw.random() < 0.2 and name != "cw" else {}
    adversarial = create_attack(name, **options)(model, images, labels, progress=False)
    assert adversarial.shape == images.shape
    assert adversarial.dtype == images.dtype
    assert adversarial.isfinite().all()
    assert ((adversarial >= 0) & (adversarial <= 1)).all()
    return f"{name} {images.dtype}"


def _odd_images(draw: random.Random, generator: torch.Generator) -> Any:
    odd: list[tuple[int, ...]] = [
        *((1, 8, 8), (8, 8), (2, 8, 8, 1), (0, 1, 8, 8), (2, 1, 9, 8), (2, 3, 8, 8), (2, 1, 0, 8)),
        *((2, 1, 8, 8, 1), (2,), (), (2, 1, 1, 1)),
    ]
    shape = (2, 1, 8, 8) if draw.random() < 0.7 else draw.choice(odd)
    images: Any = torch.rand(shape, generator=generator)
    kind = draw.randrange(14)
    if kind == 0:
        return images.to(draw.choice(DTYPES))
    if kind == 1:
        return images * draw.choice([255, -1, 1e30]) + draw.choice([0, -0.5])
    if kind == 2 and images.numel():
        images.view(-1)[draw.randrange(images.numel())] = draw.choice(
            [float("nan"), float("inf"), -float("inf"), 1.0000001, -1e-9]
        )
        return images
    if kind == 3:
        return images.to("meta")
    if kind == 4 and images.ndim:
        return images.to_sparse()
    if kind == 5:
        return draw.choice([images.numpy(), images.tolist(), None, "images", 1.0, [images], {}])
    if kind == 6:
        return images.requires_grad_()
    if kind == 7 and images.ndim == 4:
        return images.to(memory_format=torch.channels_last)
    if kind == 8 and images.ndim:
        return images.expand(1, *images.shape).squeeze(0).transpose(0, -1)
    return images


def _odd_labels(draw: random.Random, generator: torch.Generator) -> Any:
    count = 2 if draw.random() < 0.9 else draw.choice([1, 0, 3])
    labels: Any = torch.randint(3, (count,), generator=generator)
    kind = draw.randrange(12)
    if kind == 0:
        return labels.to(draw.choice(DTYPES))
    if kind == 1:
        return labels + draw.choice([3, -1, 2**40, -(2**40)])
    if kind == 2:
        return labels[:, None]
    if kind == 3:
        return draw.choice([labels.tolist(), labels.numpy(), None, "1", labels.float() / 2])
    if kind == 4:
        return labels.to("meta")
    return labels


CHEAP = ("models", "attacks", "runs", "results", "compare", "data", "resume", "integrate", "train")


def _prepare_commands() -> list[str]:
    _prepare_results()
    for name in ("r1", "r2"):
        shutil.copytree("seed-results", name, dirs_exist_ok=True)
    Run.create(_fresh("runs") / "one", RunConfig("resnet8", "digits", load_recipe("fast")))
    Path("words.yaml").write_text("epochs: 1\nodd: 3\n")
    options = "--json --out --seed --limit --model --data --recipe --epochs --section --against"
    options += " --tries --epsilon --attacks --markdown --size --gray --noise --help --source"
    return [*options.split(), "r1", "r2", "runs", "runs/one", "words.yaml", "digits", "best"]


def _try_command(vocabulary: list[str], draw: random.Random) -> str:
    words = [draw.choice([*CHEAP, *CHEAP, *COMMANDS, "", "helpp", "-h", "help"])]
    for _ in range(draw.randrange(6)):
        odd = str(draw.choice(ODD)).replace("/", "").replace("..", "")[:200]
        words.append(draw.choice([draw.choice(vocabulary), odd, draw.choice(vocabulary)]))
    # Only commands that refuse at once, or end within a moment, are let loose.
    if words[0] in ("train", "resume"):
        words += ["--epochs", "0"]
    if words[0] in ("quickstart", "pde", "evaluate", "transfer", "diagnose"):
        words += ["--no-such-option"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
    assert code in (0, 1, 2), f"exit code {code}"
    assert "Traceback" not in err.getvalue(), err.getvalue()[-1000:]
    assert "\x1b" not in out.getvalue() + err.getvalue(), "a terminal escape was printed"
    command = words[0] if words[0] in COMMANDS else "no command"
    if code == 2:
        said = err.getvalue().strip()
        assert said, f"{words} was refused without a word"
        raise RefusedError(f"{command}: {' '.join(said.split())}")
    return f"{command} {code}"


GENERATORS: dict[str, tuple[Callable[[], Any], Attempt]] = {
    "recipes": (_prepare_recipes, _try_recipe),
    "configs": (_prepare_configs, _try_config),
    "checkpoints": (_prepare_checkpoints, _try_checkpoint),
    "weights": (_prepare_weights, _try_weights),
    "journals": (_prepare_journals, _try_journal),
    "results": (_prepare_results, _try_results),
    "images": (_prepare_images, _try_image),
    "archives": (_prepare_archives, _try_archive),
    "sets": (_prepare_sets, _try_set),
    "tensors": (_small, _try_tensor),
    "commands": (_prepare_commands, _try_command),
}
