"""Which rows of a global batch this process reads.

Owns: the positions of its devices among the K of the mesh, and the rows that follow from them.
Invariant: the shares of all processes partition the rows of every batch; the order of rows never depends on the share.

Shapes: B = padded rows of the global batch, a multiple of K; device d holds rows d*B/K to (d+1)*B/K.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64


@dataclass(frozen=True)
class Share:
    """The devices of one process.

    Args:
      num_devices: K, over all processes.
      positions: ascending places of this process's devices among them.
    """

    num_devices: int
    positions: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether this process reads every row."""
        return len(self.positions) == self.num_devices

    def rows(self, size: int) -> Int64[np.ndarray, " b"]:
        """Places in a global batch of `size` rows of those that this process reads, ascending: b = size * own / K."""
        each = size // self.num_devices
        return np.concatenate([np.arange(place * each, (place + 1) * each) for place in self.positions])

    def block(self, start: int, *, size: int) -> slice:
        """Of the rows read here, those of the device whose part of the global batch begins at row `start`."""
        each = size // self.num_devices
        number = self.positions.index(start // each)
        return slice(number * each, (number + 1) * each)


def whole_share(num_devices: int) -> Share:
    """The share of a run of one process: all rows."""
    return Share(num_devices, tuple(range(num_devices)))
