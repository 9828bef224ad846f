"""The house keeps its order: imports flow one way, help comes at once, README runs."""

import ast
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from enresnet.cli import main

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "enresnet"

# Data flows from left to right; a module imports from its own room and from rooms to its left.
ROOMS = [
    "common",
    "native",
    "data",
    "models",
    "attacks",
    "evaluation",
    "training",
    "pde",
    "report",
    "paper",
    "cli",
]


def room_of(module):
    """Return the room of a module; "" for enresnet itself, which shows the public names."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports_of(source, package):
    """Yield the modules of ours that a source file imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: -node.level + 1 or None], base]).rstrip(".")
            names = [f"{base}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] == "enresnet")


def back_edges(files):
    """Return the imports that go against the flow, given {module: source}."""
    found = []
    for module, source in files.items():
        here = room_of(module)
        package = module.rpartition(".")[0]
        for target in imports_of(source, package):
            there = room_of(target)
            if there == here or (there == "" and here == "cli"):
                continue  # the command line shows the version
            allowed = here in ROOMS and there in ROOMS[: ROOMS.index(here)]
            if not allowed:
                found.append(f"{module} imports {target}")
    return found


def test_imports_flow_one_way():
    files = {
        ".".join(["enresnet", *path.relative_to(PACKAGE).with_suffix("").parts]): path.read_text()
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE or path.stem not in ("__init__", "__main__")
    }
    assert len(files) > 10
    assert {room_of(module) for module in files} <= set(ROOMS)
    assert back_edges(files) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("enresnet.models.registry", "from enresnet.attacks import FGSM"),
        ("enresnet.models.registry", "def f():\n    import enresnet.attacks.fgsm"),
        ("enresnet.models.registry", "from ..attacks import fgsm"),
        ("enresnet.attacks.fgsm", "from enresnet import cli"),
        ("enresnet.common.checks", "from enresnet.models import noise"),
        ("enresnet.shed", "from enresnet.models import noise"),
    ],
)
def test_a_back_edge_would_be_found(module, source):
    assert len(back_edges({module: source})) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("enresnet.attacks.fgsm", "from enresnet.models.registry import create_model"),
        ("enresnet.attacks.fgsm", "from .base import Attack"),
        ("enresnet.attacks.fgsm", "from enresnet import checks\nimport torch"),
    ],
)
def test_a_forward_edge_is_allowed(module, source):
    assert back_edges({module: source}) == []


def test_help_comes_at_once_and_without_torch():
    command = [sys.executable, "-X", "importtime", "-m", "enresnet", "--help"]
    times = []
    for _ in range(3):
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(time.monotonic() - start)
    assert "models" in done.stdout
    assert "attacks" in done.stdout
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert min(times) < 1


def test_tables(capsys, tmp_path):
    assert main(["models", "--json", str(tmp_path / "models.json")]) == 0
    shown = capsys.readouterr().out
    assert "En5ResNet20" in shown
    assert "46.16 M" in shown
    rows = json.loads((tmp_path / "models.json").read_text())
    assert {"name": "resnet20", "paper": "ResNet20", "parameters": 272282} in rows["networks"]
    assert main(["attacks"]) == 0
    shown = capsys.readouterr().out
    assert "ifgsm20" in shown
    assert "8/255" in shown


def test_bad_input_ends_with_code_2(capsys, tmp_path):
    assert main(["models", "--json", str(tmp_path / "no" / "file")]) == 2
    assert "no/file" in capsys.readouterr().err
    assert main(["modles"]) == 2
    assert "Did you mean models?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["models", "--jsn", "x"])
    assert stop.value.code == 2


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"enresnet \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("number", range(4))
def test_the_readme_examples_run_and_are_short(number, tmp_path):
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 4
    example = examples[number]
    assert len(example.strip().splitlines()) <= 10
    subprocess.run([sys.executable, "-W", "error", "-c", example], check=True, cwd=tmp_path)


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_every_public_name_is_there():
    import enresnet

    assert set(enresnet.__all__) <= set(dir(enresnet))
    assert all(getattr(enresnet, name) is not None for name in enresnet.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = enresnet.nonsense
