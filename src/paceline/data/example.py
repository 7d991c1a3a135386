"""What the data of a run looks like, from its first row or its first batch.

Owns: `Example` and how it is read.
Invariant: nothing but one row, or one ready batch, is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.base.errors import DataError
from paceline.data.source import BatchStream, as_source
from paceline.data.tree import named_leaves, to_host
from paceline.engine.usercode import user_code


@dataclass(frozen=True)
class Example:
    """What the data looks like, from its first row or its first batch.

    Args:
      leaves: name, shape with the rows in front, and dtype on the host of each leaf.
      structure: the tree, with a host array of a row or a batch at each leaf.
      source_rows: rows of the source; None for ready batches.
      rows: leading size of the first leaf: 1 of a row, b of a batch.
    """

    leaves: tuple[tuple[str, tuple[int, ...], np.dtype], ...]
    structure: Any
    source_rows: int | None
    rows: int


def read_example(data: Any) -> Example:
    """The first row, or the first ready batch, whose iterator it takes the batch from.

    Raises: DataError: no source, no batch, or what no device holds. TaskError: the user's data raised.
    """
    with user_code("the data of the run", when="to read its first row"):
        source = as_source(data)
        if isinstance(source, BatchStream):
            first = next(iter(source), None)
            if first is None:
                raise DataError(
                    what="the data yields no batch", why="there is nothing to train on", fix="check the iterator"
                )
            tree, rows = to_host(first, noun="batch"), None
        else:
            tree, rows = source.read(np.zeros(1, np.int64)), len(source)
    leaves = tuple((name, tuple(leaf.shape), leaf.dtype) for name, leaf in named_leaves(tree))
    return Example(leaves, tree, rows, leaves[0][1][0] if leaves and leaves[0][1] else 0)
