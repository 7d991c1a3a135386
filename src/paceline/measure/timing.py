"""How time is measured: loops that never run dry, medians with an interval, sides that take turns.

Owns: the bounded bare loop, the interval of a median, the number of steps that fill a time.
Not here: what is compared (`measure.scale`, `measure.tune`), the training loop itself (`train.loop`).
Invariant: a loop is timed from the end of its warm-up to the end of its last step, and results are waited for; what is
compared takes turns, and ratios are formed between neighbours in time, because the load of a machine changes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from paceline.train.loop import AHEAD

WARM_STEPS = 3
"""Steps in front of the timed ones: the first fill the queues, and on a GPU wake the clocks."""

COVERAGE = 0.95


class Interval(NamedTuple):
    """A median and what it may be.

    Args:
      value: the median.
      low, high: the true median lies between them with probability `coverage`.
      coverage: below 0.95 if there were too few repeats for that; 0 for one.
    """

    value: float
    low: float
    high: float
    coverage: float

    def scaled(self, factor: float) -> Interval:
        """The same in another unit; `factor` is positive."""
        return Interval(self.value * factor, self.low * factor, self.high * factor, self.coverage)


def median_interval(values: Iterable[float]) -> Interval:
    """The median and its interval by order statistics; no distribution is assumed, only that repeats are independent.

    Between the k-th smallest and the k-th largest of n values the true median lies with probability
    1 - 2 P(X < k), X binomial(n, 1/2): each value is below it with probability one half. The largest k that keeps 95 %
    is taken. Source: David and Nagaraja, Order Statistics, 3rd ed. 2003, section 7.1. Six values give 97 %, nine 96 %.
    """
    ordered = sorted(values)
    if not ordered or not all(map(math.isfinite, ordered)):
        return Interval(math.nan, math.nan, math.nan, 0.0)
    size = len(ordered)
    reach = 1
    while reach < (size + 1) // 2 and _covered(reach + 1, size) >= COVERAGE:
        reach += 1
    middle = (ordered[(size - 1) // 2] + ordered[size // 2]) / 2
    return Interval(middle, ordered[reach - 1], ordered[size - reach], max(0.0, _covered(reach, size)))


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval:
    """The median of ``over / under``, pair by pair: the two of a pair were measured next to each other.

    Taken on logarithms, so that swapping the sides gives the reciprocal.
    """
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    found = median_interval(logs)
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.coverage)


def _covered(reach: int, size: int) -> float:
    """Probability that the median lies between the `reach`-th smallest and the `reach`-th largest of `size`."""
    return 1 - 2 * sum(math.comb(size, below) for below in range(reach)) / 2**size


def steps_for(step_s: float, *, seconds: float, at_least: int = 8) -> int:
    """Timed steps that take about so long."""
    return max(at_least, round(seconds / max(step_s, 1e-9)))


def in_turn(names: Sequence[Any], *, repeat: int) -> list[Any]:
    """The order of one repeat: forwards, and backwards in every second, so that a drift favours no side."""
    return list(names)[:: 1 if repeat % 2 == 0 else -1]


class Timed(NamedTuple):
    """What a loop took.

    Args:
      step_s: seconds a step.
      state: the last state.
    """

    step_s: float
    state: Any


def drive(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Any, *, batches: Iterable[Any], warm: int = WARM_STEPS
) -> Timed:
    """A bare loop: as many steps in flight as in the training loop, results waited for.

    Args:
      step: ``(state, batch) -> (state, result)``; `result` is an array on the devices.
      batches: of all steps, the first `warm` of them not timed; at least one more.
    """
    in_flight: deque[Any] = deque()
    done, start_s = 0, math.nan

    def finish() -> None:
        nonlocal done, start_s
        in_flight.popleft().block_until_ready()
        done += 1
        if done == warm:  # the steps behind it are in flight already: nothing is drained, as in the training loop
            start_s = time.perf_counter()

    for batch in batches:
        state, result = step(state, batch)
        in_flight.append(result)
        while len(in_flight) > AHEAD:
            finish()
    while in_flight:
        finish()
    assert done > warm, "a step is timed"
    return Timed((time.perf_counter() - start_s) / (done - warm), state)
