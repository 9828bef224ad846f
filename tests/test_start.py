"""Commands that only read and list answer at once: they do not wait for torch."""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import enresnet
from enresnet.cli import COMMANDS
from enresnet.training import Recipe, Run, RunConfig
from enresnet.training.checkpoint import write_checkpoint

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "digits"
HEAVY = {"torch", "scipy", "sklearn", "matplotlib", "PIL", "lightning_fabric"}
PACKAGES = ["", ".data", ".models", ".attacks", ".evaluation", ".training"]
PACKAGES += [".pde", ".report", ".paper", ".demo"]


def fresh(code, *arguments):
    """Return what code prints in a Python of its own, and the packages that it imported."""
    code += "\nimport json, sys\nprint(json.dumps([*sys.modules]), file=sys.stderr)"
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, {name.partition(".")[0] for name in json.loads(done.stderr)}


def answer(*words):
    """Return what a command prints, and the packages that it imported."""
    return fresh(
        "import sys\nfrom enresnet.cli import main\nassert main(sys.argv[1:]) == 0", *words
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--help"], "COMMAND"),
        (["-V"], "enresnet"),
        (["models"], "En5ResNet20"),
        (["runs", RESULTS], "weights"),
        (["results", RESULTS / "resnet8", RESULTS / "en3_resnet8"], "clean"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_lists_and_reads_needs_neither_torch_nor_numpy(words, shown):
    printed, imported = answer(*words)
    assert shown in printed
    assert imported & (HEAVY | {"numpy"}) == set()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "pde"])
def test_help_of_a_command_needs_neither(name):
    code = "import sys\nfrom enresnet.cli import main\ntry:\n    main(sys.argv[1:])\n"
    code += "except SystemExit as stop:\n    assert not stop.code"
    printed, imported = fresh(code, name, "--help")
    assert f"usage: enresnet {name}" in printed
    assert imported & (HEAVY | {"numpy"}) == set()


def test_a_stopped_run_is_listed_without_torch(tmp_path):
    run = Run.create(tmp_path / "run", RunConfig("resnet8", "digits", Recipe(epochs=2)))
    write_checkpoint(run.last, 3, {"one": torch.zeros(1)}, {"options": " --devices 2"})
    printed, imported = answer("runs", tmp_path)
    assert f"enresnet resume {run.folder} --devices 2" in printed
    assert imported & HEAVY == set()


def declared(package):
    """Return the names that type checkers see, by their files, and those that load on first use."""
    tree = ast.parse(Path(package.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = {alias.name: node.module for node in block.body for alias in node.names}
    return imports, vars(package)["_home_of"]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_the_names_that_type_checkers_see(name):
    package = importlib.import_module(f"enresnet{name}")
    imports, homes = declared(package)
    assert imports == homes
    assert package.__all__ == sorted(homes)
    assert set(homes) <= set(dir(package))
    for public in homes:
        assert getattr(getattr(package, public), "__name__", public) == public
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = package.nonsense
    with pytest.raises(ImportError):
        exec(f"from enresnet{name} import nonsense")


@pytest.mark.parametrize("first", ["import enresnet.training.session", "import enresnet.training"])
def test_a_function_keeps_its_name_from_its_file(first):
    code = f"{first}\nfrom enresnet.training import integrate, train\nprint(train, integrate)"
    assert fresh(code)[0].count("<function") == 2


def test_files_are_attributes_of_their_package():
    code = (
        "import enresnet\nprint(enresnet.attacks.geometry.__name__, enresnet.common.text.__name__)"
    )
    assert fresh(code)[0] == "enresnet.attacks.geometry enresnet.common.text\n"


def test_rooms_are_attributes_of_the_front_door():
    rooms = ["data", "models", "attacks", "evaluation", "training", "pde", "report"]
    code = f"import enresnet\nprint(*(getattr(enresnet, room).__name__ for room in {rooms}))"
    assert fresh(code)[0].split() == [f"enresnet.{room}" for room in rooms]
    assert {*rooms, "frozen"} <= set(dir(enresnet))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_only_the_command_line_changes_how_the_process_keeps_memory(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    code = """
import ctypes

class Watched(ctypes.CDLL):
    asked = []

    def __getattr__(self, name):
        self.asked.append(name)
        return super().__getattr__(name)

ctypes.CDLL = Watched
import enresnet.cli.attacks, torch

model = enresnet.create_model("en1_resnet8")
model(torch.rand(2, 3, 32, 32)).sum().backward()
print("mallopt" in Watched.asked)
enresnet.cli.attacks.print_table = lambda *_, **__: print("mallopt" in Watched.asked)
enresnet.cli.main(["attacks"])
"""
    assert fresh(code)[0].splitlines()[:2] == ["False", "True"]
