"""Images in memory, in folders, in datasets: how they are read, cut, split and moved."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from enresnet.data import Augmentation, Images, from_dataset, load_data
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
