"""Compiled programs on disk: text and memory, so that a second plan need not compile.

Owns: where entries live, how they are written and read, how much room they take.
Not here: what makes two programs the same (`insight.compiling.program`).
Invariant: an entry is whole or it is not there: what cannot be read counts as missing and is written anew.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from paceline.base.regular import read_regular
from paceline.insight.memory.stats import MemoryStats

_ENDING = ".json.gz"
_MAX_BYTES = 256 << 20
"""Room for all entries; the program of ResNet-50 for 8 GPUs takes about 0.3 MB."""

_UNREADABLE = (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError)
"""What a missing, a torn and a foreign entry raise."""


class Entry(msgspec.Struct, frozen=True):
    """A compiled program as it is kept.

    Args:
      text: HLO in the order of the schedule.
      memory: of one device; None if the compiler gave none.
      compile_s: seconds that it took to compile.
      platform: ``cpu`` or ``cuda``.
    """

    text: str
    memory: MemoryStats | None
    compile_s: float
    platform: str


def default_folder() -> Path:
    """``$PACELINE_CACHE/programs``, else ``$XDG_CACHE_HOME/paceline/programs``, else under ``~/.cache``."""
    own = os.environ.get("PACELINE_CACHE")
    if own:
        return Path(own) / "programs"
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "paceline" / "programs"


@dataclass(frozen=True)
class ProgramCache:
    """Entries of one folder, by hash of the program.

    A folder that cannot be written to keeps nothing, and nothing else changes.

    Args:
      folder: made when the first entry is written.
      max_bytes: of all entries; those unused for longest go first.
    """

    folder: Path
    max_bytes: int = _MAX_BYTES

    def read(self, key: str) -> Entry | None:
        """The entry of that hash, or None if there is none that can be read."""
        path = self._path(key)
        try:
            entry = msgspec.json.decode(gzip.decompress(read_regular(path)), type=Entry)
        except _UNREADABLE:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now: the last to go
        return entry

    def write(self, key: str, entry: Entry) -> None:
        """Keep an entry, and drop the oldest if there are too many."""
        data = gzip.compress(msgspec.json.encode(entry), compresslevel=5)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
                file.write(data)
            Path(file.name).replace(self._path(key))
        except OSError:
            return
        self._shrink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_ENDING}"

    def _shrink(self) -> None:
        """Another process may shrink the folder at the same time: a file that has gone is no error."""
        with contextlib.suppress(OSError):
            stats = [(path, path.stat()) for path in self.folder.glob(f"*{_ENDING}")]
            total = sum(stat.st_size for _, stat in stats)
            for path, stat in sorted(stats, key=lambda pair: pair[1].st_mtime_ns):
                if total <= self.max_bytes:
                    return
                path.unlink(missing_ok=True)
                total -= stat.st_size
