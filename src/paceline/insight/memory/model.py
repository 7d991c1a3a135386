"""Peak memory for batch sizes that were not compiled.

Owns: `MemoryModel`: straight lines between compiled batch sizes.
Not here: the compilations themselves; which batch is the largest (`insight.memory.largest`).
Invariant: at a compiled batch size the answer is the compiler's.

Arguments grow with the rows by a constant. The block of temporaries nearly does: activations are proportional to the
rows of a microbatch, b / n, but XLA packs buffers anew for each size, and chooses layouts and fusions by it. Measured
for H100 on a convolutional net and a GPT: a line through two sizes a factor 2 apart is within 2.5 % of the compiler
between them; one a factor 4 apart is off by up to 7 %, and one continued to twice its end by up to 11 %. So the nearest
compiled neighbours count, outside of them the outer pair, and `is_near` says which it was.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass

NEAR = 2.0
"""Ratio of two compiled batch sizes up to which the answers between them are good to 3 % (see above)."""


@dataclass(frozen=True)
class MemoryModel:
    """Peak bytes of one device by its rows.

    Args:
      compiled: peak bytes by rows a device, for two batch sizes or more.
      accumulation: microbatches n that they were compiled with.
      gradients: bytes of one tree of gradients on a device; with more than one microbatch it exists twice, once as the
        sum so far.
      row_bytes: bytes of a row of the batch.
    """

    compiled: Mapping[int, int]
    accumulation: int = 1
    gradients: int = 0
    row_bytes: int = 0

    def __post_init__(self) -> None:
        assert len(self.compiled) >= 2, "one point has no slope"

    def peak(self, rows: int, *, accumulation: int | None = None) -> int:
        """Predicted peak bytes for so many rows a device, in so many microbatches (default: as compiled).

        For another n the temporaries are those of a batch as large as a microbatch; beside them are its other rows, and
        with more than one microbatch the sum of gradients so far and a copy of the batch in the microbatches' order.
        That is rougher than 3 %: measured for H100 with n = 2, 1 % too much for a GPT, 8 % too little for a small
        convolutional net.
        """
        if rows in self.compiled and accumulation in (None, self.accumulation):
            return self.compiled[rows]
        count = self.accumulation if accumulation is None else accumulation
        alike = rows * self.accumulation / count
        copies = (rows if count > 1 else 0) - (alike if self.accumulation > 1 else 0)
        extra = self.gradients * ((count > 1) - (self.accumulation > 1))
        return round(self._line(alike) + (rows - alike + copies) * self.row_bytes) + extra

    def is_near(self, rows: int) -> bool:
        """Whether the answer lies between compiled sizes close enough for it to be good to 3 %."""
        known = sorted(self.compiled)
        right = bisect.bisect_left(known, rows)
        if rows in self.compiled:
            return True
        return 0 < right < len(known) and known[right] <= NEAR * known[right - 1]

    def rows_for(self, peak_bytes: int) -> int:
        """Most rows whose predicted peak is no larger; 0 if even one row is too many."""
        low, high = 0, 1
        while self.peak(high) <= peak_bytes:
            low, high = high, 2 * high
            if high > 1 << 40:  # memory does not grow with the rows
                return low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.peak(middle) <= peak_bytes else (low, middle)
        return low

    def _line(self, rows: float) -> float:
        known = sorted(self.compiled)
        right = min(max(bisect.bisect_left(known, rows), 1), len(known) - 1)
        below, above = known[right - 1], known[right]
        slope = (self.compiled[above] - self.compiled[below]) / (above - below)
        return self.compiled[below] + slope * (rows - below)
