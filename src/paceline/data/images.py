"""Images on disk: IDX files as MNIST ships them, and folders with one subfolder a class.

Owns: decoding, and naming the file that is broken.
Not here: reading many rows (`source.MapSource`), augmentation (recipes).
Invariant: the order of files and classes is that of their sorted names, on every machine.

Shapes: h, w = height and width in pixels; images are ``uint8[h, w, 3]``, red first.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from paceline.base.errors import DataError, OptionError

_IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def read_idx(path: str | Path) -> np.ndarray:
    """The array of an IDX file, plain or gzip (told by content, not by name), in the byte order of the machine.

    Raises: DataError: no such file, not IDX, or more or fewer bytes than its header says.
    Source: the format description that accompanies MNIST (LeCun, Cortes, Burges).
    """
    path = Path(path)
    content = _read_bytes(path)
    dims = content[3] if len(content) >= 4 else 0
    header_bytes = 4 + 4 * dims
    if content[:2] != b"\0\0" or dims == 0 or content[2] not in _IDX_DTYPES or len(content) < header_bytes:
        raise _idx_error(path, f"starts with {content[:4].hex(' ') or 'nothing'}, which is no IDX header")
    dtype = np.dtype(_IDX_DTYPES[content[2]])
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dims, offset=4))
    expected, found = math.prod(shape) * dtype.itemsize, len(content) - header_bytes
    if expected != found:
        raise _idx_error(path, f"holds {found} bytes where its header {list(shape)} asks for {expected}")
    return np.frombuffer(content, dtype, offset=header_bytes).reshape(shape).astype(dtype.newbyteorder("="))


def _read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content
    except (OSError, EOFError, zlib.error) as error:
        raise _idx_error(path, f"cannot be read: {error}") from error


def _idx_error(path: Path, problem: str) -> DataError:
    return DataError(
        what=f"{path} {problem}",
        why="part of the data, or other data, would be trained on",
        fix="download the file again, or correct the path",
    )


def find_idx_pair(folder: str | Path, split: Literal["train", "test"]) -> tuple[Path, Path]:
    """Paths of the images and of the labels of one split.

    Finds ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte`` for ``"train"``, the same with ``t10k`` or
    ``test`` for ``"test"``; ``.idx3-ubyte`` and ``.gz`` endings too.

    Raises: DataError: one of the two is not there. OptionError: another split.
    """
    if split not in ("train", "test"):
        raise OptionError(
            what=f"unknown split {split!r}", why="IDX data sets come in two parts", fix="use 'train' or 'test'"
        )
    return _find_idx(Path(folder), split, ending="images-idx3-ubyte"), _find_idx(
        Path(folder), split, ending="labels-idx1-ubyte"
    )


def _find_idx(folder: Path, split: str, *, ending: str) -> Path:
    prefixes = ("train",) if split == "train" else ("t10k", "test")
    endings = (ending, ending.replace("-idx", ".idx"))
    names = [f"{prefix}-{end}{gz}" for prefix in prefixes for end in endings for gz in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        what=f"{folder} has no {names[0]} or {names[1]}",
        why=f"the {split} split is read from that file",
        fix="give the folder that holds the IDX files",
    )


class ImageFolder:
    """A map-style data set of ``root/<class>/<file>``; pass it to `as_source` or to `Trainer.fit`.

    Each item is ``{"image": uint8[h, w, 3], "label": int32[]}``; the label is the index in `classes`. Files ending in
    png, jpg, jpeg, bmp, webp count; names that begin with a dot do not. Transparency is discarded.

    Args:
      root: folder of class folders.
      size: (h, w) that each image is resized to (bilinear, aspect ratio not kept).
      classes: names of the class folders in label order; None takes all, sorted.
    Raises: DataError: no class, a class without images, Pillow missing; on reading, a file that is no 8-bit image.
    """

    def __init__(self, root: str | Path, *, size: tuple[int, int], classes: Sequence[str] | None = None) -> None:
        self.root: Path = Path(root)
        self.size: tuple[int, int] = size
        self.classes: tuple[str, ...] = tuple(classes) if classes is not None else _class_names(self.root)
        _require_pillow()
        if not self.classes:
            raise _folder_error(f"{self.root} has no class folders")
        self.files: tuple[tuple[Path, int], ...] = tuple(
            (path, index) for index, name in enumerate(self.classes) for path in _image_files(self.root / name)
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        path, class_index = self.files[index]
        return {"image": _decode(path, self.size), "label": np.asarray(class_index, np.int32)}


def _class_names(root: Path) -> tuple[str, ...]:
    if not root.is_dir():
        raise _folder_error(f"{root} is no folder")
    return tuple(sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")))


def _image_files(folder: Path) -> list[Path]:
    candidates = folder.iterdir() if folder.is_dir() else ()
    files = sorted(path for path in candidates if path.suffix.lower() in _SUFFIXES and not path.name.startswith("."))
    if not files:
        raise _folder_error(f"class folder {folder} holds no image")
    return files


def _folder_error(what: str) -> DataError:
    return DataError(
        what=what,
        why="each class is read from its own folder, and a class without images cannot be learned",
        fix=f"lay the images out as root/class/name.png ({', '.join(_SUFFIXES)}), or name the classes to use",
    )


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401  Only image folders need it, so the core install goes without.
    except ImportError as error:
        raise DataError(
            what="Pillow is not installed",
            why="image files are decoded with it",
            fix="pip install 'paceline[recipes]'",
        ) from error


def _decode(path: Path, size: tuple[int, int]) -> UInt8[np.ndarray, "h w 3"]:
    from PIL import Image

    height, width = size
    try:
        with Image.open(path) as image:
            # Pillow clips 16-bit and float pixels to 255 in silence: an all-white image.
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"pixels of mode {image.mode} have more than 8 bits")
            pixels = image.convert("RGB")
        if pixels.size != (width, height):
            pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(pixels)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            what=f"{path} cannot be decoded: {error}",
            why="a missing image would shift the rows after it",
            fix="replace or delete the file",
        ) from error
