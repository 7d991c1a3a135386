"""Whether an events file is still the one of which a part was exported.

Owns: what is noted of the part before an offset, and comparing it later with what lies there.
Not here: where that is kept (`exporters.ledger`), what is done about another file (`exporters.replay`).
Invariant: a file that only grew is the same; one that was copied with its folder too. One of another run is not,
however long it is: its first line, and the line before the offset, hold other times.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec

from paceline.base.regular import opened_regular

_FIRST_BYTES = 4096
_BEFORE_BYTES = 64


class Mark(msgspec.Struct, frozen=True):
    """Of the part of an events file before an offset.

    Args:
      first: checksum of the first line, of the begin of a very long one.
      before: checksum of the last bytes before the offset.
    """

    first: int
    before: int


def mark_at(descriptor: int, offset: int) -> Mark:
    """What to note of an open file that was read up to ``offset``. Raises: OSError: it cannot be read."""
    first_line, newline, _ = os.pread(descriptor, min(_FIRST_BYTES, offset), 0).partition(b"\n")
    begin = max(0, offset - _BEFORE_BYTES)
    return Mark(zlib.crc32(first_line + newline), zlib.crc32(os.pread(descriptor, offset - begin, begin)))


def is_same(descriptor: int, offset: int, *, mark: Mark | None) -> bool:
    """Whether an open file has the part that was read; without a mark, as old ledgers are, whether it is long enough.

    Raises: OSError: it cannot be read.
    """
    if os.fstat(descriptor).st_size < offset:
        return False
    return mark is None or mark_at(descriptor, offset) == mark


def file_mark(file: Path, offset: int) -> Mark | None:
    """As `mark_at`; None if the file cannot be read. Never raises."""
    try:
        with opened_regular(file) as descriptor:
            return mark_at(descriptor, offset)
    except OSError:
        return None
