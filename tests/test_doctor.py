"""enresnet doctor: it says what there is, and never fails because something is not."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from enresnet import native
from enresnet.cli import installation, main
from enresnet.common import requirements
from enresnet.common.requirements import Requirement, is_at_least
from enresnet.data import cifar
from enresnet.models import external

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SECTIONS = ["versions", "hardware", "compiler", "data", "extras", "networks of others", "caches"]
SECTIONS.append("environment variables")


def lines(section, name=None):
    found = list(installation._all_of(installation.SECTIONS[section]))
    return found if name is None else next(line for line in found if line.name == name)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A pyproject.toml that takes the place of ours."""

    def written(*core, **extras):
        lists = "\n".join(f"{name} = {list(of)}" for name, of in extras.items())
        (tmp_path / "pyproject.toml").write_text(
            f'[project]\nname = "enresnet"\nrequires-python = ">=3.11"\n'
            f"dependencies = {list(core)}\n[project.optional-dependencies]\n{lists}\n"
        )
        monkeypatch.setattr(requirements, "clone", lambda: tmp_path)

    return written


def test_all_is_told_and_written(tmp_path, capsys):
    file = tmp_path / "doctor.json"
    assert main(["doctor", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    told = json.loads(file.read_text())
    assert list(told) == ["works", *SECTIONS]
    assert told["works"] is True
    for section in SECTIONS:
        assert f"{section}:\n" in shown
        assert told[section]
        for line in told[section]:
            assert set(line) == {"name", "found", "remark", "state"}
            assert line["state"] in ("ok", "note")
            assert line["name"] in shown
    names = {line["name"] for line in told["versions"]}
    assert names >= {"enresnet", "python", "torch", "numpy", "scikit-learn", "lightning-fabric"}
    assert "everything that the package needs works" in shown
    assert "cannot be found out" not in shown


def test_a_file_that_cannot_be_written_is_bad_input(tmp_path, capsys):
    assert main(["doctor", "--json", str(tmp_path / "no" / "file")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err


def test_the_requirements_are_those_of_pyproject():
    core = [re.split("[>]", line)[0] for line in PROJECT["dependencies"]]
    assert [one.name for one in requirements.core_requirements()] == core
    assert str(requirements.core_requirements()[0]) == PROJECT["dependencies"][0]
    assert set(requirements.extras()) == set(PROJECT["optional-dependencies"]) - {"dev"}
    assert requirements.python_needed() == PROJECT["requires-python"].removeprefix(">=")
    assert {"enresnet", *core} & {line.name for line in lines("versions")} == {"enresnet", *core}


def test_an_installed_copy_reads_its_metadata(monkeypatch):
    monkeypatch.setattr(requirements, "clone", lambda: None)
    assert Requirement("torch", "2.6") in requirements.core_requirements()
    assert Requirement("tensorboard", "2.18") in requirements.extras()["tensorboard"]
    assert "dev" not in requirements.extras()
    assert requirements.python_needed() == "3.11"
    assert "constraints" not in requirements.install_command([Requirement("onnx")])


@pytest.mark.parametrize(
    ("version", "least", "enough"),
    [
        ("2.13.0+cpu", "2.6", True),
        ("2.6", "2.6.0", True),
        ("2.6.0", "2.6", True),
        ("2.5.9", "2.6", False),
        ("10.0", "9.1", True),
        ("2.7.0a0+git1", "2.6", True),
        ("1", "", True),
    ],
)
def test_versions_compare_by_their_numbers(version, least, enough):
    assert is_at_least(version, least) is enough


def test_a_missing_an_old_and_a_broken_dependency_are_broken(clone, tmp_path, monkeypatch, capsys):
    (tmp_path / "fragile_thing.py").write_text("raise RuntimeError('no such library\\nmore')")
    folder = tmp_path / "fragile_thing-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fragile-thing\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    clone("no-such-package>=1.0", "numpy>=99", "fragile-thing", "rich>=13")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "BROKEN: missing: no-such-package>=1.0 is needed" in shown
    assert "BROKEN: too old: numpy>=99 is needed" in shown
    assert "BROKEN: cannot be imported: RuntimeError: no such library" in shown
    assert "broken: no-such-package, numpy, fragile-thing\n" in shown
    assert "pip install 'no-such-package>=1.0' 'numpy>=99' fragile-thing\n" in shown
    assert re.search(r"rich +\d", shown)


def test_an_old_python_is_broken(monkeypatch):
    monkeypatch.setattr(requirements, "python_needed", lambda: "99.0")
    assert lines("versions", "python").state == "broken"


def test_a_missing_extra_comes_with_a_command_that_pip_understands(clone):
    clone(extra=["no-such-package>=1.0", "numpy>=1"])
    (line,) = lines("extras")
    assert line.state == "ok"
    assert "no no-such-package" in line.found
    command = line.remark.partition(": ")[2]
    words = shlex.split(command)
    assert words == [sys.executable, "-m", "pip", "install", "no-such-package>=1.0"]


@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_libraries_of_networks_are_looked_for_and_imported(name, monkeypatch):
    monkeypatch.setattr(Requirement, "installed", lambda _: "")
    line = lines("networks of others", name)
    assert (line.found, line.state) == ("not installed", "ok")
    command = f"{sys.executable} -m pip install --no-deps timm torchvision"
    assert shlex.split(line.remark.partition(": ")[2]) == shlex.split(command)
    monkeypatch.setattr(Requirement, "installed", lambda _: "1.0")
    monkeypatch.setattr(external, f"import_{name}", lambda: None)
    assert lines("networks of others", name).remark == f"{name}:NAME works"

    def fails():
        raise ImportError("too new") from RuntimeError("no such operator")

    monkeypatch.setattr(external, f"import_{name}", fails)
    line = lines("networks of others", name)
    assert (line.found, line.state) == ("1.0", "note")
    assert line.remark.startswith("cannot be imported: RuntimeError: no such operator; to install")


def test_in_a_clone_the_command_keeps_to_its_versions():
    words = shlex.split(requirements.install_command([Requirement("onnx", "1.17")]))
    assert words[words.index("-c") + 1] == str(ROOT / "constraints.txt")
    assert words[-1] == "onnx>=1.17"


def test_a_probe_that_fails_is_a_line(monkeypatch, capsys):
    def fails():
        raise RuntimeError("the bus is down\x1b[31m\nand more")
        yield

    everything = {
        section: dict.fromkeys(probes, fails) for section, probes in installation.SECTIONS.items()
    }
    monkeypatch.setattr(installation, "SECTIONS", everything)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    count = sum(map(len, everything.values()))
    assert shown.count("cannot be found out: RuntimeError: the bus is down\\x1b[31m\n") == count


def test_a_warning_is_a_line(monkeypatch):
    import torch

    def old():
        import warnings

        warnings.warn("the driver is too old", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(torch.cuda, "device_count", old)
    remarks = [line.remark for line in lines("hardware") if line.name == "GPU"]
    assert "the driver is too old" in remarks


def test_loops_that_cannot_be_compiled_are_a_note(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = lines("compiler", "loops in C")
    assert (line.state, line.found) == ("note", "not in use")
    assert line.remark.startswith("there is no C compiler; ")
    assert lines("compiler", "compiler").state == "note"
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'cc: error: bad day' >&2\necho terminated >&2\nexit 1\n")
    compiler.chmod(0o755)
    assert "fails: cc: error: bad day" in lines("compiler", "loops in C").remark
    monkeypatch.setenv("ENRESNET_NATIVE", "0")
    assert "ENRESNET_NATIVE=0" in lines("compiler", "loops in C").remark


def test_loops_in_use_have_no_reason_not_to_be():
    assert bool(native.why_not()) is (native.library() is None)


@pytest.mark.skipif(os.name != "posix", reason="owners and links of POSIX")
@pytest.mark.parametrize("place", ["usual", "link", "file", "another's", "cache is a file"])
def test_loops_that_are_not_kept_are_not_said_to_be(place, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "why_not", lambda: "")  # they are in use
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = native.cache()
    folder.parent.parent.mkdir()
    if place == "cache is a file":
        folder.parent.touch()
    else:
        folder.parent.mkdir()
    if place == "link":
        (tmp_path / "theirs").mkdir()
        folder.symlink_to(tmp_path / "theirs")
    elif place == "file":
        folder.touch()
    elif place == "another's":
        folder.mkdir()
        monkeypatch.setattr(native, "_user", lambda: os.geteuid() + 1)
        monkeypatch.setattr(native, "cache", lambda: folder)
    line = lines("compiler", "kept in")
    if place == "usual":
        assert (line.found, line.state) == (str(folder), "ok")
        return
    assert (line.found, line.state) == ("nowhere: compiled for this process only", "note")
    reasons = {
        "link": f"{folder} is a link;",
        "file": f"{folder} is not a folder;",
        "another's": f"{folder} belongs to another user;",
        "cache is a file": f"{folder.parent} is not a folder;",
    }
    assert reasons[place] in line.remark


def test_data_are_found_whole_damaged_or_not_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("ENRESNET_DATA", str(tmp_path))
    assert lines("data", "digits").found == "1797 images"
    line = lines("data", "cifar10")
    assert line.found == f"not in {tmp_path}"
    assert line.remark.endswith("enresnet data cifar10")
    (tmp_path / "cifar10.safetensors").write_bytes(b"half")
    assert cifar.find_cifar(cifar.CIFAR100) is None
    line = lines("data", "cifar10")
    assert (line.found, line.state) == ("damaged", "note")
    assert "run: enresnet data cifar10" in line.remark
    arrays = {"train_images": np.zeros(3, np.uint8)}
    spec = cifar.Cifar(
        "cifar10",
        *["x", (), "", "", "", ""],
        digests={name: cifar.download.sha256(array) for name, array in arrays.items()},
        label_keys={},
        classes=(),
    )
    save_file(arrays, tmp_path / "cifar10.safetensors")
    monkeypatch.setattr(cifar, "CIFAR10", spec)
    assert lines("data", "cifar10").found == f"whole, in {tmp_path / 'cifar10.safetensors'}"
    size = (tmp_path / "cifar10.safetensors").stat().st_size
    assert lines("caches", "data sets").found == f"{size} bytes"


def test_every_variable_of_ours_is_told(monkeypatch):
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"\bENRESNET_[A-Z_]+", source))
    named |= set(re.findall(r"""environ(?:\.get\(|\[)"([A-Z_]+)""", source))
    assert named <= set(installation.VARIABLES)
    monkeypatch.setenv("ENRESNET_NATIVE", "1")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    told = lines("environment variables")
    assert {line.name: line.found for line in told}["ENRESNET_NATIVE"] == "1"
    assert not any("hunter2" in line.found + line.remark for line in told)


WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from enresnet.cli import main
sys.exit(main(sys.argv[2:]))
"""


def without(modules, *words):
    command = [sys.executable, "-c", WITHOUT, ",".join(modules), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)


def test_it_runs_where_nothing_else_can_be_imported(tmp_path):
    core = [one.module for one in requirements.core_requirements()]
    done = without(core, "doctor", "--json", tmp_path / "doctor.json")
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads((tmp_path / "doctor.json").read_text())
    assert told["works"] is False
    broken = [line["name"] for line in told["versions"] if line["state"] == "broken"]
    assert broken == [one.name for one in requirements.core_requirements()]
    assert without(core, "doctor", "--nonsense").returncode == 2


@pytest.mark.parametrize("module", ["tyro", "platformdirs", "rich"])
def test_other_commands_say_what_is_missing_and_who_knows_more(module):
    done = without([module], "models")
    assert done.returncode == 2
    assert done.stderr == (
        f"enresnet: No module named {module!r}; enresnet doctor says what is missing\n"
    )


def test_nothing_is_fetched(monkeypatch):
    import socket

    def refused(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    found = installation.inspect_installation()
    assert not any("network" in line.found for of in found.values() for line in of)
