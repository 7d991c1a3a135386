"""The numbers of one kind of event in one process: a table of steps, times and values by key.

Owns: appending, dropping steps that are computed again, samples for pictures, whole columns for tables.
Not here: events (`follow.feed`), where blocks lie (`follow.blocks`), which rows a sample takes (`follow.spans`).
Invariant: steps increase strictly; a step that is computed again replaces itself and all that came after it. Memory
does not grow with the run beyond 2 % of what it recorded: full blocks go to the store.

Shapes: ``[R]`` rows; a key that some rows lack holds `MISSING` there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paceline.dashboard.follow.blocks import BLOCK_ROWS, BlockStore, Slot
from paceline.dashboard.follow.means import Buckets
from paceline.dashboard.follow.spans import (
    MISSING,
    SPAN_ROWS,
    Chosen,
    Spans,
    choose_rows,
    choose_spans,
    is_missing,
    merged,
    rows_of_bucket,
    spans_of,
)

STEP, TIME_S = 0, 1  # the columns that every table has
_FIRST_ROWS = 64
_LOOKED_AT_FIRST = 16
_KEPT_SAMPLES = 16  # of a table that does not change: most runs of a page have ended
_KEPT_POINTS = 1000  # such a sample takes some 40 kB
_MAX_STEP = 2**53  # beyond it float64 has no number for each step


class Means(NamedTuple):
    """What the stretches of a thinned curve hold, ``[B]`` each, in order.

    Args:
      from_step, to_step: the stretch, both included.
      time_s: of its middle.
      value: mean of its finite numbers; NaN if it has none.
      finite: how many finite numbers it has.
      not_finite: how many others.
    """

    from_step: np.ndarray
    to_step: np.ndarray
    time_s: np.ndarray
    value: np.ndarray
    finite: np.ndarray
    not_finite: np.ndarray


class Series(NamedTuple):
    """Some rows of one key, in order: ``[R]`` int64, float64, float64; and means, if others were left out."""

    step: np.ndarray
    time_s: np.ndarray
    value: np.ndarray
    means: Means | None = None


class _Part(NamedTuple):
    """One column of a full block: in a slot, or one number that all rows share."""

    slot: Slot | None
    constant: float
    spans: Spans


@dataclass
class _Block:
    """`BLOCK_ROWS` rows that no longer change; columns that were not there yet are not in `parts`."""

    first_step: int
    last_step: int
    parts: dict[int, _Part] = field(default_factory=dict)


class Columns:
    """See the module. Not safe for threads: the run that owns it has the lock."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._columns: dict[str, int] = {}
        self._blocks: list[_Block] = []
        self._tail = np.full((2, _FIRST_ROWS), MISSING)
        self._tail_rows = 0
        self._emptied: set[str] = set()  # keys all of whose rows were dropped
        self._sampled: dict[tuple[str, int, int, int], Series] = {}

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK_ROWS + self._tail_rows

    def __contains__(self, key: str) -> bool:
        return key in self._columns and key not in self._emptied

    @property
    def keys(self) -> tuple[str, ...]:
        """Metric keys that have numbers, in the order in which they came."""
        return tuple(key for key in self._columns if key not in self._emptied)

    @property
    def last_step(self) -> int | None:
        """Of the newest row; None while there is none."""
        if self._tail_rows:
            return int(self._tail[STEP, self._tail_rows - 1])
        return self._blocks[-1].last_step if self._blocks else None

    @property
    def last_time_s(self) -> float | None:
        """Of the newest row; None while there is none."""
        rows = len(self)
        return float(self._read(TIME_S, rows - 1, rows)[0]) if rows else None

    def append(self, steps: np.ndarray, times_s: np.ndarray, *, values: Mapping[str, np.ndarray]) -> None:
        """Add rows in the order in which they were computed. A step that is not beyond the last one begins anew there.

        Args:
          steps: ``[R]`` updates completed.
          times_s: ``[R]`` Unix times [s].
          values: ``[R]`` by key, `MISSING` where a row lacks it.
        """
        self._sampled.clear()
        steps = np.clip(steps, -_MAX_STEP, _MAX_STEP)
        begin = 0
        for end in [*(np.flatnonzero(np.diff(steps) <= 0) + 1).tolist(), len(steps)]:
            last = self.last_step
            if last is not None and end > begin and steps[begin] <= last:
                self.drop_from(int(steps[begin]))
            self._append(steps, times_s, values=values, begin=begin, end=end)
            begin = end
        self._emptied = {key for key in self._emptied if not self.count(key)}

    def append_one(self, step: int, time_s: float, *, values: Mapping[str, float]) -> None:
        """As `append` for one row, without arrays: a run that is followed comes step by step."""
        self._sampled.clear()
        step = max(-_MAX_STEP, min(step, _MAX_STEP))
        last = self.last_step
        if last is not None and step <= last:
            self.drop_from(step)
        row = self._tail_rows
        columns = [(self._columns.setdefault(key, len(self._columns) + 2), value) for key, value in values.items()]
        self._make_room(row + 1)
        self._tail[2:, row] = MISSING
        self._tail[STEP, row], self._tail[TIME_S, row] = step, time_s
        for column, value in columns:
            self._tail[column, row] = value
        self._tail_rows += 1
        self._emptied -= values.keys()
        if self._tail_rows == BLOCK_ROWS:
            self._seal()

    def drop_from(self, step: int) -> None:
        """Forget ``step`` and all later ones: they are computed again."""
        self._sampled.clear()
        keep = self._row_of(step)
        while len(self._blocks) * BLOCK_ROWS > keep:
            block = self._blocks.pop()
            self._tail_rows = 0
            if keep > len(self._blocks) * BLOCK_ROWS:
                self._restore(block)
            self._drop(block)
        self._tail_rows = keep - len(self._blocks) * BLOCK_ROWS
        self._emptied = {key for key in self._columns if not self.count(key)}

    def release(self) -> None:
        """Give the blocks back to the store; the table must not be used any more."""
        for block in self._blocks:
            self._drop(block)
        self._blocks = []

    def count(self, key: str) -> int:
        """Rows that have a number for ``key``."""
        column = self._columns.get(key)
        if column is None:
            return 0
        sealed = sum(block.parts[column].spans.recorded for block in self._blocks if column in block.parts)
        return sealed + int((~is_missing(self._tail[column, : self._tail_rows])).sum())

    def last(self, key: str) -> float | None:
        """The newest number of ``key``; None if there is none."""
        column = self._columns.get(key)
        if column is None:
            return None
        end = len(self)
        first = max(0, end - _LOOKED_AT_FIRST)  # nearly always enough
        while end > 0:
            values = self._read(column, first, end)
            present = np.flatnonzero(~is_missing(values))
            if len(present):
                return float(values[present[-1]])
            first, end = max(0, first - BLOCK_ROWS), first
        return None

    def recent(self, key: str, rows: int, *, before: int | None = None) -> Series:
        """The numbers of ``key`` in the last rows, or in the last ones up to step ``before``.

        Args:
          rows: how many rows to look at; those without a number are left out.
        """
        end = len(self) if before is None else self._row_of(before + 1)
        return self._series(key, max(0, end - rows), end)

    def whole(self, key: str, *, from_step: int | None = None, to_step: int | None = None) -> Series:
        """All numbers of ``key``, between two steps, both included, if they are given."""
        return self._series(key, *self._rows(from_step, to_step))

    def rows_before(self, step: int) -> int:
        """How many rows have a smaller step."""
        return self._row_of(step)

    def rows(self, keys: Iterable[str], *, from_row: int, to_row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps ``[R]``, times ``[R]`` and values ``[keys, R]`` of some rows, `MISSING` where there is no number."""
        to_row = min(to_row, len(self))
        names = list(keys)
        values = np.full((len(names), max(0, to_row - from_row)), MISSING)
        for place, key in enumerate(names):
            if key in self._columns:
                values[place] = self._read(self._columns[key], from_row, to_row)
        steps = self._read(STEP, from_row, to_row).astype(np.int64)
        return steps, self._read(TIME_S, from_row, to_row), values

    def samples(
        self, keys: Iterable[str], *, points: int, from_step: int | None = None, to_step: int | None = None
    ) -> dict[str, Series]:
        """Some ``points`` rows of each key that keep its extremes, see `follow.spans`; all of them if they are few.

        Keys that the table lacks are left out.
        """
        first, end = self._rows(from_step, to_step)
        shared: dict[tuple[int, int], np.ndarray] = {}  # steps and times are read once for all keys
        found = {}
        for key in keys:
            column = self._columns.get(key)
            if column is None:
                continue
            asked = key, points, first, end
            if asked in self._sampled:
                found[key] = self._sampled[asked]
                continue
            chosen, buckets, bucket_rows = self._sample(column, first, end, points=points)
            step = self._gather(STEP, chosen.rows, shared).astype(np.int64)
            means = None if buckets is None else self._means(buckets, chosen.rows[[0, -1]], bucket_rows, shared)
            found[key] = Series(step, self._gather(TIME_S, chosen.rows, shared), chosen.values, means)
            if points <= _KEPT_POINTS and len(self._sampled) < _KEPT_SAMPLES:
                self._sampled[asked] = found[key]
        return found

    def _means(
        self, buckets: Buckets, ends: np.ndarray, bucket_rows: int, shared: dict[tuple[int, int], np.ndarray]
    ) -> Means:
        """With steps and times; the first and the last bucket reach to the rows ``ends``, which have numbers."""
        low = np.maximum(buckets.bucket * bucket_rows, ends[0])
        high = np.minimum((buckets.bucket + 1) * bucket_rows - 1, ends[1])
        from_step, to_step = (self._gather(STEP, rows, shared).astype(np.int64) for rows in (low, high))
        time_s = self._gather(TIME_S, (low + high) // 2, shared)
        return Means(from_step, to_step, time_s, buckets.mean, buckets.finite, buckets.not_finite)

    def _sample(self, column: int, first: int, end: int, *, points: int) -> tuple[Chosen, Buckets | None, int]:
        """The rows of the sample, means unless it is whole, rows of a bucket."""
        if end - first <= SPAN_ROWS * max(1, points // 2) or self._count(column, first, end) <= points:
            return choose_rows(self._read(column, first, end), first_row=first, points=points)
        pieces: list[Spans] = []
        stretches: list[tuple[int, int]] = []
        for low in range(first - first % BLOCK_ROWS, end, BLOCK_ROWS):
            block = self._blocks[low // BLOCK_ROWS] if low // BLOCK_ROWS < len(self._blocks) else None
            stretch = max(first, low), min(end, low + BLOCK_ROWS)
            if block is not None and stretch == (low, low + BLOCK_ROWS):
                spans = block.parts[column].spans if column in block.parts else None
            else:
                spans = spans_of(self._read(column, *stretch), first_row=stretch[0])
            if spans is not None and spans.recorded:
                pieces.append(spans)
                stretches.append(stretch)
        if not pieces:
            return Chosen(np.empty(0, np.int64), np.empty(0)), None, 1
        bucket_rows = rows_of_bucket(end - first, points=points)
        chosen, buckets = choose_spans(pieces, bucket_rows=bucket_rows)
        ends = [self._end(column, stretches[0], 0), self._end(column, stretches[-1], -1)]
        return merged([chosen, *ends]), buckets, bucket_rows

    def _end(self, column: int, stretch: tuple[int, int], place: int) -> Chosen:
        """The first (0) or the last (-1) number of a stretch that has some."""
        values = self._read(column, *stretch)
        row = np.flatnonzero(~is_missing(values))[[place]]
        return Chosen(row + stretch[0], values[row])

    def _count(self, column: int, first: int, end: int) -> int:
        """Numbers in the rows of the blocks that first to end touches: enough to tell few from many."""
        count = 0
        for block in self._blocks[first // BLOCK_ROWS : -(-end // BLOCK_ROWS)]:
            count += block.parts[column].spans.recorded if column in block.parts else 0
        return count + int((~is_missing(self._tail[column, : self._tail_rows])).sum())

    def _series(self, key: str, first: int, end: int) -> Series:
        column = self._columns.get(key)
        if column is None:
            return Series(np.empty(0, np.int64), np.empty(0), np.empty(0))
        values = self._read(column, first, end)
        there = ~is_missing(values)
        steps, times_s = self._read(STEP, first, end), self._read(TIME_S, first, end)
        return Series(steps[there].astype(np.int64), times_s[there], values[there])

    def _rows(self, from_step: int | None, to_step: int | None) -> tuple[int, int]:
        first = 0 if from_step is None else self._row_of(from_step)
        end = len(self) if to_step is None or to_step >= _MAX_STEP else self._row_of(to_step + 1)
        return first, max(first, end)

    def _row_of(self, step: int) -> int:
        """The first row whose step is ``step`` or later."""
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle].last_step < step:
                low = middle + 1
            else:
                high = middle
        first = low * BLOCK_ROWS
        steps = self._read(STEP, first, min(first + BLOCK_ROWS, len(self)))
        return first + int(np.searchsorted(steps, step))

    def _read(self, column: int, first: int, end: int) -> np.ndarray:
        """The numbers of some rows; not to be changed, and no longer valid after the next append."""
        sealed = len(self._blocks) * BLOCK_ROWS
        pieces = []
        for index in range(first // BLOCK_ROWS, -(-min(end, sealed) // BLOCK_ROWS)):
            values = self._part(self._blocks[index], column)
            pieces.append(values[max(0, first - index * BLOCK_ROWS) : end - index * BLOCK_ROWS])
        if end > sealed or not pieces:
            pieces.append(self._tail[column, max(0, first - sealed) : max(0, end - sealed)])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _gather(self, column: int, rows: np.ndarray, shared: dict[tuple[int, int], np.ndarray]) -> np.ndarray:
        """The numbers of single rows, which are in order; blocks that were read are kept in ``shared``."""
        if not len(rows):
            return np.empty(0)
        begin, end = int(rows[0]) // BLOCK_ROWS, int(rows[-1]) // BLOCK_ROWS + 1
        edges = rows.searchsorted(np.arange(begin, end + 1) * BLOCK_ROWS).tolist()
        pieces = []
        for index, low, high in zip(range(begin, end), edges[:-1], edges[1:], strict=True):
            if low == high:
                continue
            first = index * BLOCK_ROWS
            values = shared.get((column, index))
            if values is None:
                values = shared[column, index] = self._read(column, first, min(first + BLOCK_ROWS, len(self)))
            pieces.append(values[rows[low:high] - first])
        return np.concatenate(pieces)

    def _part(self, block: _Block, column: int) -> np.ndarray:
        part = block.parts.get(column)
        if part is None:
            return np.broadcast_to(MISSING, BLOCK_ROWS)
        return np.broadcast_to(part.constant, BLOCK_ROWS) if part.slot is None else self._store.get(part.slot)

    def _append(
        self, steps: np.ndarray, times_s: np.ndarray, *, values: Mapping[str, np.ndarray], begin: int, end: int
    ) -> None:  # fmt: skip
        columns = {self._columns.setdefault(key, len(self._columns) + 2): numbers for key, numbers in values.items()}
        while begin < end:
            rows = min(end - begin, BLOCK_ROWS - self._tail_rows)
            place = slice(self._tail_rows, self._tail_rows + rows)
            self._make_room(place.stop)
            taken = slice(begin, begin + rows)
            self._tail[2:, place] = MISSING
            self._tail[STEP, place] = steps[taken]
            self._tail[TIME_S, place] = times_s[taken]
            for column, numbers in columns.items():
                self._tail[column, place] = numbers[taken]
            self._tail_rows += rows
            begin += rows
            if self._tail_rows == BLOCK_ROWS:
                self._seal()

    def _make_room(self, rows: int) -> None:
        """A tail that is wide enough for all columns and ``rows`` rows."""
        have = self._tail.shape
        wide, long = max(len(self._columns) + 2, have[0]), have[1]
        if wide > have[0] > 2:  # by half at least: keys that come one by one do not copy all each time
            wide = max(wide, have[0] * 3 // 2)
        while long < rows:
            long = min(2 * long, BLOCK_ROWS)
        if (wide, long) != have:
            grown = np.full((wide, long), MISSING)
            grown[: have[0], : self._tail_rows] = self._tail[:, : self._tail_rows]
            self._tail = grown

    def _seal(self) -> None:
        """The full tail becomes a block."""
        steps = self._tail[STEP]
        block = _Block(int(steps[0]), int(steps[-1]))
        for column, values in enumerate(self._tail):
            bits = values.view(np.uint64)
            is_constant = bool((bits == bits[0]).all())
            if is_constant and is_missing(values[:1])[0]:
                continue
            slot = None if is_constant else self._store.put(values)
            block.parts[column] = _Part(
                slot, float(values[0]), spans_of(values, first_row=len(self._blocks) * BLOCK_ROWS)
            )
        self._blocks.append(block)
        self._tail_rows = 0

    def _drop(self, block: _Block) -> None:
        for part in block.parts.values():
            if part.slot is not None:
                self._store.drop(part.slot)

    def _restore(self, block: _Block) -> None:
        """A block becomes the tail again."""
        self._make_room(BLOCK_ROWS)
        self._tail[:] = MISSING
        for column in block.parts:
            self._tail[column] = self._part(block, column)
        self._tail_rows = BLOCK_ROWS
