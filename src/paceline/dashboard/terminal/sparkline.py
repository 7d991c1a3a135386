"""A curve in one row of characters.

Owns: dividing steps over columns, the height of each.
Invariant: every finite value lies in exactly one column; a column with a value that is not finite shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = "_.-=+*%#"  # for a terminal that is not UTF-8
NOT_FINITE = "!"


def sparkline(steps: Sequence[int], values: Sequence[int | float], *, width: int, blocks: str = BLOCKS) -> str:
    """The means of ``width`` equal parts of the steps, from the lowest mean to the highest.

    A column without a step is a space, one with NaN or an infinity ``!``.
    """
    if not steps or width < 1:
        return ""
    first, span = steps[0], max(1, steps[-1] - steps[0] + 1)
    columns: list[list[int | float]] = [[] for _ in range(min(width, span))]
    for step, value in zip(steps, values, strict=True):
        place = (step - first) * len(columns) // span
        columns[min(max(place, 0), len(columns) - 1)].append(value)
    heights = [_height(column) for column in columns]
    finite = [height for height in heights if height is not None and math.isfinite(height)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_character(height, low=low, high=high, blocks=blocks) for height in heights)


def _height(column: list[int | float]) -> float | None:
    """None for nothing, NaN if anything in it is not finite."""
    if not column:
        return None
    if not all(math.isfinite(value) for value in column):
        return math.nan
    return math.fsum(value / len(column) for value in column)  # their sum can be no float


def _character(height: int | float | None, *, low: int | float, high: int | float, blocks: str) -> str:
    if height is None:
        return " "
    if not math.isfinite(height):
        return NOT_FINITE
    if high <= low:
        return blocks[len(blocks) // 2]
    share = (height / 2 - low / 2) / (high / 2 - low / 2)  # halves: the span of floats can be no float
    return blocks[min(int(share * len(blocks)), len(blocks) - 1)]
