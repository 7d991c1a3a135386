"""Ready batches of the user's own, brought to one size.

Owns: what happens to a batch of a stream that is smaller or larger than the first, or of another shape.
Not here: cutting rows into batches (`batch`), telling a stream from a data set (`source`).
Invariant: every batch has the structure, shapes and types of the first one, so a step compiles once; rows left out are
counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from paceline.base.errors import BatchSizeError, DataError
from paceline.base.units import format_count
from paceline.data.batch import HostBatch, Remainder, check_batch, check_remainder, pad_rows, valid_rows
from paceline.data.joined import StreamPeers
from paceline.data.source import BatchStream, StreamCount
from paceline.data.tree import Tree, count_rows, label, named_leaves, to_host

_Layout: TypeAlias = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Leaf name to the shape of a row and its type."""


def stream_batches(
    stream: BatchStream,
    *,
    devices: int,
    microbatches: int = 1,
    remainder: Remainder = "drop",
    steps: int | None = None,
    epochs: int | None = None,
    skip: int = 0,
    peers: StreamPeers | None = None,
) -> Iterator[HostBatch]:
    """The batches of a stream, all of the size of its first.

    Ends after `steps` batches, after `epochs` passes, or when a pass gives nothing, whichever comes first: so a
    generator ends when it runs dry, and a loader without either limit never does. It takes no batch
    beyond those it gives.

    Args:
      stream: its `count` is updated as batches pass.
      devices: K; with `peers` those of this process.
      microbatches: n, accumulated in each update.
      remainder: what happens to a batch smaller than the first. With ``"pad"`` the first is padded up to a multiple of
        devices x microbatches too.
      steps: batches to give; None for no limit.
      epochs: passes over the stream; None for no limit.
      skip: batches to read and leave out first, as a resumed run must; they count neither as steps nor as rows.
      peers: the other processes, each with a stream of its own rows; None in a run of one process.
    Raises while iterating:
      DataError: the first pass is empty; a batch of other leaves, shapes or types; leaves that are no rows.
      BatchSizeError: a first batch that does not split; a larger batch later; a smaller one (``"refuse"``).
      OptionError (at once): an unknown `remainder`.
    """
    check_remainder(remainder)
    given = _every_batch(stream, _Shaper(stream.count, devices, microbatches, remainder), epochs=epochs, peers=peers)
    return itertools.islice(_without_first(given, skip, stream.count), steps)


def _without_first(given: Iterator[HostBatch], skip: int, count: StreamCount) -> Iterator[HostBatch]:
    for number, batch in enumerate(given):
        if number >= skip:
            yield batch
        elif number + 1 == skip:  # what the run before gave and left out stands in its own report
            count.rows = count.dropped_rows = count.dropped_batches = count.padding_rows = 0


def _every_batch(
    stream: BatchStream, shaper: _Shaper, *, epochs: int | None, peers: StreamPeers | None
) -> Iterator[HostBatch]:
    for epoch in itertools.count() if epochs is None else range(epochs):
        position = given = number = 0
        for batch in stream:
            data = to_host(batch, noun="batch")
            rows = count_rows(data, noun="batch")
            counts = [rows] if peers is None else _conferred(peers, data, rows, number=number, shaper=shaper)
            shaped = shaper.shape(data, rows, epoch=epoch, position=position)
            position += sum(counts)
            number += 1
            if shaped is not None:
                given += 1
                yield shaped if peers is None else peers.whole(shaped, counts)
        if peers is not None:
            _conferred(peers, None, 0, number=number, shaper=shaper)
        if not given and epoch == 0:
            raise DataError(
                what="the stream of batches is empty",
                why="without a first batch there is no step to compile",
                fix="pass an iterable that still holds batches: a generator that was used before is empty",
            )
        if not given:
            return


def _conferred(peers: StreamPeers, data: Tree | None, rows: int, *, number: int, shaper: _Shaper) -> list[int]:
    return peers.confer(data, rows, number=number, remainder=shaper.remainder)


@dataclass
class _Shaper:
    """Brings each batch to the size of the first one, and counts."""

    count: StreamCount
    devices: int
    microbatches: int
    remainder: Remainder
    first: int = 0
    padded: int = 0
    layout: _Layout | None = None

    def shape(self, data: Tree, rows: int, *, epoch: int, position: int) -> HostBatch | None:
        """The batch at its final size, or None when it is dropped."""
        if self.layout is None:
            self._adopt(data, rows)
        else:
            _check_layout(_layout(data), self.layout)
        if rows > self.first:
            raise _larger_error(rows, self.first)
        if rows < self.first and self.remainder == "refuse":
            raise _smaller_error(rows, self.first)
        if rows < self.first and self.remainder == "drop":
            self.count.dropped_rows += rows
            self.count.dropped_batches += 1
            return None
        self.count.rows += rows
        self.count.padding_rows += self.padded - rows
        if rows < self.padded:
            data = pad_rows(data, self.padded)
        return HostBatch(data, valid_rows(rows, self.padded), rows=rows, epoch=epoch, position=position, indices=None)

    def _adopt(self, data: Tree, rows: int) -> None:
        if self.remainder == "pad":
            unit = self.devices * self.microbatches
            self.padded = math.ceil(rows / unit) * unit
        else:
            self.padded = check_batch(data, devices=self.devices, microbatches=self.microbatches)
        self.first, self.layout = rows, _layout(data)


def _layout(data: Tree) -> _Layout:
    return {name: (leaf.shape[1:], leaf.dtype) for name, leaf in named_leaves(data)}


def _check_layout(found: _Layout, expected: _Layout) -> None:
    if found.keys() != expected.keys():
        raise DataError(
            what=f"a batch has the leaves {list(found)}, but the first had {list(expected)}",
            why="a step is compiled for one structure",
            fix="give every batch the same keys",
        )
    for name, (shape, dtype) in expected.items():
        if found[name] != (shape, dtype):
            raise DataError(
                what=f"{label(name, 'batch')} has rows of {found[name][1]}{list(found[name][0])}, "
                f"but the first batch had {dtype}{list(shape)}",
                why="each new shape or type compiles the step again",
                fix="pad, crop or cast the leaf to one shape and type",
            )


def _larger_error(rows: int, first: int) -> BatchSizeError:
    return BatchSizeError(
        what=f"a batch of {format_count(rows, 'row')} follows a first batch of {first}",
        why="the step is compiled for the size of the first batch",
        fix=f"make the first batch the largest, or give every batch {first} rows",
    )


def _smaller_error(rows: int, first: int) -> BatchSizeError:
    return BatchSizeError(
        what=f"a batch of {format_count(rows, 'row')} follows a first batch of {first}",
        why="with --remainder refuse every batch must have the size of the first",
        fix=f"give every batch {first} rows, or use --remainder pad or drop",
    )
