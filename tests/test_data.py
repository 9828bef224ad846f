"""Images in memory, in folders, in datasets: how they are read, cut, split and moved."""

import os
import struct
import zlib
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from enresnet.data import Augmentation, Images, from_dataset, load_data
from enresnet.data.decoding import eight_bit, opened, read_square
from enresnet.data.registry import load_test_images
from enresnet.evaluation.inputs import as_images
from problems import seeded

RNG = np.random.default_rng(0)


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


class TestRows:
    """A set unpacks to two tensors; indices and slices are those of any sequence."""

    pixels = torch.arange(50).view(50, 1, 1, 1).to(torch.uint8)
    images = Images(pixels, torch.arange(50) % 3, ("a", "b", "c"), origin="here", name="fifty")

    def test_it_unpacks_to_images_and_labels(self):
        images, labels = self.images
        assert torch.equal(images, self.pixels / 255)
        assert torch.equal(labels, self.images.labels)

    @pytest.mark.parametrize(
        "rows",
        [
            slice(7),
            slice(-3, None),
            slice(None, None, 7),
            slice(20, 3, -2),
            [4, 2],
            [True, False] * 25,
            torch.tensor([1, 49]),
            torch.arange(50) > 40,
            np.array([3, 0]),
        ],
    )
    def test_several_are_a_set(self, rows):
        found = self.images[rows]
        numbers = np.arange(50)[np.asarray(rows) if not isinstance(rows, slice) else rows]
        assert isinstance(found, Images)
        assert len(found) == len(numbers)
        images, labels = found
        assert (255 * images).round().flatten().tolist() == numbers.tolist()
        assert labels.tolist() == (numbers % 3).tolist()
        assert (found.classes, found.origin, found.name) == (("a", "b", "c"), "here", "fifty")

    @pytest.mark.parametrize("number", [0, 7, -1, np.int64(3), torch.tensor(4)])
    def test_one_is_an_image_and_its_class(self, number):
        image, label = self.images[number]
        assert image.shape == (1, 1, 1)
        assert round(255 * float(image)) == int(number) % 50
        assert label == int(number) % 50 % 3
        assert isinstance(label, int)

    def test_what_is_not_there(self):
        for number in (50, -51):
            with pytest.raises(IndexError, match=f"one of 0 to 49, found {number}"):
                self.images[number]
        with pytest.raises(TypeError):
            self.images["first"]
        with pytest.raises(ValueError, match="at least one image"):
            self.images[50:]

    def test_a_loader_takes_it(self):
        (batch, labels), *_ = DataLoader(self.images, batch_size=20)
        assert batch.shape == (20, 1, 1, 1)
        assert labels.tolist() == self.images.labels[:20].tolist()
        assert as_images(DataLoader(self.images)) is self.images


def write_image(path, size, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    depth = () if mode == "L" else (3,)
    array = RNG.integers(0, 256, (*size[::-1], *depth), dtype=np.uint8)
    Image.fromarray(array).save(path)


def write_folders(root, counts):
    for name, count in counts.items():
        for index in range(count):
            write_image(root / name / "cat" / f"{index}.png", (32, 32))
            write_image(root / name / "dog" / f"{index}.png", (32, 32))


_resize = Image.Image.resize


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

    @pytest.mark.parametrize("name", ["val", "valid", "validation"])
    def test_validation_folders_are_the_test_where_there_is_no_other(self, tmp_path, name):
        write_folders(tmp_path, {"train": 10, name: 3})
        data = load_data(tmp_path)
        assert data.classes == ("cat", "dog")
        assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 6)
        assert data.test.origin == f"all images in {tmp_path / name}"
        assert len(load_test_images(tmp_path)) == 6
        write_folders(tmp_path, {"test": 4})  # now they are for validation
        data = load_data(tmp_path)
        assert (len(data.train), len(data.validation), len(data.test)) == (20, 6, 8)
        assert data.test.origin == f"all images in {tmp_path / 'test'}"
        assert len(load_test_images(tmp_path)) == 8

    @pytest.mark.parametrize(
        ("splits", "words"),
        [
            (["train"], "for training and for tests, found only train, named like splits"),
            (["val"], "for training and for tests, found only val, named like splits"),
            (["test", "val"], "for training and for tests, found only test, named like splits"),
            (["Train", "Val"], "must hold classes, found only Train, Val, named like splits"),
            (["train", "val", "valid"], "val and valid, which mean the same: keep one"),
        ],
    )
    def test_splits_are_not_classes(self, tmp_path, splits, words):
        write_folders(tmp_path, dict.fromkeys(splits, 6))
        with pytest.raises(ValueError, match=words):
            load_data(tmp_path)

    def test_a_class_may_be_called_like_a_split(self, tmp_path):
        for name in ("train", "car", "plane"):
            for index in range(6):
                write_image(tmp_path / name / f"{index}.png", (32, 32))
        assert load_data(tmp_path).classes == ("car", "plane", "train")

    def test_a_test_folder_is_a_test_set_whole(self, tmp_path):
        write_folders(tmp_path, {"x": 15})
        images = load_test_images(tmp_path / "x")
        assert len(images) == 30
        assert images.origin == f"all images in {tmp_path / 'x'}"
        assert load_data(tmp_path / "x").test.origin.startswith("a tenth of the images in")
        write_folders(tmp_path / "y", {"train": 3})
        with pytest.raises(ValueError, match="holds train but neither test nor val"):
            load_test_images(tmp_path / "y")

    def test_what_is_no_file_is_refused(self, tmp_path):
        write_folders(tmp_path, {"x": 6})
        os.mkfifo(tmp_path / "x" / "cat" / "pipe.png")
        with pytest.raises(ValueError, match=r"pipe\.png must be a plain file, found a pipe"):
            load_data(tmp_path / "x")


class TestPixels:
    """Every kind of pixel is converted rightly or refused."""

    @pytest.mark.parametrize(
        ("values", "options", "expected"),
        [
            (np.float32([[0, 0.5, 1]]), {}, [0, 128, 255]),
            (np.uint16([[0, 125 * 256 + 7, 65535]]), {}, [0, 125, 255]),
            (np.uint16([[0, 125 * 256 + 7, 65535]]), {262: 0}, [255, 130, 0]),  # white is zero
            (np.uint8([[0, 125, 255]]), {}, [0, 125, 255]),
            (np.float32([[0, 0.5, 1.5]]), {}, r"must lie in \[0, 1\], found 0 to 1.5"),
            (np.float32([[0, 0.5, np.nan]]), {}, r"must lie in \[0, 1\]"),
            (np.int32([[0, 70000, 5]]), {}, "32 bits, for which no white is agreed on"),
            (np.uint8([[0, 125, 255]]), {339: 2}, "signed"),
        ],
    )
    def test_tiff(self, tmp_path, values, options, expected):
        path = tmp_path / "x.tif"
        large = np.repeat(np.repeat(values, 8, axis=0), 8, axis=1)
        Image.fromarray(large).save(path, tiffinfo=options)
        if isinstance(expected, str):
            with pytest.raises(ValueError, match=f"x.tif is not a whole image.*{expected}"):
                read_square(path, 8, gray=True)
            return
        with opened(path) as image:
            assert np.asarray(eight_bit(image))[0, ::8].tolist() == expected
        middle = read_square(path, 8, gray=True)
        assert middle.unique().tolist() == [expected[1]]

    def test_a_strip_takes_no_more_than_its_middle(self, tmp_path):
        strip = np.zeros((1, 300_000), dtype=np.uint8)
        strip[0, 149_999:150_001] = 255
        Image.fromarray(strip).save(tmp_path / "x.png")
        with patch.object(Image.Image, "resize", autospec=True, side_effect=_resize) as resized:
            assert read_square(tmp_path / "x.png", 32, gray=False).max() == 255
        assert np.prod(resized.call_args.args[1]) < 1e6

    def test_a_small_file_that_claims_a_large_image_is_refused(self, tmp_path):
        def chunk(name, content):
            whole = name + content
            return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

        header = struct.pack(">IIBBBBB", 12_000, 6_000, 8, 2, 0, 0, 0)
        (tmp_path / "x.png").write_bytes(
            b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))
        )
        with pytest.raises(ValueError, match="claims 12000 x 6000 pixels.*make it smaller"):
            read_square(tmp_path / "x.png", 32, gray=False)


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

    def test_only_what_is_asked_for_is_read(self):
        read = []

        class Watched(TensorDataset):
            def __getitem__(self, index):
                read.append(index)
                return super().__getitem__(index)

        pairs = Watched(torch.rand(30, 1, 8, 8), torch.arange(30) % 2)
        lazy = from_dataset(pairs, labels=torch.arange(30) % 2, in_memory=False)
        some = lazy[10:20]
        images, labels = some[[3, 4]]
        image, label = lazy[-1]
        assert set(read) <= {0, 10, 13, 14, 29}
        assert torch.equal(images, pairs.tensors[0][13:15])
        assert labels.tolist() == [1, 0]
        assert torch.equal(image, pairs.tensors[0][29])
        assert label == 1
        with patch("enresnet.data.images.free_memory", lambda: 1000.0):
            with pytest.raises(MemoryError, match=r"all 30 images would take .* data\[:1000\]"):
                images, labels = lazy
            images, labels = lazy[:1]

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


def test_what_an_image_is_decided_by_its_content_not_its_name(tmp_path):
    """An EPS file would run Ghostscript; only formats that are decoded in place are read."""
    header = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(6):
            (tmp_path / name / f"{number}.png").write_bytes(header)
    with pytest.raises(ValueError, match="not a whole image"):
        load_data(tmp_path)
