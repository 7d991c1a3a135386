"""Rows that are made when they are read, so that a data set of any size costs no memory.

Owns: `Synthetic`, for measuring throughput and for plans where the real data is not at hand.
Invariant: a row depends on its index alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Synthetic:
    """A map-style data set.

    Args:
      make: the row of a random generator, a dict of arrays.
      rows: its length.
    """

    make: Callable[[np.random.Generator], dict[str, np.ndarray]]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.make(np.random.default_rng(int(index)))
