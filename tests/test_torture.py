"""The campaign of malformed inputs and faults judges strictly, goes on, and stays in its folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from enresnet.training import load_recipe

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from torture import campaign as campaign_module  # noqa: E402
from torture import disk  # noqa: E402
from torture.campaign import Campaign  # noqa: E402
from torture.outcomes import Tally, judge  # noqa: E402
from torture.table import table  # noqa: E402

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="made for Linux")


def caught(work):
    try:
        work()
    except Exception as error:
        return judge(error)
    raise AssertionError("no error")


def test_only_an_error_that_was_thought_of_is_an_answer(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("epochs: x")
    assert caught(lambda: load_recipe(str(path)))[0] == "answered"
    # A built-in function that fails in a line of ours is nobody's answer.
    monkeypatch.setattr("enresnet.training.recipe.read_yaml", lambda *_, **__: {0: 1}[1])
    assert caught(lambda: load_recipe(str(path)))[0] == "lost"
    from enresnet.training import recipe

    assert caught(lambda: recipe._plain_values(None, where="x"))[0] == "lost"
    assert caught(lambda: save_file(None, path))[0] == "lost"


def test_answers_that_differ_in_numbers_and_paths_only_are_one():
    tally = Tally()
    tally.record(("answered", "a/b must be at least 1, found 0"), 0)
    tally.record(("answered", "a/c/d must be at least 1, found -7.5e3"), 1)
    tally.record(("held", "read"), 2)
    tally.record(("lost", "KeyError: 3\nTraceback"), 3)
    assert (tally.tried, tally.answered, tally.held, tally.lost) == (4, 2, 1, 1)
    assert len(tally.outcomes) == 3
    again = Tally.from_json(json.loads(json.dumps(tally.to_json())))
    assert again.to_json() == tally.to_json()


def test_a_campaign_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign_module, "INPUTS_A_PART", 10)
    started = []

    def start(self, name, first, last, _):
        started.append((name, first, last))
        tally = Tally(tried=last - first, held=last - first)
        self._output(name, first).parent.mkdir(exist_ok=True)
        self._output(name, first).write_text(json.dumps(tally.to_json()))
        return subprocess.Popen(["true"], start_new_session=True)

    monkeypatch.setattr(Campaign, "_start", start)
    wanted = {"recipes": 10, "sets": 25}
    with Campaign(tmp_path, 0) as campaign:
        running = campaign.run(wanted, workers=1)
        assert next(running) == "recipes"
        running.close()
    assert started == [("recipes", 0, 10)]
    with Campaign(tmp_path, 0) as campaign:
        assert list(campaign.run(wanted, workers=2)) == ["recipes", "sets"]
        assert started[1:] == [("sets", 0, 10), ("sets", 10, 20), ("sets", 20, 25)]
        assert campaign.tally("sets", 25).tried == 25
        assert list(campaign.run({"sets": 40}, workers=1)) == ["sets"]
        assert started[4:] == [("sets", 20, 30), ("sets", 30, 40)]
        assert campaign.tally("sets", 40).held == 40


def test_figures_of_two_kinds_do_not_mix(tmp_path):
    with (
        Campaign(tmp_path, 0),
        pytest.raises(SystemExit, match="in use by another campaign"),
    ):
        Campaign(tmp_path, 0)
    with pytest.raises(SystemExit, match="of another seed or of other code"):
        Campaign(tmp_path, 1)


def test_the_table():
    row = {"tried": 5000, "answered": 4000, "held": 1000, "lost": 0, "distinct_outcomes": 7}
    values = {"version": "1", "code": "abc", "seed": 0, "whole": True, "faults": {}}
    text = table({**values, "inputs": {"recipes": {**row, "seconds": 3600.0}}})
    assert "| recipes | 5,000 | 4,000 | 1,000 | 0 | 7 | 1.00 |" in text
    assert "| **all inputs** | 5,000 |" in text
    row["seconds"] = 0.0
    faults = {"train-kill": row, "train-full": row, "train-pair": row}
    text = table({**values, "inputs": {}, "faults": faults})
    assert "| kills among them | 10,000 |" in text
    assert "| **all faults** | 15,000 |" in text


def run(code, folder, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS), **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "code",
    [
        "open('../outside', 'a')",
        "os.remove('../outside')",
        "os.remove('outside', dir_fd=os.open('..', os.O_RDONLY))",
        "os.rename('../outside', 'inside')",
        "os.link('../outside', 'inside')",
        "os.rename('inside', 'other', dst_dir_fd=os.open('..', os.O_RDONLY))",
        "os.symlink('..', 'up'); open('up/outside', 'w')",
        "os.truncate('../outside', 0)",
    ],
)
def test_nothing_leaves_the_sandbox(code, tmp_path):
    (tmp_path / "outside").write_text("as it was")
    begin = "import os, pathlib, torture.sandbox as s; s.enter(pathlib.Path('in'));"
    done = run(f"{begin} open('inside', 'w'); {code}", tmp_path)
    assert "LeftTheSandboxError" in done.stderr
    assert (tmp_path / "outside").read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "outside"]


def test_the_null_device_may_be_written_to_from_the_sandbox(tmp_path):
    code = (
        "import os, pathlib, subprocess, torture.sandbox as s; s.enter(pathlib.Path('in'));"
        "subprocess.run(['true'], stderr=subprocess.DEVNULL, check=True); open(os.devnull, 'w')"
    )
    assert run(code, tmp_path).returncode == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_faults_at_every_change(tmp_path):
    library = disk.build(tmp_path)
    code = """
import errno, os, pathlib, sys
from torture import disk
out = pathlib.Path("out")
disk.arm(out, pathlib.Path("told"), sys.argv[1], int(sys.argv[2]))
out.mkdir()
try:
    with open("out/a", "wb", 0) as file:
        file.write(bytes(100))
        os.fsync(file.fileno())
    os.replace("out/a", "out/b")
except OSError as error:
    print(errno.errorcode[error.errno])
print(disk.changes(), sorted(os.listdir("out")))
"""

    def result(kind, number):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        code_with = code.replace("sys.argv[1]", repr(kind)).replace("sys.argv[2]", str(number))
        done = run(code_with, tmp_path, LD_PRELOAD=str(library))
        return done.returncode, done.stdout.split("\n")[:-1]

    assert result("count", 0) == (0, ["5 ['b']"])
    for number, left in ((2, []), (3, ["a"]), (4, ["a"]), (5, ["a"])):
        assert result("kill", number) == (-9, [])
        assert [path.name for path in (tmp_path / "out").iterdir()] == left
    result("kill", 3)
    assert (tmp_path / "out" / "a").stat().st_size == 50, "a write is torn"
    assert (tmp_path / "told").read_text().startswith("write ")
    assert result("error", 5) == (0, ["EIO", "5 ['a']"])
    assert result("full", 4) == (0, ["ENOSPC", "4 ['a']"])
