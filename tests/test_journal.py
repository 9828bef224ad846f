"""Evaluations that are killed, shared, resumed: the result is that of one that was not."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from enresnet.attacks import FGSM, PGD
from enresnet.cli import main
from enresnet.evaluation import evaluate
from enresnet.evaluation.journal import Journal, packed, unpacked
from enresnet.evaluation.runner import Shard
from enresnet.evaluation.seeding import own_streams
from enresnet.models import create_model
from enresnet.models.noise import streams_of
from problems import SmallNet, random_problem, seeded

IMAGES, LABELS = random_problem((40, 3, 16, 16))


def model():
    return create_model("en2_resnet8", num_classes=4, generator=seeded()).eval()


def attacks():
    return [FGSM(eot=2), PGD(steps=2, eot=2, generator=seeded())]


def run(journal=None, network=None, **options):
    options = {"draws": 4, "batch_size": 16, "seed": 3, **options}
    network = network or model()
    return evaluate(network, (IMAGES, LABELS), attacks(), journal=journal, **options)


def facts(result):
    """Return everything but times."""
    values = result.to_json()
    for entry in (values["natural"], *values["robust"].values()):
        del entry["seconds"], entry["seconds_a_prediction"]
    return values


class StoppedError(Exception):
    """Stands for the end of a process."""


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    whole = facts(run())
    work = "enresnet.evaluation.runner.Runner._compute"
    import enresnet.evaluation.runner as module

    original, done = module.Runner._compute, []

    def counted(self, unit, *rest):
        if len(done) == 5:
            raise StoppedError
        done.append(unit)
        return original(self, unit, *rest)

    monkeypatch.setattr(work, counted)
    with pytest.raises(StoppedError):
        run(tmp_path / "j")
    first = list(done)
    done.clear()
    assert facts(run(tmp_path / "j")) == whole  # nine pieces, of which four are left
    assert len(done) == 4
    assert not set(first) & set(done)


def test_a_line_cut_short_is_done_again(tmp_path):
    whole = facts(run(tmp_path / "j"))
    path = tmp_path / "j" / "0.jsonl"
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    assert len(lines) == 9
    for cut in (len(content) - 20, len(content) - 1, len(b"".join(lines[:5])) + 3):
        path.write_bytes(content[:cut])
        assert facts(run(tmp_path / "j")) == whole
    damaged = content.replace(b'"right"', b'"wrong"', 1)
    path.write_bytes(damaged)
    assert facts(run(tmp_path / "j")) == whole


def test_the_noise_of_the_model_goes_on_where_it_was():
    network = model()
    with torch.no_grad():
        network(IMAGES)
    (stream,) = streams_of(network)
    before = stream.get_state()
    run(network=network)
    after = stream.get_state()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[place], before[place]) for place in before)


def test_the_journal_of_another_evaluation_is_left_alone(tmp_path):
    run(tmp_path / "j")
    before = {path.name: path.read_bytes() for path in (tmp_path / "j").iterdir()}
    for options in ({"seed": 4}, {"draws": 5}, {"limit": 20}, {"batch_size": 8}):
        with pytest.raises(FileExistsError, match="journal of another evaluation"):
            run(tmp_path / "j", **options)
    other = create_model("en2_resnet8", num_classes=4, generator=seeded(1))
    with pytest.raises(FileExistsError, match="targets"):
        run(tmp_path / "j", network=other)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "j").iterdir()}
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.tex").write_text("all of it")
    with pytest.raises(FileExistsError, match="is no journal"):
        run(tmp_path / "else")
    with pytest.raises(ValueError, match="seed must be given"):
        run(tmp_path / "k", seed=None)


def test_two_that_share_the_work_find_the_same(tmp_path):
    """One after the other, as if each were a process."""
    whole = facts(run())

    class ElsewhereError(Exception):
        pass

    calls = iter(range(10))

    def never_there():
        if next(calls) == 2:  # all work done, waiting for the other
            raise ElsewhereError

    for rank, expected in ((0, 5), (1, 2)):  # of nine, and of the four that are left
        calls = iter(range(10))
        with pytest.raises(ElsewhereError):
            run(tmp_path / "j", shard=Shard(rank, 2, never_there))
        lines = (tmp_path / "j" / f"{rank}.jsonl").read_bytes().splitlines()
        assert len(lines) == expected
    assert facts(run(tmp_path / "j")) == whole


def test_nobody_goes_on_before_all_have_read(tmp_path, monkeypatch):
    """Or the first would remove the journal that the others still read."""
    whole, events, entries = facts(run(tmp_path / "j")), [], Journal.entries
    monkeypatch.setattr(Journal, "entries", lambda self: events.append("read") or entries(self))
    shared = run(tmp_path / "j", shard=Shard(0, 2, lambda: events.append("wait")))
    assert facts(shared) == whole
    assert events[-2:] == ["read", "wait"]


def test_two_processes_cannot_have_the_same_journal(tmp_path):
    journal = Journal(tmp_path / "j", {"a": 1})
    journal.start()
    with (
        journal.writer(0),
        pytest.raises(FileExistsError, match="by another process"),
        journal.writer(0),
    ):
        pass


@pytest.mark.parametrize("loops", [True, False])
def test_a_journal_does_not_mix_the_loops_in_c_and_torchs(tmp_path, monkeypatch, loops):
    """They draw other noise from the same seed."""
    from enresnet import native

    monkeypatch.setattr(native, "library", lambda: object() if loops else None)
    Journal(tmp_path / "j", {"a": 1}).start()
    header = json.loads((tmp_path / "j" / "header.json").read_text())
    assert header["native_loops"] is loops
    monkeypatch.setattr(native, "library", lambda: None if loops else object())
    remedy = "install a C compiler" if loops else "set ENRESNET_NATIVE=0"
    with pytest.raises(FileExistsError, match=f"the loops in C.*other noise.*{remedy}"):
        Journal(tmp_path / "j", {"a": 1}).start()
    del header["native_loops"]  # as an earlier version wrote it
    (tmp_path / "j" / "header.json").write_text(json.dumps(header))
    Journal(tmp_path / "j", {"a": 1}).start()


@pytest.mark.parametrize("text", ["[]", "3", "{", ""])
def test_a_malformed_header_gets_a_sentence(tmp_path, text):
    journal = Journal(tmp_path / "j", {"a": 1})
    journal.start()
    (tmp_path / "j" / "header.json").write_text(text)
    with pytest.raises(ValueError, match=r"header\.json .*; remove"):
        journal.start()


@pytest.mark.parametrize("shape", [(0, 3), (5, 1), (7, 9), (16, 8)])
def test_bits_are_packed(shape):
    bits = torch.rand(shape, generator=seeded()) < 0.5
    assert torch.equal(unpacked(json.loads(json.dumps(packed(bits)))), bits)


def test_a_foreign_model_has_no_stream_to_seed(tmp_path):
    network = SmallNet().eval()
    assert facts(run(tmp_path / "j", network=network)) == facts(run(network=network))


def test_streams_of_one_model_are_told_apart():
    """Or two members with the same weights would answer the same."""
    one, two = (create_model("en1_resnet8", num_classes=4, generator=seeded()) for _ in range(2))
    both = nn.ModuleList([one, two]).eval()
    with torch.no_grad(), own_streams([both], 0) as reseed:
        reseed("here")
        first = (one(IMAGES), two(IMAGES))
        reseed("here")
        again = (one(IMAGES), two(IMAGES))
    assert not torch.equal(*first)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_a_seed_fixes_all_noise_that_torch_draws(tmp_path):
    """Ours inside a function, and that of torch's global generator."""
    network = model()

    def inside(images):
        return network(images)

    class Dropped(nn.Module):
        def forward(self, images):
            return network(images) + 0.5 * torch.randn(len(images), 4)

    state = torch.get_rng_state()
    for other in (inside, Dropped()):
        whole = facts(run(network=other))
        assert facts(run(network=other)) == whole
        assert facts(run(tmp_path / type(other).__name__, network=other)) == whole
    assert torch.equal(torch.get_rng_state(), state)


def test_only_what_differs_is_told(tmp_path):
    run(tmp_path / "j")
    other = [FGSM(eot=7), PGD(steps=2, eot=2, generator=seeded())]
    with pytest.raises(FileExistsError, match=r"\(attacks fgsm eot 2 there, 7 here\)"):
        evaluate(
            model(),
            (IMAGES, LABELS),
            other,
            draws=4,
            batch_size=16,
            seed=3,
            journal=tmp_path / "j",
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["--data", "digits", "--recipe", "fast", "--epochs", "1", "--limit", "200"]
    assert main(["train", "--model", "en1_resnet8", *words, "--out", str(folder)]) == 0
    return folder


EVALUATE = ["--attacks", "fgsm", "pgd5", "--limit", "96", "--batch-size", "8", "--draws", "3"]


def test_killed_and_resumed(trained, tmp_path):
    """With SIGKILL, again and again: the result is that of an evaluation left alone."""
    command = [sys.executable, "-m", "enresnet", "evaluate", str(trained), *EVALUATE]

    def started(out):
        return subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL)

    assert started(tmp_path / "whole").wait() == 0
    out, kills = tmp_path / "killed", 0
    journal = out / "evaluation.journal"
    out.mkdir()
    while not (out / "evaluation.json").exists():
        before = sum(path.stat().st_size for path in journal.glob("*/0.jsonl"))
        process = started(out)
        while process.poll() is None:
            time.sleep(0.02)
            there = sum(path.stat().st_size for path in journal.glob("*/0.jsonl"))
            if kills < 3 and there > before:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
        assert process.returncode in (0, -signal.SIGKILL)
    assert kills >= 2
    assert not journal.exists()
    results = [
        json.loads((tmp_path / name / "evaluation.json").read_text())["best"]
        for name in ("whole", "killed")
    ]
    for result in results:
        for entry in (result["natural"], *result["robust"].values()):
            del entry["seconds"], entry["seconds_a_prediction"]
    assert results[0] == results[1]


def test_two_real_processes(trained, tmp_path):
    arguments = ["evaluate", str(trained), *EVALUATE]
    assert main([*arguments, "--out", str(tmp_path / "one")]) == 0
    words = [*arguments, "--out", str(tmp_path / "two"), "--devices", "2"]
    subprocess.run(
        [sys.executable, "-m", "enresnet", *words],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found = [
        json.loads((tmp_path / name / "evaluation.json").read_text())["best"]
        for name in ("one", "two")
    ]
    for name in ("fgsm", "pgd5"):
        assert found[0]["robust"][name]["accuracy"] == found[1]["robust"][name]["accuracy"]
    assert found[0]["natural"]["accuracy"] == found[1]["natural"]["accuracy"]
