"""Where the image recipe's rows come from: digits, IDX files, folders of class folders."""

from __future__ import annotations

import gzip
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from paceline.base.errors import DataError
from paceline.recipes.images import load_images


def read(source):
    """All rows of a source."""
    return source.read(np.arange(len(source)))


def test_digits_are_split_into_parts_that_share_no_row():
    """1797 rows: 1438 to train and 359 to test, together each row of scikit-learn's once, scaled from 16 to 255."""
    data = load_images("digits", size=32, seed=0)
    train, test = read(data.train), read(data.test)
    assert (len(train["label"]), len(test["label"]), data.shape, data.classes) == (1438, 359, (8, 8, 1), 10)
    original = load_digits()
    images = np.rint(original.images * 255 / 16).astype(np.uint8)
    expected = Counter((image.tobytes(), int(label)) for image, label in zip(images, original.target, strict=True))
    found = Counter(
        (image.tobytes(), int(label))
        for part in (train, test)
        for image, label in zip(part["image"], part["label"], strict=True)
    )
    assert found == expected


def test_the_split_depends_on_the_seed_alone():
    """Seed 0 twice: the same test rows; seed 1: others."""
    a, b, c = (read(load_images("digits", size=32, seed=seed).test)["label"].tolist() for seed in (0, 0, 1))
    assert a == b != c


def idx(path, array):
    """Write uint8 `array` as an IDX file: magic, dims as big-endian uint32, bytes."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def idx_folder(tmp_path):
    images = np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5)
    labels = np.array([0, 2, 1, 2, 0, 1], np.uint8)
    idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    idx(tmp_path / "train-labels-idx1-ubyte.gz", labels)
    idx(tmp_path / "t10k-images-idx3-ubyte", images[:2] + 1)
    idx(tmp_path / "t10k-labels-idx1-ubyte", labels[:2])
    return tmp_path


def test_idx_files_are_read_as_they_are_split(idx_folder):
    """Compressed and plain: 6 rows to train and 2 to test, 4 x 5 pixels and one channel, 3 classes."""
    data = load_images(str(idx_folder), size=32, seed=0)
    train, test = read(data.train), read(data.test)
    assert (data.shape, data.classes) == ((4, 5, 1), 3)
    np.testing.assert_array_equal(train["image"][..., 0], np.arange(120).reshape(6, 4, 5))
    np.testing.assert_array_equal(test["image"][1, :, :, 0], np.arange(21, 41).reshape(4, 5))
    assert train["label"].tolist() == [0, 2, 1, 2, 0, 1] and test["label"].tolist() == [0, 2]
    assert train["image"].dtype == np.uint8 and train["label"].dtype == np.int32


def test_a_missing_idx_file_is_named(idx_folder):
    """Without the labels of the test split: its name."""
    (idx_folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        load_images(str(idx_folder), size=32, seed=0)


def test_images_and_labels_of_different_number_are_refused(idx_folder):
    """5 labels for 6 images: both numbers."""
    idx(idx_folder / "train-labels-idx1-ubyte.gz", np.zeros(5, np.uint8))
    with pytest.raises(DataError, match=r"'label' has 5 rows.*'image' has 6"):
        load_images(str(idx_folder), size=32, seed=0)


def paint(path, color, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


COLORS = {"blue": (0, 0, 255), "red": (255, 0, 0)}


def test_class_folders_are_split_and_resized(tmp_path):
    """10 images of 2 classes: 8 to train and 2 to test, each once, 8 x 8 pixels of the color of its class."""
    for name, color in COLORS.items():
        for number in range(5):
            paint(tmp_path / name / f"{number}.png", (*color[:1], number, *color[2:]))
    data = load_images(str(tmp_path), size=8, seed=0)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (8, 2, (8, 8, 3), 2)
    rows = [read(data.train), read(data.test)]
    images = np.concatenate([part["image"] for part in rows])
    labels = np.concatenate([part["label"] for part in rows])
    assert images.shape == (10, 8, 8, 3)
    # red has label 1 (sorted names); green counts the images of a class
    assert sorted(zip(labels.tolist(), images[:, 0, 0, 1].tolist(), strict=True)) == [
        (label, number) for label in (0, 1) for number in range(5)
    ]
    np.testing.assert_array_equal(images[:, 3, 3, 0], np.where(labels == 1, 255, 0))


def test_folders_train_and_test_are_taken_as_the_split(tmp_path):
    """3 images to train, 1 to test; the labels of both are those of the training folders."""
    for name, color in COLORS.items():
        paint(tmp_path / "train" / name / "a.png", color)
        paint(tmp_path / "test" / name / "b.png", color)
    paint(tmp_path / "train" / "red" / "c.png", COLORS["red"])
    data = load_images(str(tmp_path), size=4, seed=0)
    assert (len(data.train), len(data.test)) == (3, 2)
    assert read(data.train)["label"].tolist() == [0, 1, 1] and read(data.test)["label"].tolist() == [0, 1]


def test_a_name_that_is_no_folder_is_refused():
    """The error lists the three forms, and the fix one that works."""
    with pytest.raises(DataError, match="'nowhere' is not a folder") as caught:
        load_images("nowhere", size=32, seed=0)
    assert "IDX" in caught.value.why and "--data digits" in caught.value.fix


def test_a_folder_without_classes_is_refused(tmp_path):
    """An empty folder, and one whose class holds no image: the folder is named."""
    with pytest.raises(DataError, match="no class folders"):
        load_images(str(tmp_path), size=32, seed=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no image") as caught:
        load_images(str(tmp_path), size=32, seed=0)
    assert "root/class/name.png" in caught.value.fix


def test_a_file_that_is_no_image_is_named_when_it_is_read(tmp_path):
    """Text in a .png."""
    paint(tmp_path / "red" / "a.png", COLORS["red"])
    (tmp_path / "red" / "b.png").write_text("no image")
    data = load_images(str(tmp_path), size=4, seed=0)
    with pytest.raises(DataError, match=r"b\.png cannot be decoded"):
        for source in (data.train, data.test):
            read(source)
