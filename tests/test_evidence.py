"""The runs behind ``results``: each has commands that parse, and is done once."""

import functools
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import evidence
from enresnet.cli import main
from evidence import ALL, FAST, JOBS, Arm, Blind, Integrated, Place, Run, Varied

RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "runs", tmp_path / "results")


@pytest.fixture
def called(monkeypatch):
    """Return the commands that were called; those with the word ``failing`` fail."""
    found = SimpleNamespace(commands=[], failing=None, folders=set())

    def run(command, *, check, cwd):
        assert check is False
        found.commands.append(command)
        found.folders.add(cwd)
        return SimpleNamespace(returncode=int(found.failing in command))

    monkeypatch.setattr(evidence.subprocess, "run", run)
    return found


def keep(place, name, section="best", **images):
    """Write what ``keep.py`` and ``evaluate`` leave behind."""
    folder = place.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "best.safetensors").touch()
    robust = {attack: {"images": number} for attack, number in images.items()}
    (folder / "evaluation.json").write_text(json.dumps({section: {"robust": robust}}))


def test_every_job_has_a_name_of_its_own():
    names = [job.name for job in JOBS]
    assert len(set(names)) == len(names)


def test_every_command_parses(place, monkeypatch):
    for job in JOBS:
        for folder in (
            *getattr(job, "parts", ()),
            *([job.run] if isinstance(job, Varied) else ()),
            *(
                [f"{job.data}/{job.recipe}/{n}-seed{job.seed}" for n in (job.target, job.source)]
                if isinstance(job, Blind)
                else ()
            ),
        ):
            keep(place, folder)
        commands = list(job.commands(place))
        assert commands, job.name
        for command in commands:
            if command[1] == "-m":
                assert command[:3] == [sys.executable, "-m", "enresnet"]
                module = importlib.import_module(f"enresnet.cli.{command[3]}")
                parsed = functools.wraps(module.command)(lambda *_, **__: 0)
                with monkeypatch.context() as patch:
                    patch.setattr(module, "command", parsed)
                    assert main(command[3:]) == 0, command
            else:
                assert Path(command[1]).is_file()


def test_a_run_is_trained_kept_and_attacked(place, called):
    job = Run("resnet20", 3, attacks={"fgsm": ALL, "ifgsm20": 2000})
    assert evidence.do(job, place)
    train, kept, *attacks = called.commands
    assert train[3] == "train"
    assert str(place.runs / job.name) in train
    assert kept[1].endswith("keep.py")
    assert [command[4:] for command in attacks] == [
        [f"results/{job.name}", "--attacks", "fgsm"],
        [f"results/{job.name}", "--attacks", "ifgsm20", "--limit", "2000"],
    ]
    assert called.folders == {place.folder.parent}


def test_what_is_kept_is_not_trained_again(place, called):
    job = Run("resnet20", attacks={"fgsm": ALL, "ifgsm20": 2000})
    keep(place, job.name, fgsm=ALL, ifgsm20=1000)
    assert not job.done(place.folder)
    assert evidence.do(job, place)
    assert {command[3] for command in called.commands} == {"evaluate"}
    keep(place, job.name, fgsm=ALL, ifgsm20=2000)
    assert job.done(place.folder)
    called.commands.clear()
    assert evidence.do(job, place)
    assert not called.commands


def test_after_a_failure_nothing_is_kept(place, called):
    called.failing = "train"
    assert not evidence.do(Run("resnet20"), place)
    assert len(called.commands) == 1


def test_two_processes_do_not_do_the_same(place, called):
    job = Run("resnet20")
    with evidence.alone(place.runs / ".locks" / job.name.replace("/", "_")) as mine:
        assert mine
        assert evidence.do(job, place)
    assert not called.commands
    assert evidence.do(job, place)
    assert called.commands


def test_what_needs_others_waits_for_them(place, called):
    parts = (f"{FAST}/resnet20-seed0", f"{FAST}/resnet20-seed3")
    joined = Integrated("resnet20+resnet20", variant="integrated", parts=parts)
    blind = Blind("table6", "resnet20", "en2_resnet20", "cifar100")
    for job in (joined, blind, Varied(parts[0], 0, {"fgsm": ALL})):
        assert evidence.do(job, place)
    assert not called.commands
    for part in parts:
        keep(place, part)
    assert evidence.do(joined, place)
    first = called.commands[0]
    assert first[3:6] == ["integrate", *(f"results/{part}" for part in parts)]


def test_noise_and_blind_attacks_have_sections_of_their_own(place):
    name = f"{FAST}/en1_resnet20-seed0"
    varied = Varied(name, 0, {"fgsm": ALL})
    keep(place, name, fgsm=ALL)
    assert not varied.done(place.folder)
    keep(place, name, "best, with noise 0", fgsm=ALL)
    assert varied.done(place.folder)
    blind = Blind("table3", "resnet20", "en5_resnet20", "cifar10", images=10)
    keep(place, f"{FAST}/resnet20-seed0", "best, blind from en5_resnet20", fgsm=10, ifgsm20=10)
    assert not blind.done(place.folder)
    everything = {"fgsm": 10, "ifgsm20": 10, "cw": 10}
    keep(place, f"{FAST}/resnet20-seed0", "best, blind from en5_resnet20", **everything)
    assert blind.done(place.folder)


def test_sections_are_called_as_the_commands_call_them():
    """On a run that is there: what was measured of it counts."""
    assert Run("resnet20", 0).done(RESULTS)
    assert Varied(f"{FAST}/en1_resnet20-seed0", 0, {"fgsm": ALL, "cw": 1000}).done(RESULTS)
    assert Arm("base", 1).done(RESULTS)
    assert not Arm("base", 99).done(RESULTS)


def test_the_list(capsys):
    evidence.main(only=["cifar10/fast/resnet20-seed3"])
    assert "done     cifar10/fast/resnet20-seed3\n" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no job has nothing in its name"):
        evidence.main(only=["nothing"])


def test_what_failed_is_named(place, called):
    called.failing = "train"
    with pytest.raises(SystemExit, match=r"failed.*: cifar10/long/resnet20-seed0$"):
        evidence.main(work=place.runs, results=place.folder, only=["long/resnet20"])
