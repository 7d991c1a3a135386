"""Images for the image recipe: scikit-learn's digits, IDX files, folders of class-named folders.

Owns: which of the three a name means, and the split into training and test rows.
Invariant: the split depends on nothing but the seed; no row is in both parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.base.errors import DataError
from paceline.data.images import ImageFolder, find_idx_pair, read_idx
from paceline.data.source import MapSource, Source, rows

_TEST_SHARE = 0.2


@dataclass(frozen=True)
class ImageData:
    """Training and test rows, each ``{"image": uint8 [h, w, c], "label": int32}``.

    Args:
      shape: ``(h, w, c)``.
      classes: number of labels.
    """

    train: Source
    test: Source
    shape: tuple[int, int, int]
    classes: int


def load_images(name: str, *, size: int, seed: int) -> ImageData:
    """Images by name or path.

    Args:
      name: ``digits``, a folder of IDX files, or a folder of class-named image folders (of which a fifth becomes the
        test set, unless it has folders ``train`` and ``test``).
      size: side to which folder images are resized.
      seed: of the split, where the data has none.
    Raises: DataError: no such folder, or one that holds neither form.
    """
    if name == "digits":
        return _digits(seed)
    folder = Path(name)
    if not folder.is_dir():
        raise DataError(
            what=f"{name!r} is not a folder",
            why="the image recipe reads digits, a folder of IDX files, or a folder of class-named image folders",
            fix="use --data digits, or the path of such a folder",
        )
    if list(folder.glob("*-images-idx3-ubyte*")) or list(folder.glob("*-images.idx3-ubyte*")):
        return _idx(folder)
    return _folders(folder, size, seed)


def _digits(seed: int) -> ImageData:
    from sklearn.datasets import load_digits  # takes a second to import, and only this data needs it

    digits: Any = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    return _split({"image": images, "label": digits.target.astype(np.int32)}, seed, classes=10)


def _idx(folder: Path) -> ImageData:
    parts = []
    for split in ("train", "test"):
        images, labels = (read_idx(path) for path in find_idx_pair(folder, split))
        parts.append({"image": images[..., None], "label": labels.astype(np.int32)})
    train, test = parts
    classes = int(train["label"].max()) + 1
    return ImageData(rows(train), rows(test), train["image"].shape[1:], classes)


def _split(tree: dict[str, np.ndarray], seed: int, *, classes: int) -> ImageData:
    order = np.random.default_rng(seed).permutation(len(tree["label"]))
    cut = round(len(order) * _TEST_SHARE)
    test, train = ({key: leaf[part] for key, leaf in tree.items()} for part in (order[:cut], order[cut:]))
    return ImageData(rows(train), rows(test), tree["image"].shape[1:], classes)


def _folders(folder: Path, size: int, seed: int) -> ImageData:
    shape = (size, size, 3)
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train = ImageFolder(folder / "train", size=(size, size))
        test = ImageFolder(folder / "test", size=(size, size), classes=train.classes)
        return ImageData(MapSource(train), MapSource(test), shape, len(train.classes))
    images = ImageFolder(folder, size=(size, size))
    order = np.random.default_rng(seed).permutation(len(images))
    cut = max(1, round(len(order) * _TEST_SHARE))
    train, test = MapSource(_Subset(images, order[cut:])), MapSource(_Subset(images, order[:cut]))
    return ImageData(train, test, shape, len(images.classes))


@dataclass(frozen=True)
class _Subset:
    """Some rows of a map-style data set."""

    dataset: ImageFolder
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.dataset[int(self.indices[index])]
