"""Numbers as JSON holds them, and the means and medians that several views tell.

Owns: NaN and infinities as strings, arrays as lists, the mean of what is finite, the median of all others.
Invariant: what leaves here is taken by every strict JSON writer and parser.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.dashboard.follow.columns import Series
from paceline.telemetry.events import number_text

Number = int | float | str


def number(value: int | float | None) -> Number | None:
    """A number, or ``"nan"``, ``"inf"``, ``"-inf"``; whole numbers without a decimal point."""
    if value is None:
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**53 else number(_as_float(value))
    text = number_text(value)
    if text is not None:
        return text
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(value)


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:  # whole numbers on a line have no limit
        return math.inf if value > 0 else -math.inf


def numbers(values: np.ndarray) -> list[Any]:
    """An array as JSON numbers."""
    found: list[Any] = values.tolist()
    if not np.isfinite(values).all():
        for place in np.flatnonzero(~np.isfinite(values)).tolist():
            found[place] = number_text(found[place])
    return found


def series_document(series: Series) -> dict[str, Any]:
    """Steps, times and values as three lists; means of stretches besides, or null if nothing was left out."""
    lists = {"step": series.step.tolist(), "time_s": numbers(series.time_s), "value": numbers(series.value)}
    if series.means is None:
        return {**lists, "means": None}
    means = {name: numbers(column) for name, column in series.means._asdict().items()}
    nothing = np.flatnonzero(series.means.finite == 0).tolist()
    for place in nothing:
        means["value"][place] = None
    return {**lists, "means": means}


def mean_of(values: np.ndarray) -> float | None:
    """The mean of the finite numbers; None if there is none."""
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        return float(values.mean()) if len(values) else None


def median_of_others(own: int | float, *, ordered: Sequence[int | float]) -> int | float:
    """The lower median of all but one of them: of two others the faster one, which shows what the run could need.

    Args:
      own: the one that is left out.
      ordered: all of them, two or more, ascending.
    """
    middle = (len(ordered) - 2) // 2
    return ordered[middle + (bisect_left(ordered, own) <= middle)]
