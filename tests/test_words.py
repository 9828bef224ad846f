"""What is printed: nothing from outside is read as markup, no word is broken, help is plain."""

import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from enresnet.cli import COMMANDS, main
from enresnet.common.plotting import as_png, blank
from enresnet.common.tables import as_latex, as_markdown, print_table
from enresnet.common.text import for_latex, for_markdown, for_picture, for_terminal
from enresnet.report.figures import transfer_heat_map

HOSTILE = "[/b]\x1b[31mred\x07 <script>alert(1)</script> | $x$ \u202e& \\ %"


class TestEscaping:
    def test_a_terminal_gets_no_control(self):
        shown = for_terminal(HOSTILE + "\nnext\tword")
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown
        assert "\\x1b[31mred" in shown
        assert "\nnext\tword" in shown
        assert for_terminal("Übung, 日本, naïve") == "Übung, 日本, naïve"

    def test_markdown_gets_no_tags_and_no_columns(self):
        shown = for_markdown(HOSTILE + "\n| next")
        assert "<" not in shown
        assert "\n" not in shown
        assert re.search(r"(?<!\\)\|", shown) is None
        table = as_markdown([{"a|b": "<script>"}], caption="<img>")
        assert "<" not in table
        assert "a\\|b" in table

    def test_latex_gets_no_commands(self):
        assert for_latex("50 % of $x_1$ \\input{a}") == (
            r"50 \% of \$x\_1\$ \textbackslash{}input\{a\}"
        )
        assert r"\%" in as_latex([{"a": "1 %"}])

    def test_a_picture_draws_dollars(self):
        figure = blank(3, 3)
        figure.suptitle(for_picture("$x^{$ and $y$ and [/b]"))
        assert as_png(figure)
        names = ["runs/$x^{$", "a$b"]
        assert as_png(transfer_heat_map([[1.0, 0.5], [0.5, 1.0]], names, names, "$_{$"))

    def test_markup_in_paths_ends_nothing(self, tmp_path, capsys):
        out = tmp_path / "[" / "b]" / "$x^{$"
        words = "train --model resnet8 --data digits --recipe natural --epochs 1 --limit 100 --out"
        assert main([*words.split(), str(out)]) == 0
        shown = capsys.readouterr().out
        assert f"In {out}; next" in shown
        assert main(["runs", str(tmp_path)]) == 0
        assert "[" in capsys.readouterr().out
        assert main(["evaluate", str(out), "--attacks", "fgsm", "--limit", "10"]) == 0
        assert main(["results", str(out)]) == 0
        assert main(["compare", str(out), str(out / "[red]")]) == 2
        assert "[red]" in capsys.readouterr().err


ROWS = [
    {"name": "en1_resnet20", "accuracy": "68.9 (68.0-69.8)", "why": "a sentence of some words"},
    {"name": "en2_resnet20+en5_resnet20", "accuracy": "70.4 (69.5-71.3)", "why": "another one"},
]
WORDS = {word for row in ROWS for text in (*row, *row.values()) for word in text.split()}


@pytest.mark.parametrize("width", [20, 40, 50, 60, 80, 120])
def test_no_word_is_broken(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(ROWS, title="a title", caption="a caption of several words")
    shown = capsys.readouterr().out
    found = set(re.split(r"[\s│┃:]+", shown))
    assert found >= WORDS
    if "┃" in shown:
        assert max(cell_len(line) for line in shown.splitlines()) <= width


def test_the_progress_bar_keeps_bar_and_percentage():
    """At 80 columns, beside a long word."""
    code = """
from enresnet.common.progress import progress_bar
with progress_bar("en2_resnet20", 100, show=True, times=False) as advance:
    advance(40, "loss 1.234, natural 56.7 %, attacked 34.5 %, 123 images/s, 1:02:03 left, and more")
"""
    environment = {"COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "xterm", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stderr)
    assert re.search(r"en2_resnet20 ━+.* +40% loss 1\.234", plain)
    assert all(cell_len(line) <= 80 for line in re.split(r"[\r\n]", plain))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_plain_words(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["help", name])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "{None}" not in shown
    assert "(default: )" not in shown
    assert "[[" not in shown
    assert "default: None" not in shown
    assert f"enresnet {name}" in shown


def test_help_and_version(capsys):
    assert main(["help"]) == 0
    assert "commands:" in capsys.readouterr().out
    for word in ("-V", "--version"):
        assert main([word]) == 0
        assert re.fullmatch(r"enresnet \d+\.\d+\.\d+\n", capsys.readouterr().out)
    assert main(["evaluate", "a\x1b[31mred"]) == 2
    assert "found a\\x1b[31mred" in capsys.readouterr().err
    assert main(["help", "evalaute"]) == 2
    assert "Did you mean evaluate" in capsys.readouterr().err


def test_messages_say_what_is_wrong(tmp_path):
    import torch

    import enresnet

    class ResNet(torch.nn.Module):
        pass

    with pytest.raises(TypeError, match=r"found test_words\.ResNet"):
        enresnet.save_model(ResNet(), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="the nearest are 14 and 20") as found:
        enresnet.create_model("en2_resnet18")
    assert "resnet110" not in str(found.value)
    (tmp_path / "best.safetensors").touch()
    with pytest.raises(IsADirectoryError, match=r"a run's network is in .*best\.safetensors"):
        enresnet.load_model(tmp_path)
    with pytest.raises(TypeError, match=r"hand over its \.test"):
        enresnet.evaluate(enresnet.create_model("resnet8"), enresnet.load_data("digits", limit=50))
