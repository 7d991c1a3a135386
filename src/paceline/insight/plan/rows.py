"""The timeline of a step for numbers of rows that were not compiled.

Owns: the line through two compiled steps, kernel by kernel.
Not here: scaling where the kernels of the two differ (`insight.model.batch`).
Invariant: at a compiled number of rows the timeline is the compiler's; work is never negative; collectives are those of
the first step, since gradients do not grow with the rows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from paceline.insight.model.batch import row_independent, scaled
from paceline.insight.timeline import Event, Repeat, Timeline, Work

_NUMBER = re.compile(r"[.\d]+$")
"""What XLA adds to a name to make it unique."""


def timeline_at(rows: int, *, first: tuple[int, Timeline], second: tuple[int, Timeline]) -> Timeline:
    """What a device does in a step with so many rows.

    Where both programs have the same kernels in the same order, each is put on its own line through both; what does not
    depend on the rows, such as the update, has a flat one. Otherwise all kernels of the first are scaled alike, so that
    their sums are on the line (`insight.model.batch`).

    Args:
      first, second: rows a device and timeline of two compiled steps with different rows.
    """
    share = (rows - first[0]) / (second[0] - first[0])
    if share in (0, 1):
        return (first, second)[int(share)][1]
    if _form(first[1]) == _form(second[1]):
        return tuple(_between(a, b, share=share) for a, b in zip(first[1], second[1], strict=True))
    fixed = row_independent(first[1], second[1], first_rows=first[0], second_rows=second[0])
    return scaled(first[1], rows / first[0], fixed=fixed)


def _form(timeline: Timeline) -> tuple[object, ...]:
    """What two programs must share to be compared kernel by kernel."""

    def form(event: Event) -> object:
        if isinstance(event, Repeat):
            return event.times, _form(event.body)
        return _NUMBER.sub("", event.what) if isinstance(event, Work) else type(event).__name__

    return tuple(form(event) for event in timeline)


def _between(a: Event, b: Event, *, share: float) -> Event:
    if isinstance(a, Repeat) and isinstance(b, Repeat):
        return Repeat(a.times, tuple(_between(x, y, share=share) for x, y in zip(a.body, b.body, strict=True)))
    if isinstance(a, Work) and isinstance(b, Work):
        return dataclasses.replace(
            a, flops=_flops(a.flops, b.flops, share), bytes=_line(a.bytes, b.bytes, share),
            convolutions=_flops(a.convolutions, b.convolutions, share),
        )  # fmt: skip
    return a


def _flops(a: Mapping[str, float], b: Mapping[str, float], share: float) -> dict[str, float]:
    return {dtype: _line(a.get(dtype, 0.0), b.get(dtype, 0.0), share) for dtype in dict.fromkeys((*a, *b))}


def _line(a: float, b: float, share: float) -> float:
    return max(0.0, a + share * (b - a))
