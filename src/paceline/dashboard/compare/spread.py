"""How sure a number from the steps of one run is.

Owns: the interval by means of blocks.
Not here: intervals that `paceline scale` found by repeating.

Steps that follow each other are alike: what slows one slows the next. The interval of independent values would be far
too narrow. So the steps are cut into `BLOCKS` blocks in their order, the number is taken in each, and the blocks count
as the independent values (method of batch means). It tells of this run alone: another one may differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

BLOCKS = 10
_T_95 = 2.262
"""Student's t for 95 % and nine degrees of freedom."""


def block_interval(
    values: np.ndarray, number: Callable[[np.ndarray], int | float], *, at: int | float, least: int = 2
) -> tuple[float, int | float] | None:
    """The 95 % interval of ``number(values)``; None with fewer than ``least`` rows a block, or if one is not finite.

    Args:
      values: ``[R]`` or ``[R, n]``, in the order of the steps.
      at: the number over all rows, in whose middle the interval lies.
    """
    size = len(values) // BLOCKS
    if size < least or not math.isfinite(at):
        return None
    first = len(values) - size * BLOCKS  # the earliest ones are left out: they are the least alike the rest
    found = np.array([number(values[first + block * size : first + (block + 1) * size]) for block in range(BLOCKS)])
    if not np.isfinite(found).all():
        return None
    half = _T_95 * _deviation(found) / math.sqrt(BLOCKS)
    return at - half, at + half


def _deviation(found: np.ndarray) -> float:
    """Standard deviation, of numbers whose squares are beyond a float too: a power of two is taken out of them."""
    scale = 2.0 ** (math.frexp(float(np.abs(found).max()))[1] - 1)
    return scale * float((found / scale).std(ddof=1))
