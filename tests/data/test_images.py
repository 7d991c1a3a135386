"""Images on disk: IDX files and folders, and the broken file that is named."""

from __future__ import annotations

import gzip
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from paceline.base.errors import DataError
from paceline.data.images import ImageFolder, find_idx_pair, read_idx
from paceline.data.source import MapSource, as_source

IDX_CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx_bytes(array: np.ndarray) -> bytes:
    """The IDX encoding, written from its description: two zeros, type, dims, big-endian sizes and values."""
    header = struct.pack(">BBBB", 0, 0, IDX_CODES[str(array.dtype)], array.ndim)
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("dtype", IDX_CODES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_an_idx_file_is_read_back(tmp_path, dtype, pack):
    """Every type of the format, plain and compressed: values, shape, and the byte order of this machine."""
    array = np.arange(2 * 3 * 4).reshape(2, 3, 4).astype(dtype)
    (tmp_path / "file").write_bytes(pack(idx_bytes(array)))
    found = read_idx(tmp_path / "file")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.dtype(dtype) and found.dtype.isnative and found.flags.writeable


GOOD = idx_bytes(np.arange(10, dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD[:-3], r"holds 7 bytes where its header \[10\] asks for 10"),
        (GOOD + b"x", "holds 11 bytes"),
        (b"\x89PNG\r\n\x1a\n", "no IDX header"),
        (b"", "nothing"),
        (b"\0\0\x07\x01\0\0\0\x01a", "no IDX header"),
        (b"\0\0\x08\x03\0\0\0\x01", "no IDX header"),
        (gzip.compress(GOOD)[:-9], "cannot be read"),
    ],
    ids=["short", "long", "png", "empty", "unknown-type", "cut-header", "cut-gzip"],
)
def test_a_broken_idx_file_is_named(tmp_path, content, words):
    """Cut, too long, another format: the file and the problem."""
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        read_idx(path)
    assert str(path) in caught.value.what


def test_a_missing_idx_file_is_named(tmp_path):
    """No bare FileNotFoundError."""
    with pytest.raises(DataError, match="nothing-here"):
        read_idx(tmp_path / "nothing-here")


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ("train", ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")),
        ("test", ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz")),
        ("test", ("test-images-idx3-ubyte", "test-labels-idx1-ubyte")),
        ("test", ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte")),
    ],
)
def test_the_two_files_of_a_split_are_found(tmp_path, split, names):
    """The names in use, compressed or not, mixed too."""
    for name in names:
        (tmp_path / name).touch()
    assert find_idx_pair(tmp_path, split) == tuple(tmp_path / name for name in names)


def test_a_missing_split_is_named(tmp_path):
    """The folder and the file that was looked for."""
    (tmp_path / "train-images-idx3-ubyte").touch()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte"):
        find_idx_pair(tmp_path, "train")
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
        find_idx_pair(tmp_path, "test")


COLOURS = {"blue": (0, 0, 255), "red": (255, 0, 0)}


@pytest.fixture
def folder(tmp_path):
    """Two classes, two images each: written out of order, one PNG and one BMP."""
    for name, colour in reversed(COLOURS.items()):
        (tmp_path / name).mkdir()
        Image.new("RGB", (6, 4), colour).save(tmp_path / name / "b.png")
        Image.new("RGB", (5, 5), colour).save(tmp_path / name / "a.BMP")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "blue" / "notes.txt").write_text("no image")
    return tmp_path


def test_classes_and_files_come_sorted_and_resized(folder):
    """blue/a blue/b red/a red/b, labels 0 0 1 1, ``uint8[4, 3, 3]`` of the colour each was filled with."""
    data = ImageFolder(folder, size=(4, 3))
    assert data.classes == ("blue", "red")
    assert [path.relative_to(folder).as_posix() for path, _ in data.files] == [
        "blue/a.BMP",
        "blue/b.png",
        "red/a.BMP",
        "red/b.png",
    ]
    assert len(data) == 4
    for index, (colour, class_index) in enumerate([("blue", 0), ("blue", 0), ("red", 1), ("red", 1)]):
        item = data[index]
        assert item["image"].shape == (4, 3, 3) and item["image"].dtype == np.uint8
        assert (item["image"] == COLOURS[colour]).all()
        assert item["label"] == class_index and item["label"].dtype == np.int32


def test_an_image_folder_is_read_like_any_map_style_data_set(folder):
    """Rows 3 and 0: red, blue."""
    source = as_source(ImageFolder(folder, size=(4, 4)))
    assert isinstance(source, MapSource)
    batch = source.read(np.array([3, 0]))
    assert batch["image"].shape == (2, 4, 4, 3) and batch["label"].tolist() == [1, 0]


def test_given_classes_set_the_labels(folder):
    """Order and choice of the caller; a class that is not there is named."""
    assert ImageFolder(folder, size=(2, 2), classes=["red"])[0]["label"] == 0
    with pytest.raises(DataError, match="green"):
        ImageFolder(folder, size=(2, 2), classes=["green"])


def test_an_image_of_its_final_size_is_not_changed(tmp_path):
    """Every pixel of a PNG survives, rows before columns."""
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    (tmp_path / "only").mkdir()
    Image.fromarray(pixels).save(tmp_path / "only" / "one.png")
    np.testing.assert_array_equal(ImageFolder(tmp_path, size=(2, 3))[0]["image"], pixels)


def test_grey_images_get_three_channels(tmp_path):
    """Grey 77 becomes (77, 77, 77)."""
    (tmp_path / "only").mkdir()
    Image.new("L", (2, 2), 77).save(tmp_path / "only" / "grey.png")
    assert (ImageFolder(tmp_path, size=(2, 2))[0]["image"] == 77).all()


def test_a_16_bit_image_is_refused(tmp_path):
    """Pillow would clip its values to 255 in silence."""
    (tmp_path / "only").mkdir()
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(tmp_path / "only" / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png.*8 bits"):
        ImageFolder(tmp_path, size=(2, 2))[0]


@pytest.mark.parametrize("content", [b"not an image", b"\x89PNG\r\n\x1a\n" + b"\0" * 20], ids=["text", "cut"])
def test_a_file_that_is_no_image_is_named(folder, content):
    """The path, when the row is read."""
    (folder / "blue" / "c.png").write_bytes(content)
    with pytest.raises(DataError, match=r"blue.c\.png cannot be decoded"):
        ImageFolder(folder, size=(4, 4))[2]


def test_missing_and_empty_classes_are_named(folder, tmp_path):
    """No folder; no classes; a class without images."""
    with pytest.raises(DataError, match="no folder"):
        ImageFolder(tmp_path / "absent", size=(2, 2))
    with pytest.raises(DataError, match="no class folders"):
        ImageFolder(folder / "blue", size=(2, 2))
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no image"):
        ImageFolder(folder, size=(2, 2))


def test_missing_pillow_names_the_extra(folder, monkeypatch):
    """Said when the data set is made, not when the first row is read."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError) as caught:
        ImageFolder(folder, size=(2, 2))
    assert "paceline[recipes]" in caught.value.fix
