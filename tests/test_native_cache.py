"""The compiled loops are loaded only from a place of the user's own, and only whole."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from enresnet import native

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX"),
    pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The library, compiled once for all tests."""
    return native._made(tmp_path_factory.mktemp("native"))


@pytest.fixture
def cache(tmp_path, monkeypatch, compiled):
    """A cache of its own, whose compiler takes no time and counts its calls."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def compile_(path):
        calls.append(path)
        shutil.copyfile(compiled, path)

    monkeypatch.setattr(native, "_compile", compile_)
    native.library.cache_clear()
    yield calls
    native.library.cache_clear()


def again():
    native.library.cache_clear()
    return native.library()


def kept(tmp_path):
    (path,) = (tmp_path / "enresnet").rglob("*.so")
    return path


def test_it_is_compiled_once_into_a_private_folder(cache, tmp_path):
    umask = os.umask(0)
    try:
        assert again() is not None
    finally:
        os.umask(umask)
    assert again() is not None
    assert len(cache) == 1
    folder = kept(tmp_path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["truncated", "emptied", "altered", "writable by others"])
def test_one_that_is_not_as_it_was_is_compiled_anew(damage, cache, tmp_path, compiled):
    assert again() is not None
    path = kept(tmp_path)
    content = compiled.read_bytes()
    # Put in place as another file: what is loaded must not change under the process.
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "emptied":
        path.touch()
    elif damage == "altered":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        path.write_bytes(content)
        path.chmod(0o666)
    assert again() is not None
    assert len(cache) == 2
    assert kept(tmp_path).read_bytes() == content


def test_a_truncated_one_does_not_end_the_process(tmp_path, compiled):
    """In a process of its own: the loader dies of such a file by a signal."""
    folder = tmp_path / "enresnet" / f"native-{os.geteuid()}"
    folder.mkdir(parents=True)
    for name in (compiled.name, f"noise-{native._key()}.so"):
        (folder / name).write_bytes(compiled.read_bytes()[:9000])
        (folder.parent / name).write_bytes(compiled.read_bytes()[:9000])
    code = "from enresnet import native; print(native.library() is not None)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CC": "/no/such/compiler"}
    environment["PATH"] = str(tmp_path)  # no compiler either
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_planted_one_is_not_loaded(cache, tmp_path, monkeypatch, compiled):
    """A whole library under the right name, in a folder and of an owner that are not ours."""
    planted = tmp_path / "enresnet" / f"native-{os.geteuid()}"
    planted.mkdir(parents=True)
    shutil.copyfile(compiled, planted / compiled.name)
    loaded, real = [], native.ctypes.CDLL

    def load(path):
        if path is not None:  # None is the process itself
            loaded.append(Path(path))
        return real(path)

    monkeypatch.setattr(native.ctypes, "CDLL", load)
    lstat = Path.lstat

    def of_another(path):
        found = lstat(path)
        if path.is_relative_to(planted):
            values = list(found)
            values[stat.ST_UID] = os.geteuid() + 1
            return os.stat_result(values)
        return found

    monkeypatch.setattr(Path, "lstat", of_another)
    assert again() is not None
    assert len(cache) == 1
    assert not loaded[0].is_relative_to(planted)
    assert not loaded[0].exists()  # a folder of one process is gone when it is loaded


def test_a_link_in_place_of_the_folder_is_not_followed(cache, tmp_path, compiled):
    (tmp_path / "theirs").mkdir()
    shutil.copyfile(compiled, tmp_path / "theirs" / compiled.name)
    (tmp_path / "enresnet").mkdir()
    (tmp_path / "enresnet" / f"native-{os.geteuid()}").symlink_to(tmp_path / "theirs")
    assert again() is not None
    assert len(cache) == 1
