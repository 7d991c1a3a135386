"""One file that grows: what is new in it, and whether it is still the same file.

Owns: offsets, whole lines, and the two ways in which a file stops being the one that was read.
Not here: what the lines say (`follow.feed`).
Invariant: every whole line is given once, in order; when the bytes before the offset are no longer those that were
read, the file is another one and reading begins anew.

The generation names a file also after this process has ended: inode and checksum of the first line, which holds the
time at which the run began. It is empty until that line is read.
"""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

from paceline.dashboard.follow.inside import opened_inside

_CHECKED_BYTES = 64
LONGEST_LINE_BYTES = 1024 * 1024

Change = Literal["same", "grown", "replaced", "gone"]
Instead = Literal["folder", "pipe", "special"]


class Piece(NamedTuple):
    """Whole lines, whether more may be there, and how many lines began that are too long for an event."""

    content: bytes
    more: bool
    passed_over: int = 0


class Tail:
    """The end of one file. `instead` says what lies in its place if that is no regular file.

    Args:
      path: of a file that may not be there yet.
      root: nothing outside of it is read.
    """

    def __init__(self, path: Path, *, root: Path) -> None:
        self.path = path
        self._root = root
        self.offset = 0
        self.size_bytes = 0
        self.modified_s = 0.0
        self.generation = ""
        self.instead: Instead | None = None
        self._seen: tuple[int, int, int] | None = None  # inode, size, modification time
        self._before = b""  # the last bytes before the offset
        self._in_long_line = False
        self._torn_bytes: int | None = None  # the size at which a read found no whole line

    @property
    def unread_bytes(self) -> int:
        """Bytes that no read has looked at."""
        return max(0, self.size_bytes - self.offset)

    def look(self) -> Change:
        """One `stat`. After "replaced" the offset is 0 and the generation another; "grown" also for the first time."""
        try:
            found = os.stat(self.path)
        except OSError:
            self.instead = None
            return "gone"
        self.instead = _instead(found.st_mode)
        if self.instead is not None:
            return "gone"
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen:
            return "same"
        before, self._seen = self._seen, seen
        self._torn_bytes = None
        self.size_bytes, self.modified_s = found.st_size, found.st_mtime
        if before is None:
            return "grown"
        if before[0] != seen[0] or not self._same_before():
            self.rewind()
            self.generation = ""
            return "replaced"
        return "grown"

    def read(self, limit_bytes: int) -> Piece:
        """The next whole lines, of about ``limit_bytes``; a torn last line is left for later.

        Raises: OSError: the file went away or cannot be read.
        """
        if self._torn_bytes == self.size_bytes:  # nobody wrote since: not read again at each look
            return Piece(b"", more=False)
        limit_bytes = min(limit_bytes, self.unread_bytes)
        with opened_inside(self.path, root=self._root) as descriptor:
            content = os.pread(descriptor, limit_bytes, self.offset)
            if self._in_long_line:
                return self._go_on_in_long_line(content)
            end = content.rfind(b"\n") + 1
            while not end and self.offset + len(content) < self.size_bytes and len(content) < LONGEST_LINE_BYTES:
                more_bytes = min(max(limit_bytes, 65536), LONGEST_LINE_BYTES - len(content))
                content += os.pread(descriptor, more_bytes, self.offset + len(content))
                end = content.rfind(b"\n") + 1
        whole = content[:end]
        if not end and len(content) >= LONGEST_LINE_BYTES:
            self._in_long_line = True  # no event is that long: pass over it rather than read it again and again
        elif not end:
            self._torn_bytes = self.size_bytes
            return Piece(b"", more=False)
        taken = content if self._in_long_line else whole
        if not self.offset and self._seen is not None:
            first_line = taken[: LONGEST_LINE_BYTES if self._in_long_line else taken.find(b"\n") + 1]
            self.generation = f"{self._seen[0]:x}-{zlib.crc32(first_line):x}"
        self._take(taken)
        return Piece(whole, more=self.offset < self.size_bytes, passed_over=int(self._in_long_line))

    def piece(self, offset: int, size_bytes: int) -> bytes:
        """Bytes from anywhere in the file; fewer, or none, if they are not there. Never raises."""
        try:
            with opened_inside(self.path, root=self._root) as descriptor:
                return os.pread(descriptor, size_bytes, offset)
        except OSError:
            return b""

    def rewind(self) -> None:
        """Read it again from the beginning; it is the same file."""
        self.offset = 0
        self._before = b""
        self._in_long_line = False
        self._torn_bytes = None

    def _go_on_in_long_line(self, content: bytes) -> Piece:
        """Pass over the rest of a line of which the begin was passed over, as far as it is there."""
        end = content.find(b"\n") + 1
        self._in_long_line = not end
        self._take(content[:end] if end else content)
        return Piece(b"", more=self.offset < self.size_bytes)

    def _take(self, content: bytes) -> None:
        self.offset += len(content)
        self._before = (self._before + content[-_CHECKED_BYTES:])[-_CHECKED_BYTES:]

    def _same_before(self) -> bool:
        """Whether the bytes before the offset are still those that were read."""
        if not self._before:
            return True
        begin = self.offset - len(self._before)
        return self.piece(begin, len(self._before)) == self._before


def _instead(mode: int) -> Instead | None:
    if stat.S_ISREG(mode):
        return None
    return "folder" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "special"
