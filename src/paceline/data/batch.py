"""How an epoch is cut into batches of one size.

Owns: divisibility by devices and microbatches, the last uneven batch, padding, the row accounting of an epoch.
Not here: reading (`source`), order (`order`), ready batches of the user's own (`stream`), transfer (`engine`).
Invariant: a plan gives one batch size, so a step compiles once; and rows an epoch = valid rows given + rows dropped.

Shapes: B = padded rows of the global batch, a multiple of devices x microbatches; the first `rows` of them are valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Int64

from paceline.base.errors import BatchSizeError, DataError, OptionError, nearest
from paceline.base.units import format_count
from paceline.data.order import EpochOrder
from paceline.data.share import Share
from paceline.data.source import Source
from paceline.data.tree import Tree, count_rows, label, map_leaves, named_leaves

_ORDER_BLOCK_ROWS = 16384

Remainder: TypeAlias = Literal["drop", "pad", "refuse"]
"""What happens to rows that do not fill a batch: left out and counted, padded with zero weight, or an error."""


@dataclass(frozen=True, eq=False)
class HostBatch:
    """One global batch on the host: all of its rows, or the share of one process.

    Attributes:
      data: tree of ``[b, ...]`` arrays, b = B without a share; may be views of the source, so do not write to them.
      valid: ``bool[B]``, False marks a padding row; None when every row is valid.
      rows: valid rows of the global batch; of rows from a source they come first.
      epoch: from 0.
      position: position within the epoch of the first row.
      indices: ``int64[rows]``, the rows of the source, over all processes; None for a stream.
      share: which of the B rows `data` holds; None for all.
    """

    data: Tree
    valid: Bool[np.ndarray, " B"] | None
    rows: int
    epoch: int
    position: int
    indices: Int64[np.ndarray, " rows"] | None
    share: Share | None = None

    @property
    def size(self) -> int:
        """B, padding included."""
        return self.rows if self.valid is None else len(self.valid)

    def mask(self) -> Bool[np.ndarray, " B"]:
        """`valid` as ``bool[B]`` in any case: a step that gets a mask now and None later compiles twice."""
        return np.ones(self.rows, dtype=bool) if self.valid is None else self.valid

    def place_of(self, row: int) -> int:
        """The place in the global batch of row `row` of `data`."""
        return row if self.share is None else int(self.share.rows(self.size)[row])


@dataclass(frozen=True)
class BatchPlan:
    """How many steps an epoch has and what each holds; made by `plan_batches`.

    Attributes:
      rows: rows of the source.
      batch: valid rows of a full batch.
      padded: rows B of every batch with padding; equals `batch` unless the remainder is padded.
      steps_per_epoch: optimizer updates an epoch, which is what schedules count.
      dropped_per_epoch: rows left out of an epoch.
      padding_per_epoch: rows of zero weight in an epoch.
    """

    rows: int
    batch: int
    padded: int
    steps_per_epoch: int
    dropped_per_epoch: int
    padding_per_epoch: int


def check_batch(tree: Tree, *, devices: int, microbatches: int = 1, multiple: int = 1) -> int:
    """The rows of a batch as given, after a check that they split evenly.

    Args:
      tree: leaves ``[b, ...]``; only shapes are read.
      devices: K.
      microbatches: n, accumulated in each update.
      multiple: a further number that must divide the rows, such as the number of processes.
    Raises:
      DataError: no leaf, a scalar leaf, leaves with different b, no rows, text or Python objects.
      BatchSizeError: b is no multiple of devices x microbatches, or of `multiple`.
    """
    _check_parts(devices, microbatches)
    rows = count_rows(tree, noun="batch")
    unit = math.lcm(devices * microbatches, multiple)
    if rows % unit:
        subject = label(named_leaves(tree)[0][0], "batch")
        raise _uneven_error(f"{subject} has", rows, devices=devices, microbatches=microbatches, unit=unit)
    return rows


def plan_batches(
    rows: int, batch: int, *, devices: int, microbatches: int = 1, remainder: Remainder = "drop"
) -> BatchPlan:
    """Cuts an epoch of `rows` into batches of `batch`.

    Args:
      rows: rows of the source.
      batch: rows of the global batch, over all devices and microbatches.
      devices: K.
      microbatches: n, accumulated in each update.
      remainder: with ``"pad"`` a batch that does not divide is padded up too.
    Raises:
      DataError: no rows.
      BatchSizeError: a batch below 1; one that does not split over devices x microbatches; one larger than the source
        (``"drop"``); rows left over (``"refuse"``).
      OptionError: an unknown `remainder`.
    """
    check_remainder(remainder)
    _check_parts(devices, microbatches)
    if rows < 1:
        raise DataError(
            what=f"the source has {rows} rows",
            why="an epoch without rows has no step to make",
            fix="check the path or the filter that made the data",
        )
    unit = devices * microbatches
    if batch < 1:
        raise BatchSizeError(
            what=f"a batch of {batch} rows",
            why="the mean of no rows is not defined",
            fix=f"use --batch {unit} or a multiple of it",
        )
    if remainder == "pad":
        steps, padded = math.ceil(rows / batch), math.ceil(batch / unit) * unit
        return BatchPlan(rows, batch, padded, steps, dropped_per_epoch=0, padding_per_epoch=steps * padded - rows)
    if batch % unit:
        raise _uneven_error("a batch of", batch, devices=devices, microbatches=microbatches, unit=unit)
    if remainder == "refuse" and rows % batch:
        raise _left_over_error(rows, batch, unit=unit)
    if batch > rows:
        raise _too_large_error(rows, batch, unit=unit)
    return BatchPlan(rows, batch, batch, rows // batch, dropped_per_epoch=rows % batch, padding_per_epoch=0)


def check_remainder(remainder: str) -> None:
    """Raises: OptionError: `remainder` is not one of `Remainder`."""
    known = get_args(Remainder)
    if remainder not in known:
        raise OptionError(
            what=f"unknown remainder {remainder!r}{nearest(remainder, known)}",
            why="rows that do not fill a batch must be dropped, padded or refused",
            fix="use --remainder drop, pad or refuse",
        )


def pad_rows(tree: Tree, to: int) -> Tree:
    """The tree with its last row repeated until each leaf has `to` rows.

    The padding holds real values, not zeros, so that a loss stays finite on it and labels stay in range; it must be
    masked all the same. Leaves ``[b, ...]`` become ``[to, ...]`` copies.
    """

    def pad(leaf: np.ndarray) -> np.ndarray:
        missing = to - len(leaf)
        assert len(leaf) > 0 and missing >= 0, f"{len(leaf)} rows cannot be padded to {to}"
        return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])

    return map_leaves(pad, tree)


def valid_rows(rows: int, padded: int) -> Bool[np.ndarray, " padded"] | None:
    """``bool[padded]``, True for the first `rows`; None when that is all."""
    return None if rows == padded else np.arange(padded) < rows


def batches(
    source: Source,
    plan: BatchPlan,
    *,
    order: EpochOrder,
    start_step: int = 0,
    stop_step: int,
    share: Share | None = None,
) -> Iterator[HostBatch]:
    """The batches of steps `start_step` to `stop_step`; any step costs the same to begin at.

    Args:
      source: has ``plan.rows`` rows.
      plan: size of a batch and steps an epoch.
      order: of ``plan.rows`` rows.
      start_step: updates that were completed before, over all epochs.
      stop_step: one past the last step.
      share: the rows of each batch to read; None for all.
    Raises: DataError while iterating: the source gave another number of rows than asked, or what no device holds.
    """
    assert plan.rows == len(source) == order.rows, (
        f"{plan.rows} rows planned, {len(source)} there, {order.rows} ordered"
    )
    block, block_epoch, block_start = np.zeros(0, np.int64), -1, 0
    for step in range(start_step, stop_step):
        epoch, step_in_epoch = divmod(step, plan.steps_per_epoch)
        position = step_in_epoch * plan.batch
        stop = min(position + plan.batch, plan.rows)
        if epoch != block_epoch or stop > block_start + len(block):
            # Many batches at once: the order of one costs as many calls of numpy as that of a hundred.
            end = min(position + max(plan.batch, _ORDER_BLOCK_ROWS), plan.rows)
            block, block_epoch, block_start = order.indices(epoch, start=position, stop=end), epoch, position
        indices = block[position - block_start : stop - block_start]
        yield _read(source, indices, padded=plan.padded, epoch=epoch, position=position, share=share)


def eval_batches(
    source: Source, batch: int, *, devices: int, pad: bool, share: Share | None = None
) -> Iterator[HostBatch]:
    """Every row once, in stored order: full batches, then the tail.

    Args:
      source: N rows.
      batch: rows of a full batch.
      devices: K.
      pad: True pads the tail to the size of the others, so that one compiled step serves all; False gives it its own
        size, which may not split over the devices, for metrics that cannot be masked; such a tail is read whole.
      share: the rows of each batch to read; None for all.
    Raises: BatchSizeError: a batch below 1, or one that does not split over the devices (`pad` False).
    """
    # As "drop" refuses an uneven batch and "pad" rounds it up; a batch beyond N is no mistake here.
    remainder = "pad" if pad else "drop"
    plan = plan_batches(max(len(source), batch), batch, devices=devices, remainder=remainder)
    order = EpochOrder(len(source), 0, shuffle=False)
    for position in range(0, order.rows, batch):
        indices = order.indices(0, start=position, stop=min(position + batch, order.rows))
        padded = plan.padded if pad else len(indices)
        own = share if padded % devices == 0 else None
        yield _read(source, indices, padded=padded, epoch=0, position=position, share=own)


def _read(
    source: Source, indices: np.ndarray, *, padded: int, epoch: int, position: int, share: Share | None
) -> HostBatch:
    rows = len(indices)
    share = None if share is None or share.whole else share
    own, size = indices, padded
    if share is not None:
        places = share.rows(padded)
        # With nothing but padding here one row is read all the same: padding holds real values.
        own, size = indices[places[places < rows]], len(places)
        own = own if len(own) else indices[-1:]
    data = source.read(own)
    found = count_rows(data, noun="batch")
    if found != len(own):
        raise DataError(
            what=f"the source gave {found} rows where {len(own)} were asked for",
            why="rows would be trained on twice or never",
            fix="return exactly one row an index from the read method of the source, in order",
        )
    if found < size:
        data = pad_rows(data, size)
    return HostBatch(data, valid_rows(rows, padded), rows, epoch=epoch, position=position, indices=indices, share=share)


def _check_parts(devices: int, microbatches: int) -> None:
    if devices < 1 or microbatches < 1:
        raise BatchSizeError(
            what=f"a batch split over {devices} devices and {microbatches} microbatches",
            why="a batch splits into at least one part",
            fix="use at least 1 device and --accumulation 1",
        )


def _uneven_error(subject: str, rows: int, *, devices: int, microbatches: int, unit: int) -> BatchSizeError:
    lower, upper = rows // unit * unit, math.ceil(rows / unit) * unit
    parts = format_count(devices, "device")
    if microbatches > 1:
        parts += f" x {microbatches} microbatches"
    if unit != devices * microbatches:
        parts += f" in multiples of {unit}"
    split = f"{subject} {format_count(rows, 'row')}"
    return BatchSizeError(
        what=f"{split} for {parts}" if rows < unit else f"{split}, which do not split over {parts}",
        why="unequal shares would weight some rows more in the gradient mean",
        fix=f"use --batch {f'{lower} or ' if lower else ''}{upper}, or --remainder pad",
    )


def _left_over_error(rows: int, batch: int, *, unit: int) -> BatchSizeError:
    dividing = next((size for size in range(batch // unit * unit, 0, -unit) if rows % size == 0), None)
    smaller = f"use --batch {dividing}, or " if dividing else "use "
    return BatchSizeError(
        what=f"{format_count(rows, 'row')} in batches of {batch} leave {rows % batch} over in each epoch",
        why="with --remainder refuse every row must fill a batch",
        fix=f"{smaller}--remainder pad, or --remainder drop to leave them out",
    )


def _too_large_error(rows: int, batch: int, *, unit: int) -> BatchSizeError:
    largest = rows // unit * unit
    return BatchSizeError(
        what=f"a batch of {batch} rows is more than the {format_count(rows, 'row')} of the source",
        why="with --remainder drop no batch would be left and no step made",
        fix=f"use --batch {largest} or less, or --remainder pad" if largest else "use --remainder pad",
    )
