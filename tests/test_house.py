"""What everyone meets first: help comes at once, README runs, documents say what is so."""

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


@pytest.mark.parametrize("number", range(6))
def test_the_readme_examples_run_and_are_short(number, tmp_path):
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 6
    example = examples[number]
    assert len(example.strip().splitlines()) <= 10
    subprocess.run([sys.executable, "-W", "error", "-c", example], check=True, cwd=tmp_path)


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")]


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
