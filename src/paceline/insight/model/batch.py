"""The timeline of the same program with another number of rows, without compiling it again.

Owns: what of a program's work grows with its rows and what does not, and a timeline scaled so.
Not here: how much memory the rows take (`insight.memory`), the time of the result (`model.predict`).
Invariant: a factor of 1 changes nothing; collectives are those of parameters and keep their bytes.

What does not grow: reading parameters and gradients, and the optimizer. A timeline does not say which of its bytes
those are, so the share is given: measured from two compilations at two batch sizes (`row_independent`), or counted from
the accounting of parameters and optimizer state. It is taken out of every piece of work alike. Arithmetic is all of
rows unless two compilations say otherwise. The shortest time of a kernel stays: small batches do not get ever faster.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.insight.timeline import Event, Repeat, Timeline, Work, total_work


def row_independent(first: Timeline, second: Timeline, *, first_rows: int, second_rows: int) -> Work:
    """The work that is the same at every batch size: where the line through two batch sizes meets zero rows.

    Args:
      first_rows, second_rows: rows a device sees in each; different.
    Returns: FLOPs by dtype, bytes, and kernels common to both; nothing below zero.
    """
    assert first_rows != second_rows
    a, b = total_work(first), total_work(second)

    def at_zero(one: float, other: float) -> float:
        slope = (other - one) / (second_rows - first_rows)
        return min(max(one - slope * first_rows, 0.0), one)

    flops = {dtype: at_zero(a.flops.get(dtype, 0.0), b.flops.get(dtype, 0.0)) for dtype in a.flops}
    return Work(flops, at_zero(a.bytes, b.bytes), min(a.kernels, b.kernels), "the same at every batch size")


def scaled(timeline: Timeline, rows_factor: float, *, fixed: Work) -> Timeline:
    """A timeline with `rows_factor` times the rows.

    Args:
      rows_factor: above 0; 0.5 is half the rows.
      fixed: work that does not grow with rows (`row_independent`), for the whole timeline, loops counted as they run.
    """
    assert rows_factor > 0
    whole = total_work(timeline)
    bytes_factor = _factor(whole.bytes, fixed.bytes, rows_factor)
    flops_factor = {
        dtype: _factor(count, fixed.flops.get(dtype, 0.0), rows_factor) for dtype, count in whole.flops.items()
    }

    def change(event: Event) -> Event:
        if isinstance(event, Work):
            flops, convolutions = (
                {dtype: count * flops_factor[dtype] for dtype, count in counts.items()}
                for counts in (event.flops, event.convolutions)
            )
            return replace(event, flops=flops, bytes=event.bytes * bytes_factor, convolutions=convolutions)
        if isinstance(event, Repeat):
            return replace(event, body=tuple(change(inner) for inner in event.body))
        return event

    return tuple(change(event) for event in timeline)


def _factor(whole: float, fixed: float, rows_factor: float) -> float:
    """On every part alike: fixed + factor * (whole - fixed), over whole."""
    if whole <= 0:
        return 1.0
    still = min(fixed / whole, 1.0)
    return still + rows_factor * (1 - still)
