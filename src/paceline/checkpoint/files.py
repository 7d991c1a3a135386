"""Where a checkpoint's files lie, what makes it complete, how it appears and how it goes.

Owns: names, the document of a checkpoint with its own check, the list of its files, the renames that make saving and
deleting atomic, what a killed run left behind.
Not here: arrays (`checkpoint.arrays`), what the document says (`checkpoint.store`), which checkpoints go
(`checkpoint.retention`).
Invariant: a folder is called by its step alone only when it is whole: it is written as ``<step>.saving`` and deleted as
``<step>.deleting``. One rename each way is all that another process ever sees.

``<step>/paceline.json`` the document; ``<step>/default/`` the arrays, an Orbax item.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.base.regular import read_regular, reason

DOCUMENT = "paceline.json"
ARRAYS = "default"
"""The name by which Orbax's own manager looks for a single item."""
FORMAT = 1

_STEP = re.compile(r"\d{1,18}")
_REST = re.compile(r"\d{1,18}\.(saving|deleting)")
_HASHED_AT_MOST = 65536
_LOOK_S = 0.02


class Damaged(Exception):
    """A checkpoint whose bytes are not those that were saved. The text names the file or the leaf."""


def step_folder(folder: Path, step: int) -> Path:
    """The folder of a complete checkpoint."""
    return folder / str(step)


def saving_folder(folder: Path, step: int) -> Path:
    """The folder of a checkpoint while it is written."""
    return folder / f"{step}.saving"


def step_folders(folder: Path) -> dict[int, Path]:
    """The folders called by a step, ascending; whether they are whole is not looked at."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    found = {int(name): folder / name for name in names if _STEP.fullmatch(name)}
    return {step: found[step] for step in sorted(found)}


def leftovers(folder: Path) -> list[Path]:
    """What a run that was killed while it saved or deleted has left."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if _REST.fullmatch(name))
    except OSError:
        return []


def steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps of which a folder holds complete checkpoints, ascending. Takes the folder of a run too.

    Complete: its document is sound and its files are there, with the sizes that they were saved with. Their bytes are
    proven when they are restored.
    """
    place = Path(folder)
    inside = place / "checkpoints"
    return [step for step, path in step_folders(inside if inside.is_dir() else place).items() if is_complete(path)]


def is_complete(path: Path) -> bool:
    """Whether the folder of one step holds a whole checkpoint, its bytes not looked at."""
    try:
        check_files(path, read_document(path))
    except (Damaged, OSError):
        return False
    return True


def read_document(path: Path) -> dict[str, Any]:
    """The document of the checkpoint in the folder of one step. Raises: Damaged."""
    file = path / DOCUMENT
    try:
        content = json.loads(read_regular(file))
        document, check = content["document"], content["crc32"]
    except FileNotFoundError:
        raise Damaged(f"{DOCUMENT} is missing") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{DOCUMENT} cannot be read: {reason(error)}") from error
    if check != _check(document):
        raise Damaged(f"{DOCUMENT} is not what was written: its check does not fit")
    return document


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Put the document into the folder of a checkpoint that is being written."""
    with open(path / DOCUMENT, "xb") as file:
        file.write(json.dumps({"crc32": _check(document), "document": document}).encode())
        file.flush()
        os.fsync(file.fileno())


def _check(document: Any) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def list_files(path: Path) -> dict[str, list[int]]:
    """Every file under the folder of a checkpoint: its size, and the CRC of a small one.

    Small files say how the large ones are read; the numbers in those are proven by the checksums of the leaves.
    """
    found: dict[str, list[int]] = {}
    for root, _, names in os.walk(path):
        for name in names:
            file = Path(root, name)
            size = file.stat().st_size
            small = size <= _HASHED_AT_MOST
            found[str(file.relative_to(path))] = [size, zlib.crc32(file.read_bytes())] if small else [size]
    return dict(sorted(found.items()))


def check_files(path: Path, document: Mapping[str, Any], *, bytes_too: bool = False) -> None:
    """Raise Damaged if a file is missing or has another size, or, if asked for, a small one other bytes."""
    for name, (size, *crc) in document["files"].items():
        file = path / name
        try:
            found = file.stat().st_size
            if found != size:
                raise Damaged(f"file {name!r} has {found:,} bytes, not the {size:,} that were written")
            if bytes_too and crc and zlib.crc32(file.read_bytes()) != crc[0]:
                raise Damaged(f"file {name!r} does not hold the bytes that were written")
        except OSError as error:
            raise Damaged(f"file {name!r} is missing: {error.strerror}") from error


def check_space(folder: Path, *, size: int) -> None:
    """Raise OSError before anything is written if a disk has no room for so many bytes.

    The library that writes finds it out only when the disk is full, for everybody.
    """
    found = os.statvfs(folder)
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    if found.f_blocks and blocks * found.f_frsize < size:  # some network disks say nothing: 0 blocks in all
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def commit(folder: Path, step: int) -> None:
    """Give a checkpoint that is written its name. What was there under it, incomplete, goes."""
    final = step_folder(folder, step)
    if final.exists():
        remove(final)
    os.rename(saving_folder(folder, step), final)
    sync(folder)


def remove(path: Path) -> None:
    """Delete a checkpoint: after one rename nobody takes it for one. Raises: OSError: it could not be renamed."""
    going = path.with_name(f"{path.name}.deleting")
    if going.exists():
        shutil.rmtree(going)
    os.rename(path, going)
    shutil.rmtree(going)


def discard(path: Path, *, settle_s: float = 0.0) -> None:
    """Take away what is no checkpoint, as far as that goes.

    Args:
      settle_s: how long to look whether it stays away [s]. Threads of Orbax go on for a moment after a save that
        failed, and make the folder again without a word.
    """
    shutil.rmtree(path, ignore_errors=True)
    until_s = time.monotonic() + settle_s
    while time.monotonic() < until_s:
        time.sleep(_LOOK_S)
        if os.path.lexists(path):
            shutil.rmtree(path, ignore_errors=True)


def sync(folder: Path) -> None:
    """Have the disk note the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_small(file: Path, content: Any) -> None:
    """Replace a small JSON file in one rename."""
    rest = file.with_name(f"{file.name}.saving")
    rest.write_text(json.dumps(content), encoding="utf-8")
    os.replace(rest, file)
