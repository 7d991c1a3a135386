"""Nothing outside of the watched folder is read.

Owns: the test that a path, links followed, stays inside; opening a file so that this holds for what was opened, and
so that nothing is waited for: only regular files are read.
Invariant: decided on the real path, never on how it is spelled, and for the open file itself: a link that is put in its
place between the test and the opening is refused too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.base.regular import opened_regular

_OPEN_FILES = "/proc/self/fd"


def leads_outside(path: Path, *, root: Path) -> bool:
    """Whether ``path``, with all links followed, lies outside of ``root``, whose own links are followed too."""
    return not _is_below(os.path.realpath(path), root)


@contextmanager
def opened_inside(path: Path, *, root: Path) -> Iterator[int]:
    """A descriptor to read from.

    Raises: OSError: it cannot be opened, is no regular file, or lies outside of ``root``.
    """
    with opened_regular(path) as descriptor:
        real = os.readlink(f"{_OPEN_FILES}/{descriptor}") if os.path.isdir(_OPEN_FILES) else os.path.realpath(path)
        if not _is_below(real, root):
            raise PermissionError(errno.EACCES, "it leads out of the watched folder", str(path))
        yield descriptor


def read_inside(path: Path, *, root: Path | None, most_bytes: int) -> bytes:
    """The content of a file; of any place if ``root`` is None.

    Raises:
      OSError: as `opened_inside`.
      ValueError: it has more than ``most_bytes``.
    """
    with opened_regular(path) if root is None else opened_inside(path, root=root) as descriptor:
        if os.fstat(descriptor).st_size <= most_bytes:
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(most_bytes + 1)
            if len(content) <= most_bytes:
                return content
    raise ValueError(f"it has more than {most_bytes / 1e6:.0f} MB")


def _is_below(real: str, root: Path) -> bool:
    real_root = os.path.realpath(root)
    return real == real_root or real.startswith(real_root.rstrip(os.sep) + os.sep)
