"""Where the numbers of long runs lie: outside the memory of the process.

Owns: blocks of numbers in one temporary file that has no name, so that nothing is left however we end.
Not here: what the numbers mean (`follow.columns`).
Invariant: a block reads back bit for bit; without a temporary file, or when its disk is full, it stays in memory.

Twenty runs of 100,000 steps with 12 series are 220 MB. In a file they are the kernel's page cache, which it gives up
when others need the memory, and reading one block costs about 10 microseconds.
"""

from __future__ import annotations

import os
import tempfile
from threading import Lock

import numpy as np

BLOCK_ROWS = 4096
_BLOCK_BYTES = BLOCK_ROWS * 8

Slot = int


class BlockStore:
    """Blocks of `BLOCK_ROWS` float64 numbers, each in a slot. Safe to use from several threads.

    Args:
      folder: where the temporary file goes; the system's folder for these by default.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._lock = Lock()
        self._free: list[Slot] = []
        self._slots = 0
        self._in_memory: dict[Slot, np.ndarray] = {}
        try:
            self._descriptor: int | None = _unnamed_file(folder)
        except OSError:
            self._descriptor = None

    def put(self, values: np.ndarray) -> Slot:
        """Keep a block; the slot gives it back."""
        with self._lock:
            slot = self._free.pop() if self._free else self._slots
            self._slots = max(self._slots, slot + 1)
        if not self._write(values, slot):
            self._in_memory[slot] = values.copy()
        return slot

    def get(self, slot: Slot) -> np.ndarray:
        """The block, which must not be changed."""
        kept = self._in_memory.get(slot)
        if kept is not None:
            return kept
        assert self._descriptor is not None, "a block that is not in memory was written"
        return np.frombuffer(os.pread(self._descriptor, _BLOCK_BYTES, slot * _BLOCK_BYTES))

    def drop(self, slot: Slot) -> None:
        """The block is not needed any more; its slot will be used again."""
        with self._lock:
            self._in_memory.pop(slot, None)
            self._free.append(slot)

    def close(self) -> None:
        """Give the disk back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, values: np.ndarray, slot: Slot) -> bool:
        if self._descriptor is None:
            return False
        try:
            return os.pwrite(self._descriptor, values.tobytes(), slot * _BLOCK_BYTES) == _BLOCK_BYTES
        except OSError:
            return False


def _unnamed_file(folder: str | os.PathLike[str] | None) -> int:
    """A file without a name: the disk is given back when the process ends, whatever ends it."""
    descriptor, path = tempfile.mkstemp(prefix="paceline-watch-", dir=folder)
    os.unlink(path)
    return descriptor
