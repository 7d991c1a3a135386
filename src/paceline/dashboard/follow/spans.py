"""What is remembered of a span of 64 rows, and which rows a picture of many needs.

Owns: the extremes and the sum of each span, the choice of rows for a given number of points.
Not here: where rows are kept (`follow.columns`), adding up sums (`follow.means`).
Invariant: of every bucket the chosen rows hold the least and the greatest finite number and the first and last that is
not finite; the first and the last row of the whole are among them, and rows come in order.

Shapes: ``[R]`` rows of a block or less; ``[S]`` spans, S = R / 64 rounded up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.dashboard.follow.means import Buckets, buckets_of, scaled_sums

SPAN_ROWS = 64

# A number that is not there. It is a NaN of its own, told from a NaN that was recorded by its bits.
MISSING = np.uint64(0x7FF8_0000_0000_ABCD).view(np.float64)
_MISSING_BITS = MISSING.view(np.uint64)


def is_missing(values: np.ndarray) -> np.ndarray:
    """True where nothing was recorded. A recorded NaN is not missing."""
    return values.view(np.uint64) == _MISSING_BITS


class Spans(NamedTuple):
    """Extremes and sums of the spans of a piece of a column. Rows count from ``origin``, so that they fit two bytes.

    Args:
      origin: row of the column at which the first span begins.
      rows: ``[2, S]`` rows of the least and of the greatest finite number.
      values: ``[2, S]`` these numbers; infinite where a span has no finite one.
      sums: ``[S]`` of the finite numbers, see `follow.means`.
      counts: ``[S]`` how many finite numbers there are.
      odd_rows: ``[O]`` rows whose number is recorded and not finite.
      odd_values: ``[O]`` these numbers.
      recorded: how many rows have a number.
    """

    origin: int
    rows: np.ndarray
    values: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    odd_rows: np.ndarray
    odd_values: np.ndarray
    recorded: int


class Chosen(NamedTuple):
    """Rows of a column, in order, and their numbers: both ``[N]``."""

    rows: np.ndarray
    values: np.ndarray


def spans_of(values: np.ndarray, *, first_row: int) -> Spans:
    """The spans of at most 65,472 numbers, of which the first lies in row ``first_row``.

    Spans begin at multiples of 64 of the column, so the first may hold fewer rows.
    """
    lead = first_row % SPAN_ROWS
    size = -(-(lead + len(values)) // SPAN_ROWS) * SPAN_ROWS
    padded = np.full(size, MISSING)
    padded[lead : lead + len(values)] = values
    finite = np.isfinite(padded)
    if finite.all():
        low = high = known = padded
        odd, recorded = np.empty(0, np.uint16), size
    else:
        low, high = np.where(finite, padded, np.inf), np.where(finite, padded, -np.inf)
        known = np.where(finite, padded, 0.0)
        present = ~is_missing(padded)
        odd, recorded = np.flatnonzero(present & ~finite).astype(np.uint16), int(present.sum())
    rows = np.stack([low.reshape(-1, SPAN_ROWS).argmin(axis=1), high.reshape(-1, SPAN_ROWS).argmax(axis=1)])
    rows += np.arange(0, size, SPAN_ROWS)
    extremes = np.stack([low[rows[0]], high[rows[1]]])
    counts = finite.reshape(-1, SPAN_ROWS).sum(axis=1).astype(np.uint8)
    sums = scaled_sums(known.reshape(-1, SPAN_ROWS))
    return Spans(first_row - lead, rows.astype(np.uint16), extremes, sums, counts, odd, padded[odd], recorded)


def rows_of_bucket(num_rows: int, *, points: int) -> int:
    """How many rows a bucket of `choose_spans` has: whole spans, for ``points / 2`` buckets."""
    return SPAN_ROWS * max(1, -(-num_rows // (SPAN_ROWS * max(1, points // 2))))


def choose_spans(pieces: list[Spans], *, bucket_rows: int) -> tuple[Chosen, Buckets]:
    """The rows and means that stand for all rows that ``pieces`` tell of, in order."""
    origins = np.array([piece.origin for piece in pieces])
    sizes = [piece.rows.shape[1] for piece in pieces]
    rows = np.concatenate([piece.rows for piece in pieces], axis=1) + np.repeat(origins, sizes)
    begins = np.concatenate(
        [piece.origin + SPAN_ROWS * np.arange(size) for piece, size in zip(pieces, sizes, strict=True)]
    )
    values = np.concatenate([piece.values for piece in pieces], axis=1)
    odd_rows = np.concatenate([piece.odd_rows for piece in pieces]) + np.repeat(
        origins, [len(piece.odd_rows) for piece in pieces]
    )
    odd = Chosen(odd_rows, np.concatenate([piece.odd_values for piece in pieces]))
    buckets = buckets_of(
        begins,
        np.concatenate([piece.sums for piece in pieces]),
        counts=np.concatenate([piece.counts for piece in pieces]),
        odd_rows=odd_rows,
        bucket_rows=bucket_rows,
    )
    low, high = Chosen(rows[0], values[0]), Chosen(rows[1], values[1])
    return _choose(low, high, odd=odd, bucket_rows=bucket_rows), buckets


def choose_rows(values: np.ndarray, *, first_row: int, points: int) -> tuple[Chosen, Buckets | None, int]:
    """As `choose_spans`, for numbers that are all at hand: buckets of rows, and the first and last number.

    Returns: also the rows of a bucket; no means where all numbers were chosen.
    """
    present = np.flatnonzero(~is_missing(values))
    if len(present) <= points:
        return Chosen(present + first_row, values[present]), None, 1
    bucket_rows = max(2, -(-len(values) // max(1, points // 2)))
    rows = np.arange(first_row, first_row + len(values))
    is_odd = ~np.isfinite(values) & ~is_missing(values)
    odd = Chosen(rows[is_odd], values[is_odd])
    chosen = _choose(Chosen(rows, values), Chosen(rows, values), odd=odd, bucket_rows=bucket_rows)
    ends = present[[0, -1]]
    finite = np.isfinite(values)
    buckets = buckets_of(
        rows,
        scaled_sums(np.where(finite, values, 0.0)[:, np.newaxis]),
        counts=finite,
        odd_rows=odd.rows,
        bucket_rows=bucket_rows,
    )
    return merged([chosen, Chosen(ends + first_row, values[ends])]), buckets, bucket_rows


def merged(chosen: list[Chosen]) -> Chosen:
    """All of these rows, each once, in order."""
    rows, first = np.unique(np.concatenate([item.rows for item in chosen]), return_index=True)
    return Chosen(rows, np.concatenate([item.values for item in chosen])[first])


def _choose(low: Chosen, high: Chosen, *, odd: Chosen, bucket_rows: int) -> Chosen:
    greatest = _least(high.rows, -high.values, bucket_rows=bucket_rows)
    chosen = [_least(low.rows, low.values, bucket_rows=bucket_rows), Chosen(greatest.rows, -greatest.values)]
    if len(odd.rows):
        ends = np.flatnonzero(np.diff(odd.rows // bucket_rows))
        places = np.concatenate([[0], ends + 1, ends, [len(odd.rows) - 1]])
        chosen.append(Chosen(odd.rows[places], odd.values[places]))
    return merged(chosen)


def _least(rows: np.ndarray, values: np.ndarray, *, bucket_rows: int) -> Chosen:
    """In each bucket the row with the least value, the first of equals; none where no value is finite."""
    known = np.isfinite(values)
    if not known.all():
        rows, values = rows[known], values[known]
    if not len(rows):
        return Chosen(rows, values)
    bucket = rows // bucket_rows
    starts = np.concatenate([[0], np.flatnonzero(np.diff(bucket)) + 1])
    least = np.minimum.reduceat(values, starts)
    found = np.flatnonzero(values == np.repeat(least, np.diff(np.append(starts, len(rows)))))
    first = np.append(True, np.diff(bucket[found]) > 0)
    return Chosen(rows[found[first]], least)
