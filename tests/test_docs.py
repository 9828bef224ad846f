"""The documents say what is so: their code runs, their commands parse, their map is complete.

Python blocks run in order, a page in one folder and with one set of names. A comment before a block
changes that, and gives its reason::

    <!-- slow: REASON -->        runs with make test-all only
    <!-- not run: REASON -->     does not run

A block that opens with a comment such as ``# my_network.py`` is a file. Commands in other blocks
are parsed by the command line itself; they also run after ``<!-- run -->``, and with make test-all
after ``<!-- run, slow: REASON -->``.
"""

import functools
import importlib.util
import json
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import enresnet
from enresnet.cli import COMMANDS, main

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
PAGES += sorted(ROOT.glob("results/**/*.md"))
MAP = ROOT / "docs" / "paper-map.md"
FENCE = re.compile(
    r"^(?:<!-- (?P<note>.*?) -->\n)?(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
NOTES = re.compile(r"run|run, slow: .+|slow: .+|not run: .+")


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    language: str
    code: str
    note: str

    @property
    def slow(self):
        return "slow: " in self.note

    @property
    def runs(self):
        """Whether it is to be run, sooner or later."""
        if self.language == "python":
            return not self.note.startswith("not run")
        return self.note.startswith("run")

    @property
    def file(self):
        """The name of the file that it is; None if it is none."""
        found = re.match(r"# (\w+\.py)\n", self.code)
        return found and found[1]


def blocks(text):
    """Return the blocks of a page."""
    found = []
    for fence in FENCE.finditer(text):
        code = re.sub(f"^{fence['indent']}", "", fence["code"], flags=re.MULTILINE)
        found.append(Block(fence["language"].strip(), code, fence["note"] or ""))
    return found


def commands(code):
    """Return the arguments of each ``enresnet`` in lines of shell."""
    found = []
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        if "enresnet" not in line or line[0] in "┏┃┡│└":
            continue
        for part in re.split(r";|&&|\|\|", line):
            words = shlex.split(part, comments=True)
            words = words[: words.index(">")] if ">" in words else words
            at = [place for place, word in enumerate(words) if Path(word).name == "enresnet"]
            if at and (at[0] == 0 or words[at[0] - 1] in ("-m", "srun")):
                found.append(words[at[0] + 1 :])
    return found


def page_name(page):
    return str(page.relative_to(ROOT))


with_commands = pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "enresnet " in page.read_text()],
    ids=page_name,
)
# README's examples each run in a fresh Python: see test_house.py.
with_code = pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if page.name != "README.md" and any(block.runs for block in blocks(page.read_text()))
    ],
    ids=page_name,
)


def parse(words, monkeypatch):
    """Return the exit code of a command that is only parsed."""
    if words and words[0] in COMMANDS:
        module = importlib.import_module(f"enresnet.cli.{words[0]}")

        @functools.wraps(module.command)
        def parsed(*_, **__):
            return 0

        monkeypatch.setattr(module, "command", parsed)
    try:
        return main(words)
    except SystemExit as stop:
        return stop.code or 0
    finally:
        monkeypatch.undo()


def listed_commands(page):
    """Return the commands of a page: those in blocks, and on the map those in its tables, too."""
    text = page.read_text()
    lines = [block.code for block in blocks(text) if block.language in ("", "sh")]
    if page == MAP:
        lines += re.findall(r"^\|.*`(enresnet [^`]+)`", text, re.MULTILINE)
    return [words for code in lines for words in commands(code)]


@with_commands
def test_commands_parse(page, monkeypatch, capsys):
    refused = {}
    for words in {tuple(words): None for words in listed_commands(page)}:
        if parse(list(words), monkeypatch) != 0:
            refused[" ".join(words)] = capsys.readouterr().err
    assert refused == {}


def test_a_command_that_does_not_parse_would_be_found(monkeypatch, capsys):
    code = "cd x; enresnet evaluate RUN --no-such-option 1\nOMP=1 .venv/bin/python -m enresnet runs"
    first, second = commands(code)
    assert first == ["evaluate", "RUN", "--no-such-option", "1"]
    assert parse(first, monkeypatch) == 2
    assert parse(second, monkeypatch) == 0
    assert parse(["evaluat"], monkeypatch) == 2
    assert capsys.readouterr().out == ""


def test_what_else_a_shell_is_told_is_there():
    """Targets of make, and scripts."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language not in ("", "sh"):
                continue
            asked = re.findall(r"^make ([\w-]+)", block.code, re.MULTILINE)
            assert set(asked) <= set(targets), page
            scripts = re.findall(r"python (\w+/[\w/]+\.py)", block.code)
            assert [name for name in scripts if not (ROOT / name).is_file()] == [], page


def test_every_note_has_a_reason():
    for page in PAGES:
        text = page.read_text()
        notes = [block.note for block in blocks(text) if block.note]
        assert [note for note in notes if not NOTES.fullmatch(note)] == [], page
        comments = re.findall("^<!-- ", text, re.MULTILINE)
        assert len(notes) == len(comments), f"{page}: a comment that belongs to no block"


def walk(page, folder, monkeypatch, *, slow):
    """Run the blocks of a page in a folder; return how many ran."""
    shutil.copytree(ROOT / "results" / "digits", folder / "results" / "digits")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    names, ran, own = {"__name__": "__main__"}, 0, []
    try:
        for block in blocks(page.read_text()):
            if block.language == "python" and block.file:
                (folder / block.file).write_text(block.code)
                own.append(block.file.removesuffix(".py"))
            elif block.runs and (slow or not block.slow):
                if block.language == "python":
                    exec(compile(block.code, page_name(page), "exec"), names)
                for words in commands(block.code) if block.language != "python" else ():
                    assert main(words) == 0, f"enresnet {' '.join(words)}"
                ran += 1
    finally:
        for name in own:
            sys.modules.pop(name, None)
    return ran


@with_code
def test_what_a_page_shows_runs(page, tmp_path, monkeypatch):
    fast = [block for block in blocks(page.read_text()) if block.runs and not block.slow]
    assert walk(page, tmp_path, monkeypatch, slow=False) == sum(not one.file for one in fast)


@pytest.mark.slow
@with_code
def test_what_a_page_shows_runs_with_what_takes_long(page, tmp_path, monkeypatch):
    if not any(block.slow for block in blocks(page.read_text())):
        pytest.skip("the fast test runs all of this page")
    assert walk(page, tmp_path, monkeypatch, slow=True) > 0


# The map of the paper.


def mapped():
    """Return the first cells of the map's tables."""
    return re.findall(r"^\| ([^|]+?) \|", MAP.read_text(), re.MULTILINE)


def test_the_map_has_all_of_the_paper():
    wanted = [f"Eq. {number}" for number in range(1, 21)]
    wanted += [f"Table {number}" for number in range(1, 11)]
    wanted += [f"Figure {number}" for number in range(1, 7)]
    wanted += ["Algorithm 1", "Theorem 1", "Theorem 2"]
    assert [one for one in wanted if mapped().count(one) != 1] == []


def test_every_row_of_the_map_has_a_file_and_a_command():
    rows = re.findall(r"^\| (?:Eq|Sec|Alg|The|Tab|Fig).*$", MAP.read_text(), re.MULTILINE)
    assert len(rows) > 40
    for row in rows:
        _, _, file, command = re.split(r" \| ", row.strip("| "))
        links = re.findall(r"\]\((.+?)\)", file)
        assert links, row
        assert all((MAP.parent / link).is_file() for link in links), row
        assert command.startswith("`enresnet "), row


def test_the_number_of_an_equation_is_that_of_its_file():
    """A file that names its equation at its top names the one that leads to it."""
    rows = re.findall(r"^\| Eq\. (\d+) \|.*?\]\((\S+?\.py)\)", MAP.read_text(), re.MULTILINE)
    for number, link in rows:
        top = (MAP.parent / link).read_text().partition("\n")[0]
        named = re.search(r"Eqs?\. (\d+)(?:-(\d+))?", top)
        if named:
            first, last = int(named[1]), int(named[2] or named[1])
            others = [int(n) for n, other in rows if other == link]
            assert first in others, link
            assert last in others, link
            assert int(number) in others


# The tables of what was measured.


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs/_ext/results_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_results_is_what_the_folders_say(tables):
    assert (ROOT / "results" / "README.md").read_text() == tables.readme(), (
        "run python docs/_ext/results_tables.py --write"
    )


def test_comparisons_of_groups_show_their_command_and_what_it_prints(tables):
    text = tables.readme()
    commands = re.findall(r"^enresnet (compare .+? \\\n    --against .+?)$", text, re.M)
    assert commands
    of_several: set[str] = set()
    for command in commands:
        words = shlex.split(command.replace("\\\n", ""))[1:]
        sections = {"--section": "best"}
        for option in ("--section", "--against-section"):
            if option in words:
                at = words.index(option)
                sections[option] = words[at + 1]
                del words[at : at + 2]
        at = words.index("--against")
        sides = [[ROOT / name for name in side] for side in (words[:at], words[at + 1 :])]
        found = enresnet.compare(
            *sides,
            section=sections["--section"],
            against_section=sections.get("--against-section"),
        )
        rows = {row["images"]: row for row in found.rows()}
        left_out = of_several if len(sides[0]) == 1 else set()  # what more pairs have said already
        of_several = set(rows)
        for row in (rows[name] for name in set(rows) - left_out):
            low, high = (f"{100 * row[end]:+.2f}" for end in ("low", "high"))
            assert f"| {100 * row['difference']:+.2f} ({low}, {high}) |" in text, command


def test_no_page_of_results_names_a_place_on_this_machine(tables):
    assert str(ROOT) not in tables.readme()


def test_tables_show_what_the_files_hold(tables):
    text = tables.reproduction()
    paths = [*ROOT.glob("results/**/evaluation.json")]
    assert any(path.parent.parent.name == "fast" for path in paths)
    for path in paths:
        folder, name = path.parent.parent.relative_to(ROOT), re.escape(path.parent.name)
        section = text.partition(f"## Runs in {folder}\n")[2]
        (row,) = re.findall(rf"^\| {name} \|.*$", section.partition("## ")[0], re.M)
        best = json.loads(path.read_text())["best"]
        for one in [best["natural"], *best["robust"].values()]:
            low, high = one["interval"]
            assert f"| {100 * one['accuracy']:.1f} ({100 * low:.1f}-{100 * high:.1f}) |" in row
            assert re.search(rf"[ ,]{one['images']:,} (or [0-9,]+ )?images \|", section)
    assert "not run" in text
    study = json.loads((ROOT / "results" / "study" / "study.json").read_text())
    assert all(f"| {name.rpartition('-')[0]} |" in text for name in study)
