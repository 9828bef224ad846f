"""enresnet completion: each shell, really run, offers what the commands really take."""

import re
import shlex
import shutil
import subprocess

import pytest

from enresnet.cli import COMMANDS, main
from enresnet.cli.command_words import _known_values, read_commands
from enresnet.cli.completion_scripts import bash_script, fish_script, zsh_script

SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


@pytest.fixture(scope="module")
def commands():
    return read_commands()


@pytest.fixture(scope="module")
def scripts(commands, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    for shell, script in SCRIPTS.items():
        (folder / shell).write_text(script(commands))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder to complete paths in."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "runs").mkdir()
    (folder / "rural file.json").touch()
    return folder


def run(place, *command):
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def bash(script, place, line):
    """Call the function as readline does, which splits words at = and @ too."""
    words = re.findall(r"[=@]|[^\s=@]+", line) + [""] * line.endswith(" ")
    whole = re.split(r"[\s=]", line)[-1]
    before, at, after = whole.rpartition("@")
    replaced = at + after  # of what is split at @, it replaces the @ too
    code = f"""
        source {shlex.quote(str(script))}
        compopt() {{ :; }}
        COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
        COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}
        _enresnet enresnet {shlex.quote(replaced)}
        printf '%s\\n' "${{COMPREPLY[@]}}"
        complete -p enresnet
    """
    *found, registered = run(place, "bash", "--norc", "-c", code)
    assert registered == "complete -F _enresnet enresnet"
    return {before + word for word in found if word}


def zsh(script, place, line):
    """Call the function with zsh's own ones replaced by some that print what they are given."""
    words = line.split() + [""] * line.endswith(" ")
    code = f"""
        compdef() {{ : }}
        compset() {{ PREFIX=${{PREFIX#*=}} }}
        compadd() {{ shift; print -l -- "$@" }}
        _describe() {{ local name=$@[-1]; print -l -- ${{${{(P)name}}%%:*}} }}
        _files() {{ print -l -- *(N) }}
        source {shlex.quote(str(script))}
        words=({shlex.join(words)}) CURRENT={len(words)} PREFIX={shlex.quote(words[-1])}
        _enresnet
        :
    """
    found = run(place, "zsh", "-f", "-c", code)
    current = words[-1].rpartition("=")[2]
    return {word for word in found if word.startswith(current)}


def fish(script, place, line):
    code = f"source {shlex.quote(str(script))}; complete -C {shlex.quote(line)}"
    found = [word.partition("\t")[0] for word in run(place, "fish", "--no-config", "-c", code)]
    value = bool(re.search(r"--\S+=\S*$", line))
    return {(word.rpartition("=")[2] if value else word).rstrip("/") for word in found}


SHELLS = [
    pytest.param(
        shell,
        marks=pytest.mark.skipif(
            shutil.which(shell.__name__) is None, reason=f"{shell.__name__} is not installed"
        ),
        id=shell.__name__,
    )
    for shell in (bash, zsh, fish)
]
LINES = [
    ("enresnet ", {*COMMANDS, "help"}, {"--model", "figure4"}),
    ("enresnet tr", {"train", "transfer"}, {"runs"}),
    ("enresnet help d", {"data", "diagnose", "doctor"}, {"train"}),
    ("enresnet train --re", {"--recipe", "--reset-momentum"}, {"--model"}),
    ("enresnet evaluate x --at", {"--attacks"}, {"--recipe"}),
    ("enresnet train --recipe ", {"paper", "fast", "runs"}, {"--model", "pgd"}),
    ("enresnet train --recipe=pa", {"paper"}, {"fast", "--recipe"}),
    ("enresnet train --objective ", {"pgd", "trades", "rslad_one_step"}, {"runs", "as-recipe"}),
    ("enresnet train --awp ", {"True", "False"}, {"as-recipe", "runs"}),
    ("enresnet train --precision b", {"bf16"}, {"32"}),
    ("enresnet train --std-over ", {"example", "batch"}, {"runs"}),
    ("enresnet train --model en5", {"en5_resnet20"}, {"resnet20"}),
    ("enresnet train --epochs ", set(), {"runs", "--model", "paper"}),
    ("enresnet train --out ru", {"rural file.json"}, {"paper"}),
    ("enresnet train --data ", {"digits", "cifar10"}, {"--model"}),
    ("enresnet evaluate ", {"en3_resnet8@digits"}, {"fgsm"}),
    ("enresnet evaluate en3_resnet8@", {"en3_resnet8@digits"}, {"resnet8@digits"}),
    ("enresnet evaluate x --attacks ", {"fgsm", "ifgsm20", "strongest"}, {"runs"}),
    ("enresnet evaluate x --attacks fgsm if", {"ifgsm20"}, {"fgsm"}),
    ("enresnet evaluate x --attacks fgsm --targets ", {"runner_up"}, {"fgsm", "None", "runs"}),
    ("enresnet evaluate x --gray en3_", {"en3_resnet8@digits"}, set()),
    ("enresnet evaluate x --limit 3 en3_", {"en3_resnet8@digits"}, set()),
    ("enresnet diagnose x --natural resnet8@d", {"resnet8@digits"}, {"en3_resnet8@digits"}),
    ("enresnet export x --format ", {"onnx", "pt2"}, {"off", "runs"}),
    ("enresnet pde ", {"figure4", "mlmc"}, {"runs"}),
    ("enresnet pde figure4 --", {"--sigmas", "--seed", "--trap"}, {"--cases"}),
    ("enresnet pde classifier --data ", {"moons", "spirals"}, {"digits"}),
    ("enresnet completion ", {"bash", "zsh", "fish"}, {"runs"}),
    ("enresnet reproduce tab", {"table1", "table10"}, {"fig4", "runs"}),
    ("enresnet reproduce all --recipe sm", {"smoke"}, {"paper"}),
    ("enresnet reproduce all --data ", {"cifar10", "cifar100"}, {"digits", "runs"}),
    ("enresnet doctor --js", {"--json"}, set()),
    ("enresnet nonsense ", set(), {"train", "--model"}),
]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("line", "offered", "not_offered"), LINES, ids=[one[0] for one in LINES])
def test_a_shell_offers_what_may_follow(shell, line, offered, not_offered, scripts, place):
    found = shell(scripts / shell.__name__, place, line)
    assert offered <= found
    assert not_offered & found == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_without_more_to_say_offers_its_options(shell, scripts, place):
    dash = "-" if shell is fish else ""  # fish itself offers options only after a dash
    assert "--model" in shell(scripts / shell.__name__, place, f"enresnet train --gray {dash}")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_right_for_its_shell(shell, scripts, place):
    assert run(place, shell.__name__, "-n", str(scripts / shell.__name__)) == []


# What the texts alone show, so also where a shell is not installed.


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_starts_no_python(name, scripts):
    text = (scripts / name).read_text()
    assert "python" not in text.lower()
    assert text.startswith("#compdef enresnet\n" if name == "zsh" else "# Completion of enresnet")


def listed_by_zsh(text):
    """Return {command: options} and {"command --option": words} as the script lists them."""
    options = {
        command: set(re.findall(r"^ +'(--?[\w-]+)", body, re.MULTILINE))
        for command, body in re.findall(
            r"^ {8}'([^']*)'\) offered=\((.*?)^ {8}\) ;;",
            text.partition("_enresnet_options() {")[2].partition("\n}\n")[0],
            re.MULTILINE | re.DOTALL,
        )
    }
    words = {}
    values = text.partition("_enresnet_values() {")[2].partition("\n}\n")[0]
    for keys, taken in re.findall(r"((?:^ {8}'.*(?:\\|\))\n)+)^ {12}(.*) ;;", values, re.MULTILINE):
        found = re.search(r"words_of='([^']*)'", taken)
        for key in re.findall(r"'([^']*)'", keys):
            words[key] = set(found[1].split()) if found else set()
    return options, words


def listed_by_fish(text):
    """Return the same from fish's script."""
    options, words = {}, {}
    for line in text.splitlines():
        found = re.match(
            r"complete -c enresnet -n '__enresnet_\w+ \\'([^\\]*)\\'' -([ls]) (\S+)", line
        )
        if found:
            command, kind, name = found.groups()
            option = ("--" if kind == "l" else "-") + name
            options.setdefault(command, set()).add(option)
            taken = re.search(r" -[xr] -a '([^']*)'", line)
            words[f"{command} {option}"] = set(taken[1].split()) if taken else set()
    return options, words


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_a_script_lists_every_option_and_its_words(name, scripts, commands):
    listed = {"zsh": listed_by_zsh, "fish": listed_by_fish}[name]
    options, words = listed((scripts / name).read_text())
    for command in commands:
        key = " ".join(command.name)
        assert options.get(key, set()) == {option.name for option in command.options}
        for option in command.options:
            if option.values is not None and option.values.words:
                assert words[f"{key} {option.name}"] == set(option.values.words)


def test_all_quotes_are_closed(scripts):
    """Words are split as a POSIX shell would."""
    for name in ("bash", "zsh"):
        text = re.sub(r"^ *#.*$", "", (scripts / name).read_text(), flags=re.MULTILINE)
        data = text.partition("\n_enresnet() {")[0]
        assert len(shlex.split(data)) > 100
    for line in (scripts / "fish").read_text().splitlines():
        if line.startswith("complete "):
            words = shlex.split(line.replace("\\'", ""))
            assert words[:3] == ["complete", "-c", "enresnet"]


@pytest.mark.parametrize("name", [*COMMANDS, "pde figure4", "pde classifier", "pde mlmc"])
def test_the_options_are_those_of_the_help(name, commands, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    shown = capsys.readouterr().out
    listed = re.findall(r"^[│ ] (?:-h, )?(--[\w-]+)", shown, re.MULTILINE)
    (command,) = (one for one in commands if " ".join(one.name) == name)
    told = [option.name for option in command.options if len(option.name) > 2]
    assert sorted(told) == sorted(listed)
    assert len(set(told)) == len(told)
    if command.branches:
        (study,) = re.findall(r"\{([\w,-]+)\}", shown)[:1]
        assert set(command.values.words) == set(study.split(","))


def test_every_known_word_is_of_an_option_that_exists(commands):
    there = set()
    for command in commands:
        names = [option.name.removeprefix("--").replace("-", "_") for option in command.options]
        there |= {*names, *(" ".join((*command.name, name)) for name in names)}
    for key in _known_values():
        assert key in there or key in ("data name", "model", "reproduce targets")


def test_descriptions_are_one_short_line(commands):
    texts = [option.text for command in commands for option in command.options]
    assert all("\n" not in text and len(text) <= 70 for text in texts)
    assert sum(map(bool, texts)) > len(texts) / 2


def test_the_command_prints_the_script(scripts, capsys):
    for shell in SCRIPTS:
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == (scripts / shell).read_text()
    with pytest.raises(SystemExit) as stop:
        main(["completion", "powershell"])
    assert stop.value.code == 2


def test_bash_answers_at_once(scripts, place):
    """Sourcing and completing starts no process: it works with nothing on the path."""
    code = f"""
        source {shlex.quote(str(scripts / "bash"))}
        compopt() {{ :; }}
        COMP_WORDS=(enresnet train --schedule '') COMP_CWORD=3 PATH=
        COMP_LINE='enresnet train --schedule ' COMP_POINT=26
        _enresnet enresnet ''
        echo "${{COMPREPLY[@]}}"
    """
    assert run(place, shutil.which("bash"), "--norc", "-c", code) == ["step one_cycle"]
