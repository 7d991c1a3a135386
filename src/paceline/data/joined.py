"""Ready batches in a run of several processes: each gives its own rows, and together they make the global batch.

Owns: the comparison of what the processes have, before a batch reaches a device; the global batch that results.
Not here: one size for all batches (`stream`), rows that are read by index (`share`).
Invariant: no batch is handed out unless every process has one for the same place, with rows that fit and differ.

Shapes: b = rows that one process gives, B = P * b.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.base.errors import DataError
from paceline.base.units import format_count
from paceline.data.batch import HostBatch, Remainder
from paceline.data.share import Share
from paceline.data.tree import Tree, named_leaves

_SAMPLED = 4096
"""Entries of each leaf that are compared: enough to tell batches apart, too few to cost."""

Exchange = Callable[[str], Sequence[str]]
"""Gives this process's text to all and returns the texts of all, by process."""


class StreamPeers:
    """The other processes, as one that reads a stream of ready batches sees them.

    Args:
      exchange: called once a batch, and once at the end of each pass.
      shares: of each process, by index; all with the same number of devices.
      index: of this process.
    Raises: DataError: processes with different numbers of devices.
    """

    def __init__(self, exchange: Exchange, shares: Sequence[Share], *, index: int) -> None:
        sizes = [len(share.positions) for share in shares]
        if len(set(sizes)) > 1:
            raise DataError(
                what=f"ready batches for processes with {', '.join(map(str, sizes))} devices",
                why="every device takes the same number of rows, so the processes would need batches of different "
                "sizes",
                fix="give every process the same number of devices, or pass data that is read by row (paceline.rows)",
            )
        self._exchange = exchange
        self._shares = list(shares)
        self._index = index

    def confer(self, data: Tree | None, rows: int, *, number: int, remainder: Remainder) -> list[int]:
        """Compare batch `number` of this pass with those of the others; returns the rows of each process.

        Args:
          data: the batch; None at the end of the pass.
          remainder: with ``pad`` the processes may have different numbers of rows behind the first batch.
        Raises: DataError: some have a batch and some have none, different rows, or the same content.
        """
        said = {"rows": rows if data is not None else None, "digest": "" if data is None else digest(data)}
        heard: list[dict[str, Any]] = [json.loads(text) for text in self._exchange(json.dumps(said))]
        counts = [entry["rows"] for entry in heard]
        if any(count is None for count in counts):
            if any(count is not None for count in counts):
                raise _ended_error(counts, number)
            return []
        if len(set(counts)) > 1 and (remainder != "pad" or number == 0):
            raise _rows_error(counts, number)
        _check_distinct([entry["digest"] for entry in heard], number)
        return counts

    def whole(self, local: HostBatch, counts: Sequence[int]) -> HostBatch:
        """The global batch of which `local` is this process's part, by the rows of each process."""
        each = local.size // len(self._shares[self._index].positions)
        num_devices = self._shares[0].num_devices
        valid = np.zeros(each * num_devices, dtype=bool)
        for share, count in zip(self._shares, counts, strict=True):
            valid[share.rows(len(valid))[:count]] = True
        mask = None if valid.all() else valid
        return HostBatch(
            local.data, mask, int(valid.sum()), epoch=local.epoch, position=local.position, indices=None,
            share=self._shares[self._index],
        )  # fmt: skip


def digest(data: Tree) -> str:
    """A short text that differs between batches that differ in sampled entries; empty for constant data, which tells
    nothing."""
    total = hashlib.blake2b(digest_size=16)
    varies = False
    for name, leaf in named_leaves(data):
        flat = np.asarray(leaf).reshape(-1)
        sample = flat[:: max(1, flat.size // _SAMPLED)]
        varies = varies or bool((sample != sample[:1]).any())
        total.update(f"{name} {leaf.shape} {leaf.dtype}".encode())
        total.update(np.ascontiguousarray(sample).tobytes())
    return total.hexdigest() if varies else ""


def _ended_error(counts: Sequence[int | None], number: int) -> DataError:
    ended = [str(index) for index, count in enumerate(counts) if count is None]
    others = [str(index) for index, count in enumerate(counts) if count is not None]
    plural = "es" if len(ended) > 1 else ""
    return DataError(
        what=f"the data of process{plural} {', '.join(ended)} ended after {format_count(number, 'batch')}, but process"
        f"{'es' if len(others) > 1 else ''} {', '.join(others)} {'have' if len(others) > 1 else 'has'} more",
        why="a step needs a batch of every process; the others would wait in it for ever",
        fix="give every process the same number of batches (drop the rest, or pass steps=), or pass data that is "
        "read by row "
        "(paceline.rows), which Paceline shares out itself",
    )


def _rows_error(counts: Sequence[int], number: int) -> DataError:
    sizes = ", ".join(f"{count} in process {index}" for index, count in enumerate(counts))
    return DataError(
        what=f"batch {number} has different rows: {sizes}",
        why="every device takes the same number of rows, so some would be lost or counted twice",
        fix="give every process batches of one size, or use --remainder pad for smaller ones behind the first",
    )


def _check_distinct(digests: Sequence[str], number: int) -> None:
    first: dict[str, int] = {}
    for index, text in enumerate(digests):
        if text and text in first:
            raise DataError(
                what=f"processes {first[text]} and {index} were given the same rows in batch {number}",
                why="each row would be trained on twice and the batch would be smaller than it says",
                fix="give each process its own part, for example data[jax.process_index()::jax.process_count()], or "
                "pass "
                "data that is read by row (paceline.rows), which Paceline shares out itself",
            )
        first.setdefault(text, index)
